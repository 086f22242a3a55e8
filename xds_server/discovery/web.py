"""How sources ask over HTTP."""

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import Self

import aiohttp

from xds_server import access
from xds_server.access import Access
from xds_server.discovery.source import SourceError


class Web:
    """A session for one source, with the token and the certificates that its policy names.

    It keeps no cookies and follows no redirects. Each request has a deadline of its caller's own.
    """

    def __init__(self, *, token_file: str | None, ca_file: str | None, skip_verify: bool) -> None:
        self._token_file = token_file
        self._ca_file = ca_file
        self._skip_verify = skip_verify
        self._access = Access()
        self._session = aiohttp.ClientSession(
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"Accept": "application/json", "User-Agent": "trimtab"},
            timeout=aiohttp.ClientTimeout(total=None),
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._session.close()

    def get(
        self, url: str, *, params: Mapping[str, str] | None = None, headers: Mapping[str, str] | None = None
    ) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        """Ask. Raises AccessError if a file is not usable."""
        return self._session.get(
            url,
            params=params,
            headers={**(headers or {}), **self._access.headers(self._token_file)},
            ssl=self._access.tls(self._ca_file, self._skip_verify),
            allow_redirects=False,
        )


async def read_body(response: aiohttp.ClientResponse, most_bytes: int) -> bytes:
    """The whole body. Raises SourceError for a larger one."""
    body = await access.read_body(response, most_bytes)
    if body is None:
        raise SourceError(f"the answer is larger than {most_bytes >> 20} MiB")
    return body
