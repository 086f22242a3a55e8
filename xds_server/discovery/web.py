"""How sources ask over HTTP."""

import ssl
from collections.abc import Mapping
from pathlib import Path

import aiohttp

from xds_server.discovery.source import SourceError


def new_session(tls: ssl.SSLContext) -> aiohttp.ClientSession:
    """A session that trusts what `tls` does, and keeps no cookies. Each request has a deadline of its own."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(ssl=tls),
        cookie_jar=aiohttp.DummyCookieJar(),
        headers={"User-Agent": "trimtab"},
        timeout=aiohttp.ClientTimeout(total=None),
    )


def trust(ca_file: str | None, skip_verify: bool) -> ssl.SSLContext:
    """What a policy trusts. Raises SourceError if the file is not usable."""
    try:
        context = ssl.create_default_context(cafile=ca_file)
    except ssl.SSLError:
        raise SourceError(f"{ca_file} has no certificates in PEM") from None
    except OSError as error:
        raise SourceError(f"{ca_file}: {error.strerror}") from None
    if skip_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def bearer(token_file: str | None) -> Mapping[str, str]:
    """The header with the token that is in the file now. Raises SourceError if it is not usable."""
    if token_file is None:
        return {}
    try:
        token = Path(token_file).read_text("utf-8", "replace").strip()
    except OSError as error:
        raise SourceError(f"{token_file}: {error.strerror}") from None
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise SourceError(f"{token_file} must hold one token and nothing else")
    return {"Authorization": f"Bearer {token}"}


async def read_body(response: aiohttp.ClientResponse, most_bytes: int) -> bytes:
    """The whole body. Raises SourceError for a larger one."""
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > most_bytes:
            response.close()
            raise SourceError(f"the answer is larger than {most_bytes >> 20} MiB")
    return bytes(body)
