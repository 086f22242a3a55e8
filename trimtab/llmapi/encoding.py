"""Content codings, decoded piece by piece and within bounds.

Engines are asked for none (`xds_server.config.routes`). gzip is read all the same, for a proxy in front of an engine
that insists on it.
"""

import zlib

_SLICE = 16 * 1024  # input per step: bounds what many empty gzip members in one chunk can cost


class UnknownCoding(ValueError):
    """The Content-Encoding names a coding that is not known here."""


class CorruptBody(ValueError):
    """The bytes are not what their Content-Encoding says."""


class _Gzip:
    def __init__(self) -> None:
        self._member = zlib.decompressobj(31)
        self._is_optional = False  # a complete member came before, and this one has given nothing yet
        self._in_padding = False

    def decode(self, data: bytes, limit: int) -> bytes:
        """Decode the next piece. More than `limit` bytes mean that the output is cut, and no more is to be decoded."""
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


class Decoder:
    """The state of one encoded body or stream."""

    def __init__(self, content_encoding: str) -> None:
        """Read a Content-Encoding: gzip, or nothing. Raises UnknownCoding."""
        names = [name.strip().lower() for name in content_encoding.split(",")]
        names = [name for name in names if name not in ("", "identity")]
        if names and names not in (["gzip"], ["x-gzip"]):
            raise UnknownCoding(content_encoding[:100])
        self.overflowed = False  # the output was above its limit and has been cut; nothing more comes
        self._gzip = _Gzip() if names else None

    def feed(self, chunk: bytes, limit: int) -> bytes:
        """Decode the next piece into at most `limit` bytes; see `overflowed`.

        Raises CorruptBody, after which the decoder is of no more use.
        """
        if self.overflowed:
            return b""
        if self._gzip is None:
            self.overflowed = len(chunk) > limit
            return chunk[:limit]
        out = bytearray()
        for start in range(0, len(chunk), _SLICE):
            room = limit - len(out)
            data = self._gzip.decode(chunk[start : start + _SLICE], room)
            out += data[:room]
            if len(data) > room:
                self.overflowed = True
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
