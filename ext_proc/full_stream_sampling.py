"""Which of the watched streams are read to their end."""

import zlib
from collections.abc import Iterable
from dataclasses import dataclass

from ext_proc.watch import Attempt
from trimtab.observation.kinds import Observation, StreamRead

# Of a new endpoint so many are read, to know whether it marks its ends.
_FIRST = 3
# So many whole streams in a row clear an endpoint that was found to break one.
_CLEARED_BY = 20
# Where no address is used twice, those that are gone would fill the memory.
_KNOWN_MAX = 4096


@dataclass(slots=True)
class _Endpoint:
    first: int = _FIRST  # still to be read because it is new
    marks_ends: bool = False  # one was seen to end as its protocol says
    suspected: int = 0  # to be seen whole before it is trusted again


class CloseLook:
    """Reads `percent` of the streams to their end, and all of an endpoint that breaks what it began; with 0, none.

    Once a stream of it was found to end too soon, or with an error after its tokens, an endpoint is looked at until
    twenty in a row were whole: by the share alone, most of what it breaks would pass for whole. Of an endpoint that was
    never seen to mark an end, a missing mark says nothing.
    """

    def __init__(self, percent: float) -> None:
        self.percent = percent
        self._endpoints: dict[tuple[str, str], _Endpoint] = {}

    def wants(self, attempt: Attempt) -> bool:
        """Whether to read this one to its end."""
        if self.percent <= 0:
            return False
        endpoint = self._endpoint(attempt.pool, attempt.address)
        if endpoint.suspected:
            return True
        if endpoint.first:
            endpoint.first -= 1
            return True
        return zlib.crc32(attempt.request_id.encode()) % 10_000 < self.percent * 100

    def saw(self, observations: Iterable[Observation]) -> None:
        """Take in what was seen of streams."""
        for seen in observations:
            if not isinstance(seen, StreamRead):
                continue
            endpoint = self._endpoint(seen.pool, seen.address)
            if seen.finished:
                endpoint.marks_ends = True
                endpoint.suspected = max(0, endpoint.suspected - 1)
            elif endpoint.marks_ends and (seen.truncated or seen.verdict is not None):
                endpoint.suspected = _CLEARED_BY

    def _endpoint(self, pool: str, address: str) -> _Endpoint:
        if (known := self._endpoints.get((pool, address))) is None:
            if len(self._endpoints) >= _KNOWN_MAX:
                self._endpoints.clear()
            known = self._endpoints[pool, address] = _Endpoint()
        return known
