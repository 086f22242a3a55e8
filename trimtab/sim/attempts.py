"""What really happened to each request at a simulated engine: the truth that ext_proc workers are held against."""

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal

End = Literal[
    "complete",  # all of it was sent
    "refused",  # the engine, or a fault that plays one, took no more work
    "bad_request",
    "failed",  # a 5xx other than a refusal
    "error_event",  # an error inside a 200 stream
    "died",  # cut by the engine in mid stream
    "truncated",  # ended by the engine in good order, before the answer did
    "reset",  # reset by the engine before any answer
    "client_left",
]

_KEPT = 200_000


@dataclass(slots=True)
class Attempt:
    """One request for generation. Times are Unix seconds, None if it did not come to that."""

    number: int  # from 0, in order of arrival
    path: str
    request_id: str | None  # the header x-request-id
    attempt_count: str | None  # the header x-envoy-attempt-count
    arrived_at: float
    body_bytes: int = 0
    streamed: bool = False
    prompt_tokens: int = 0
    output_tokens: int = 0  # asked for, of all choices
    fault: str | None = None  # that struck it
    status: int | None = None  # None if no header was sent
    header_at: float | None = None
    first_token_at: float | None = None  # its bytes were handed to the kernel
    tokens: int = 0  # sent
    ended_at: float | None = None
    how: End | None = None

    def send_header(self, status: int) -> None:
        """Note the header."""
        self.status = status
        self.header_at = time.time()

    def end(self, how: End) -> None:
        """Note the end; what comes after the first is an effect of it and changes nothing."""
        if self.how is None:
            self.how = how
            self.ended_at = time.time()

    def as_json(self) -> dict[str, Any]:
        """All fields."""
        return {name: getattr(self, name) for name in self.__slots__}


class AttemptLog:
    """The latest attempts of one engine."""

    def __init__(self) -> None:
        self._kept: deque[Attempt] = deque(maxlen=_KEPT)
        self._count = 0

    def begin(self, path: str, headers: Mapping[str, str]) -> Attempt:
        """Enter a request that has just arrived."""
        attempt = Attempt(
            number=self._count,
            path=path,
            request_id=headers.get("x-request-id"),
            attempt_count=headers.get("x-envoy-attempt-count"),
            arrived_at=time.time(),
        )
        self._count += 1
        self._kept.append(attempt)
        return attempt

    def since(self, number: int) -> dict[str, Any]:
        """Attempts from `number` on, those still open too, and the number to ask for next."""
        first = self._count - len(self._kept)
        kept = islice(self._kept, max(0, number - first), None)
        return {"next": self._count, "attempts": [attempt.as_json() for attempt in kept]}

    @property
    def count(self) -> int:
        """Attempts so far."""
        return self._count
