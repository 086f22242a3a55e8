"""Our own requests over HTTP: the tokens and certificates that they need, what they bring, and why they fail."""

import os
import ssl
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Generic, TypeVar

import aiohttp

_T = TypeVar("_T")


class AccessError(Exception):
    """A file that the policy names for access is not usable; the message is one line."""


class Access:
    """Tokens and certificates from files. They are read again when they change, so that they can be rotated."""

    def __init__(self) -> None:
        self._tokens = _Files(_read_token)
        self._authorities = _Files(_trusting)
        self._system: ssl.SSLContext | None = None
        self._anyone: ssl.SSLContext | None = None

    def headers(self, token_file: str | None) -> Mapping[str, str]:
        """The headers that carry a token. Raises AccessError if its file is not usable."""
        return {} if token_file is None else {"Authorization": f"Bearer {self._tokens.get(token_file)}"}

    def tls(self, ca_file: str | None, skip_verify: bool) -> ssl.SSLContext:
        """What is trusted; without either, what the system trusts. Raises AccessError if the file is not usable."""
        if ca_file is not None:
            return self._authorities.get(ca_file)
        if skip_verify:
            self._anyone = self._anyone or _trusting_anyone()
            return self._anyone
        self._system = self._system or ssl.create_default_context()
        return self._system


def why_failed(cause: Exception) -> str:
    """A failed request in a line, without what people already know."""
    match cause:
        case aiohttp.ClientConnectorCertificateError():
            text = f"no trust: {cause.certificate_error}"
        case aiohttp.ClientConnectorSSLError():
            text = f"no TLS: {cause.os_error}"
        case aiohttp.ClientConnectorDNSError():
            text = f"{cause.host} does not resolve: {cause.os_error.strerror or cause.os_error}"
        case aiohttp.ClientConnectorError():
            errno = cause.os_error.errno
            text = f"no connection: {os.strerror(errno) if errno else cause.os_error}"
        case _:
            text = str(cause) or type(cause).__name__
    return " ".join(text.split())[:200]


def unforeseen(error: Exception) -> str:
    """What went wrong where nothing should, in a line."""
    said = " ".join(str(error).split())
    return f"a fault of Trimtab: {type(error).__name__}{said and f': {said}'}"[:200]


async def read_body(response: aiohttp.ClientResponse, most_bytes: int) -> bytes | None:
    """The whole body; None for a larger one, which is not read to its end."""
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > most_bytes:
            response.close()
            return None
    return bytes(body)


class _Files(Generic[_T]):
    """What was made of files, by path, for as long as they do not change."""

    def __init__(self, make: Callable[[str], _T]) -> None:
        self._make = make
        self._made: dict[str, tuple[tuple[int, int, int], _T]] = {}

    def get(self, path: str) -> _T:
        try:
            stat = Path(path).stat()
            version = (stat.st_mtime_ns, stat.st_ino, stat.st_size)
            known = self._made.get(path)
            if known is None or known[0] != version:
                known = self._made[path] = (version, self._make(path))
            return known[1]
        except ssl.SSLError:
            raise AccessError(f"{path} has no certificates in PEM") from None
        except OSError as error:
            raise AccessError(f"{path}: {error.strerror}") from None


def _read_token(path: str) -> str:
    token = Path(path).read_text("utf-8", "replace").strip()
    if not token.isascii() or not token.isprintable() or not token or " " in token:
        raise AccessError(f"{path} must hold one token and nothing else")
    return token


def _trusting(ca_file: str) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=ca_file)


def _trusting_anyone() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
