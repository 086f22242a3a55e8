"""The time against which the start of a request is held: no step of the system's clock makes it too early."""

import time
from collections.abc import Callable
from math import inf

# No request that is still without a token is older, within reason.
_KEPT_S = 600.0


class RequestClock:
    """Unix seconds, but after the clock was set back still the time that it would be without that, for ten minutes.

    Requests from before that step are never taken for younger than they are; those that came after it are taken for
    older meanwhile.
    """

    def __init__(self, clock: Callable[[], float] = time.time, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._monotonic = monotonic
        self._ahead_s = -inf  # of the monotonic clock, at most
        self._seen_at = -inf

    def now(self) -> float:
        """The time now; a step is known by what was asked before it."""
        monotonic = self._monotonic()
        ahead_s = self._clock() - monotonic
        if ahead_s >= self._ahead_s or monotonic - self._seen_at > _KEPT_S:
            self._ahead_s, self._seen_at = ahead_s, monotonic
        return monotonic + self._ahead_s
