"""Content codings, decoded piece by piece and within bounds."""

import zlib
from typing import Protocol

import brotli
import zstandard

_MAX_CODINGS = 4
_SLICE = 16 * 1024  # input per step: bounds what many empty gzip members in one chunk can cost
_ZSTD_SLICE = 32  # each 4 bytes may decode to a block of 128 KiB, and the library knows no output limit
_ZSTD_MAX_WINDOW = 8 << 20  # RFC 9659: no sender of content needs more


class UnknownCoding(ValueError):
    """The Content-Encoding names a coding that is not known here."""


class CorruptBody(ValueError):
    """The bytes are not what their Content-Encoding says."""


class _Stage(Protocol):
    def decode(self, data: bytes, limit: int) -> bytes:
        """Decode the next piece. More than `limit` bytes mean that the output is cut and this stage done."""


class _Gzip:
    def __init__(self) -> None:
        self._member = zlib.decompressobj(31)
        self._is_optional = False  # a complete member came before, and this one has given nothing yet
        self._in_padding = False

    def decode(self, data: bytes, limit: int) -> bytes:
        out = bytearray()
        while data and not self._in_padding and len(out) <= limit:
            try:
                piece = self._member.decompress(data, limit + 1 - len(out))
            except zlib.error as error:
                if not self._is_optional:
                    raise CorruptBody(str(error)) from None
                self._in_padding = True  # servers and disks pad; what follows is nothing to read
                break
            out += piece
            if not self._member.eof:
                self._is_optional = self._is_optional and not piece
                break
            self._is_optional = True
            data = self._member.unused_data
            self._member = zlib.decompressobj(31)
        return bytes(out)


class _Deflate:
    """`deflate` with the zlib wrapper that the standard asks for, or raw as some servers send it."""

    def __init__(self) -> None:
        self._inflate: zlib._Decompress | None = None

    def decode(self, data: bytes, limit: int) -> bytes:
        if not data:
            return b""
        if self._inflate is None:
            # The wrapper begins with the method, 8; no raw block begins with these four bits.
            self._inflate = zlib.decompressobj(15 if data[0] & 0x0F == 8 else -15)
        try:
            return self._inflate.decompress(data, limit + 1)
        except zlib.error as error:
            raise CorruptBody(str(error)) from None


class _Brotli:
    def __init__(self) -> None:
        self._decompressor = brotli.Decompressor()

    def decode(self, data: bytes, limit: int) -> bytes:
        if self._decompressor.is_finished():
            return b""
        try:
            return bytes(self._decompressor.process(data, output_buffer_limit=limit + 1))
        except brotli.error as error:
            raise CorruptBody(str(error)) from None


class _Zstd:
    def __init__(self) -> None:
        self._decompressor = zstandard.ZstdDecompressor(max_window_size=_ZSTD_MAX_WINDOW).decompressobj(
            read_across_frames=True
        )

    def decode(self, data: bytes, limit: int) -> bytes:
        out = bytearray()
        for start in range(0, len(data), _ZSTD_SLICE):
            try:
                out += self._decompressor.decompress(data[start : start + _ZSTD_SLICE])
            except zstandard.ZstdError as error:
                raise CorruptBody(str(error)) from None
            if len(out) > limit:
                break
        return bytes(out)


_STAGES: dict[str, type[_Stage]] = {
    "gzip": _Gzip,
    "x-gzip": _Gzip,
    "deflate": _Deflate,
    "br": _Brotli,
    "zstd": _Zstd,
}


class Decoder:
    """The state of one encoded body or stream."""

    def __init__(self, content_encoding: str) -> None:
        """Read a Content-Encoding: one coding or a comma list in the order applied; empty is identity.

        Raises UnknownCoding.
        """
        names = [name.strip().lower() for name in content_encoding.split(",")]
        names = [name for name in names if name not in ("", "identity")]
        unknown = [name for name in names if name not in _STAGES]
        if unknown or len(names) > _MAX_CODINGS:
            raise UnknownCoding(content_encoding[:100])
        self.overflowed = False  # the output was above its limit and has been cut; nothing more comes
        self._stages: list[_Stage] = [_STAGES[name]() for name in reversed(names)]

    def feed(self, chunk: bytes, limit: int) -> bytes:
        """Decode the next piece into at most `limit` bytes; see `overflowed`.

        Raises CorruptBody, after which the decoder is of no more use.
        """
        if self.overflowed:
            return b""
        if not self._stages:
            self.overflowed = len(chunk) > limit
            return chunk[:limit]
        out = bytearray()
        for start in range(0, len(chunk), _SLICE):
            data = chunk[start : start + _SLICE]
            room = limit - len(out)
            for stage in self._stages:
                data = stage.decode(data, room)
                if len(data) > room:
                    self.overflowed = True
                    data = data[:room]
            out += data
            if self.overflowed:
                break
        return bytes(out)


def decode_body(body: bytes, content_encoding: str, limit: int) -> bytes:
    """Decode a whole body, at most `limit` bytes of it.

    A body that is cut or goes bad gives what could be read before that. Raises UnknownCoding.
    """
    decoder = Decoder(content_encoding)
    out = bytearray()
    step = 256
    for start in range(0, len(body), step):
        try:
            out += decoder.feed(body[start : start + step], limit - len(out))
        except CorruptBody:
            # A failing call gives nothing of what it had decoded, so the bad step is read again byte by byte.
            decoder = Decoder(content_encoding)
            out[:] = decoder.feed(body[:start], limit)
            for offset in range(start, start + step):
                try:
                    out += decoder.feed(body[offset : offset + 1], limit - len(out))
                except CorruptBody:
                    break
            break
        if decoder.overflowed:
            break
    return bytes(out)
