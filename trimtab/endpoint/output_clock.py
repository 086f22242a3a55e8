"""Whether an endpoint still generates: when it last showed so, and how long it has been waited for since."""

from dataclasses import dataclass
from math import inf

from trimtab.endpoint.attempt import Attempt
from trimtab.stats.quantile import SlidingQuantile

# Between a client that gives up and the next attempt there is a moment in which nobody waits.
_PAUSE_S = 1.0
# unary answers are rarer than first tokens, and each takes as long as it is.
_ANSWERS_SPAN_S = 600.0
# The P99 of fewer answers says little of the longest one.
_ANSWERS_MIN = 20


@dataclass(frozen=True, slots=True)
class SilenceLimits:
    """How long an endpoint may keep all who wait for it waiting before it is taken for dead, in seconds."""

    silent_after_s: float  # at least so long,
    silent_factor: float  # and at least so many times what is usual there
    stalled_after_s: float  # of streams that have begun


class OutputClock:
    """When one incarnation was last seen to generate.

    Only what takes the model to make is one: tokens, whole answers, a counter of tokens that moves. Headers, pings,
    errors and metrics come from an engine that hangs too.
    """

    __slots__ = (
        "_alive_at",
        "_answered",
        "_answers",
        "_counted_at",
        "_given_up",
        "_read",
        "_told_at",
        "_went_on_at",
    )

    def __init__(self) -> None:
        self._alive_at = -inf  # for a client to see
        self._went_on_at = -inf  # likewise, with more than a first token
        self._counted_at = -inf  # by its own counter
        self._told_at = -inf
        self._given_up: tuple[float, float] | None = None  # from when to when clients waited who then left
        self._read: dict[Attempt, float] = {}  # streams under way that are read whole, by when each was first read
        self._answers = SlidingQuantile(0.99, _ANSWERS_SPAN_S)
        self._answered = 0

    @property
    def told_at(self) -> float:
        """When it was suspected last: what was sent before that has said all that it can."""
        return self._told_at

    def alive(self, at: float) -> None:
        """A client was seen to get at `at` what it had generated."""
        self._alive_at = max(self._alive_at, at)

    def went_on(self, at: float) -> None:
        """A client was seen to get at `at` more than a first token."""
        self.alive(at)
        self._went_on_at = max(self._went_on_at, at)

    def counted(self, at: float) -> None:
        """Its counter of generated tokens has moved since `at`."""
        self._counted_at = max(self._counted_at, at)

    def answered(self, at: float, took_s: float) -> None:
        """It gave a unary answer."""
        self.went_on(at)
        self._answers.add(at, took_s)
        self._answered += 1

    def usual_answer_s(self, now: float) -> float | None:
        """P99 of how long unary answers took; None until there were enough of them."""
        return self._answers.value(now) if self._answered >= _ANSWERS_MIN else None

    def longest_answer_s(self, now: float) -> float:
        """How long the longest unary answer took recently; 0 if there was none."""
        return self._answers.highest(now) or 0.0

    def gave_up(self, started_at: float, at: float) -> None:
        """A client that had waited for a token since `started_at` left at `at` without having seen one."""
        if self._given_up is not None and started_at <= self._given_up[1] + _PAUSE_S:
            started_at, at = min(started_at, self._given_up[0]), max(at, self._given_up[1])
        self._given_up = started_at, at

    def waited_since(self, started_at: float) -> float:
        """Since when there was always somebody waiting for a token, as one has since `started_at`."""
        if self._given_up is not None and started_at <= self._given_up[1] + _PAUSE_S:
            return min(started_at, self._given_up[0])
        return started_at

    def silent_for(self, now: float, since: float, counter_excuses_s: float) -> float:
        """How long [s] it has generated nothing, of the time since `since`.

        An engine whose front hangs goes on counting, so its counter excuses no longer silence than that.
        """
        return self._uncounted(now, now - max(since, self._alive_at), counter_excuses_s)

    def reads(self, at: float, attempt: Attempt, goes_on: bool) -> None:
        """More was read at `at` of a stream that is read whole; `goes_on`: and more is to come."""
        if goes_on and attempt.leased:
            self._read.setdefault(attempt, at)
        else:
            self._read.pop(attempt, None)

    def is_read(self, attempt: Attempt) -> bool:
        """Whether more is to be read of it."""
        return attempt in self._read

    def unwatched(self) -> None:
        """What is read of streams may go unseen."""
        self._read.clear()

    def stalled_for(self, now: float, counter_excuses_s: float) -> float:
        """How long [s] a stream that is read whole has shown nothing, while nothing else went on either.

        First tokens are left aside: what computes prompts may be well where what generates, or passes it on, is not.
        """
        if not self._read:
            return 0.0
        oldest = next(iter(self._read.values()))
        return self._uncounted(now, now - max(oldest, self._went_on_at), counter_excuses_s)

    def told(self, at: float) -> None:
        """It was suspected at `at`; only what is sent, or read, from now on can make it suspect again."""
        self._told_at = max(self._told_at, at)
        self._given_up = None
        self._read.clear()

    def _uncounted(self, now: float, unseen_s: float, counter_excuses_s: float) -> float:
        """How much of a time without output counts, given the engine's own counter."""
        return min(unseen_s, now - self._counted_at) if unseen_s <= counter_excuses_s else unseen_s
