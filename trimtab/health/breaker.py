"""Circuit breaker: an endpoint that fails again and again gets no new work until it is seen to answer."""

from enum import Enum
from math import inf

from trimtab.policy.model import Weighting
from trimtab.stats.fading import FadingShare

# Each time that the deciding attempt fails, the breaker stays open twice as long; so often at most, that the power
# stays a number.
MOST_OPENINGS = 64
# What counts for the share of failures is some half a minute old.
_HALF_LIFE_S = 20.0


class BreakerState(Enum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


class Breaker:
    """One endpoint's breaker. Only attempts that were sent after it opened decide over it.

    It opens by itself at failures in a row; whether one endpoint's share of failures is too large is seen beside the
    others, so that is for its owner to say.
    """

    __slots__ = ("_attempts", "_mid_answer", "_refuted_since", "failures", "opened_at", "openings", "until")

    def __init__(self) -> None:
        self.failures = 0  # in a row, while closed
        self.openings = 0  # in a row, without an attempt that closed it
        self.opened_at = -inf
        self.until = -inf
        self._refuted_since = -inf  # an answer to what was sent later closes it
        self._attempts = FadingShare(_HALF_LIFE_S)  # while closed
        self._mid_answer = False  # what failed last, or stalled, was an answer that had begun

    def state(self, now: float) -> BreakerState:
        if not self.openings:
            return BreakerState.CLOSED
        return BreakerState.OPEN if now < self.until else BreakerState.HALF_OPEN

    def recent(self, now: float) -> tuple[float, float]:
        """How many attempts failed, of how many, since it closed: those of about the last half minute."""
        return self._attempts.hits(now), self._attempts.total(now)

    def failed(self, at: float, started_at: float, config: Weighting, *, mid_answer: bool = False) -> bool:
        """An attempt that was sent at `started_at` failed at `at`, perhaps amid its answer. Returns if it opens."""
        self._mid_answer = mid_answer
        match self.state(at):
            case BreakerState.CLOSED:
                self.failures += 1
                self._attempts.add(at, 1.0, 1.0)
                opens = self.failures >= config.breaker_failures
            case BreakerState.HALF_OPEN:
                opens = started_at > self.opened_at
            case BreakerState.OPEN:
                opens = False
        if opens:
            self.open(at, config)
        return opens

    def tried(self, at: float, started_at: float, config: Weighting) -> bool:
        """An attempt that was sent at `started_at` failed in a way that counts while half-open only.

        Returns whether the breaker opens again.
        """
        return self.state(at) is BreakerState.HALF_OPEN and self.failed(at, started_at, config)

    def succeeded(self, at: float, started_at: float, *, generated: bool) -> None:
        """An attempt that was sent at `started_at` was answered in full at `at`.

        `generated`: the model was at work. Other answers do not close it: an engine that hangs has them too.
        """
        if not self.openings:
            self.failures = 0
            self._attempts.add(at, 0.0, 1.0)
        elif generated:
            self._close(started_at)

    def token_seen(self, started_at: float, *, further: bool = False) -> None:
        """An attempt that was sent at `started_at` showed its first token, or a further one.

        That closes the breaker, unless it opened for answers that had begun as well: then a first token does not. While
        it is closed, a token takes back no failure: an engine may die in the middle of every answer.
        """
        if self.openings and (further or not self._mid_answer):
            self._close(started_at)

    def suspect(self, at: float, since: float, config: Weighting, *, mid_answer: bool = False) -> bool:
        """The endpoint is taken for dead at `at`, by what was sent after `since`. Returns whether it opens by that.

        If what was sent after `since` is answered after all, it closes; with `mid_answer`, if it is answered beyond its
        first token.
        """
        if self.state(at) is BreakerState.OPEN:
            return False
        self._mid_answer = mid_answer
        self.open(at, config, refuted_since=since)
        return True

    def open(self, at: float, config: Weighting, refuted_since: float | None = None) -> None:
        """Open at `at`, or open again for twice as long."""
        self.opened_at = at
        self._refuted_since = at if refuted_since is None else refuted_since
        self.until = at + min(config.breaker_open_s * 2**self.openings, config.breaker_open_cap_s)
        self.openings = min(self.openings + 1, MOST_OPENINGS)
        self.failures = 0
        self._attempts = FadingShare(_HALF_LIFE_S)

    def restore(self, *, failures: int, openings: int, opened_at: float, until: float) -> None:
        """Go on from what was remembered."""
        self.failures, self.openings = failures, min(openings, MOST_OPENINGS)
        self.opened_at = self._refuted_since = opened_at
        self.until = until

    def _close(self, started_at: float) -> None:
        if started_at > self._refuted_since:
            self.failures = 0
            self.openings = 0
