"""Circuit breaker: an endpoint that fails again and again gets no new work until it is seen to answer."""

from enum import Enum
from math import inf

from trimtab.policy.model import Shaping

# Each time that the deciding attempt fails, the breaker stays open twice as long, up to so many times the
# first.
LONGEST_OPEN = 8


class BreakerState(Enum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


class Breaker:
    """One endpoint's breaker. Only attempts that were sent after it opened decide over it."""

    __slots__ = ("failures", "opened_at", "openings", "until")

    def __init__(self) -> None:
        self.failures = 0  # in a row, while closed
        self.openings = 0  # in a row, without an attempt that closed it
        self.opened_at = -inf
        self.until = -inf

    def state(self, now: float) -> BreakerState:
        if not self.openings:
            return BreakerState.CLOSED
        return BreakerState.OPEN if now < self.until else BreakerState.HALF_OPEN

    def failed(self, at: float, started_at: float, numbers: Shaping) -> None:
        """An attempt that was sent at `started_at` failed at `at`."""
        match self.state(at):
            case BreakerState.CLOSED:
                self.failures += 1
                if self.failures >= numbers.breaker_failures:
                    self._open(at, numbers)
            case BreakerState.HALF_OPEN if started_at > self.opened_at:
                self._open(at, numbers)
            case _:
                pass  # it is open already, or the attempt is older than the opening

    def succeeded(self, started_at: float) -> None:
        """An attempt that was sent at `started_at` was answered in full."""
        if not self.openings or started_at > self.opened_at:
            self.failures = 0
            self.openings = 0

    def spoke(self, started_at: float) -> None:
        """An attempt that was sent at `started_at` showed its first token.

        That closes the breaker. While it is closed, it takes back no failure: an engine may die in the
        middle of every answer.
        """
        if self.openings:
            self.succeeded(started_at)

    def _open(self, at: float, numbers: Shaping) -> None:
        self.opened_at = at
        self.until = at + numbers.breaker_open_s * min(2**self.openings, LONGEST_OPEN)
        self.openings = min(self.openings + 1, LONGEST_OPEN)
        self.failures = 0
