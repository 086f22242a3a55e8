"""Endpoints from a file of their own."""

import asyncio
from collections.abc import AsyncGenerator
from typing import ClassVar

from trimtab.policy.discovery import FileSource
from trimtab.policy.endpoint_list import decode_endpoints
from trimtab.policy.load import read_policy
from trimtab.policy.model import split_host_port
from trimtab.policy.problem import PolicyError
from xds_server.discovery.source import Answer, Listed, SourceError

_PERIOD_S = 0.5


class FromFile:
    """Reads a list of endpoints whenever the file's content is new.

    Times and inodes are not looked at: they mislead after a symlink swap, or a copy that keeps times.
    """

    longest_retry_s: ClassVar[float] = _PERIOD_S  # whoever fixes the file waits for it

    def __init__(self, policy: FileSource) -> None:
        self._path = policy.path

    async def answers(self) -> AsyncGenerator[Answer]:
        judged, answer = None, Answer()
        while True:
            try:
                content = await asyncio.to_thread(read_policy, self._path)
                if content != judged:
                    answer = await asyncio.to_thread(_read, content, self._path)
                    judged = content
            except PolicyError as error:
                raise SourceError(_told(error)) from None
            yield answer
            await asyncio.sleep(_PERIOD_S)


def _read(content: bytes, path: str) -> Answer:
    return tuple(
        Listed(*split_host_port(endpoint.address), endpoint.address, endpoint.capacity, endpoint.labels)
        for endpoint in decode_endpoints(content, path)
    )


def _told(error: PolicyError) -> str:
    """The first problem, and how many there are."""
    first, *others = error.problems
    return f"{first} (and {len(others)} more)" if others else str(first)
