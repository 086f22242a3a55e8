"""How fast one incarnation of an endpoint works of late, and what it is given to do."""

from collections.abc import Sequence
from math import fsum

from trimtab.fleet.averages import FadingMean, FadingPeak
from trimtab.fleet.observation import Signals
from trimtab.fleet.quantile import SlidingQuantile
from trimtab.fleet.windows import BurstFilter, CounterRate, Window

RECENT = 50
P99_SPAN_S = 60.0
# A mean gap follows a change of load within some engine steps of a busy stream, and outlasts the time between two
# streams that are read whole.
_GAP_HALF_LIFE_S = 10.0
_RATE_SPAN_S = 5.0
_SUSTAINED_S = 0.8 * _RATE_SPAN_S
# Preemptions come seldom, and are counted late, when the victim is resumed.
_PREEMPTIONS_SPAN_S = 60.0
# What an engine has shown that it can do holds through a quiet spell, and is doubted after a quarter of an hour.
_BEST_HALF_LIFE_S = 600.0
_ESTIMATE_HALF_LIFE_S = 2.5


class Pace:
    """Windows over first tokens, gaps between tokens, counters and prompts.

    All of it is unknown (None) until something was seen, and again when nothing has been seen for `memory_s`. Times
    are Unix seconds: `at` of what was seen, `now` of the question.
    """

    __slots__ = (
        "_best",
        "_bursts",
        "_estimate",
        "_gap_p99",
        "_gaps",
        "_preemptions",
        "_prompts",
        "_tokens",
        "_ttft",
        "_ttft_p99",
    )

    def __init__(self, memory_s: float) -> None:
        self._bursts = BurstFilter()
        self._ttft = Window(RECENT, memory_s)
        self._ttft_p99 = SlidingQuantile(0.99, P99_SPAN_S)
        self._gaps = FadingMean(_GAP_HALF_LIFE_S, memory_s)
        self._gap_p99 = SlidingQuantile(0.99, P99_SPAN_S)
        self._tokens = CounterRate(_RATE_SPAN_S)
        self._estimate = FadingMean(_ESTIMATE_HALF_LIFE_S, memory_s)
        self._best = FadingPeak(_BEST_HALF_LIFE_S)
        self._preemptions = CounterRate(_PREEMPTIONS_SPAN_S)
        self._prompts = Window(RECENT, memory_s)

    def sent(self, at: float, prompt_bytes: int) -> None:
        """An attempt with a prompt of so many bytes began."""
        self._prompts.add(at, prompt_bytes)

    def spoke(self, at: float, ttft_s: float) -> None:
        """An attempt showed its first token, `ttft_s` seconds after it began."""
        self._ttft_p99.add(at, ttft_s)
        for moment, sample in self._bursts.admit(at, ttft_s):
            self._ttft.add(moment, sample)

    def decoded(self, at: float, gaps_s: Sequence[float]) -> None:
        """A stream that is read whole showed further tokens, so many seconds after one another."""
        if not gaps_s:
            return
        self._gaps.add(at, fsum(gaps_s) / len(gaps_s), len(gaps_s))
        for gap_s in gaps_s:
            self._gap_p99.add(at, gap_s)

    def read(self, at: float, signals: Signals) -> None:
        """The engine's counters were read."""
        if signals.preemptions is not None:
            self._preemptions.add(at, signals.preemptions)
        if signals.generated_tokens is not None:
            self._tokens.add(at, signals.generated_tokens)
            if (per_s := self._tokens.per_s) is not None and self._tokens.covered_s >= _SUSTAINED_S:
                self._best.add(at, per_s)

    def decoding(self, now: float, streams: int) -> None:
        """So many attempts are past their first token.

        Each of them gets a token per mean gap: that is the rate of an engine without a counter, whatever share of its
        streams is read.
        """
        gap_s = self._gaps.value(now)
        if not self._tokens and gap_s:
            self._estimate.add(now, streams / gap_s)
            self._best.add(now, self._estimate.value(now) or 0.0)

    def ttft_recent_s(self, now: float) -> float | None:
        return self._ttft.mean(now)

    def ttft_p99_s(self, now: float) -> float | None:
        return self._ttft_p99.value(now)

    def inter_token_s(self, now: float) -> float | None:
        return self._gaps.value(now)

    def inter_token_p99_s(self, now: float) -> float | None:
        return self._gap_p99.value(now)

    def tokens_per_s(self, now: float, fresh: Signals) -> float | None:
        """`fresh` are the engine's readings that still hold: with a counter that has gone silent it is unknown."""
        if not self._tokens:
            return self._estimate.value(now)
        return None if fresh.generated_tokens is None else self._tokens.per_s

    def tokens_per_s_best(self, now: float) -> float | None:
        return self._best.value(now)

    def preemptions_per_s(self, fresh: Signals) -> float | None:
        """Likewise."""
        return None if fresh.preemptions is None else self._preemptions.per_s

    def prompt_bytes_mean(self, now: float) -> float | None:
        return self._prompts.mean(now)

    def prompt_bytes_std(self, now: float) -> float | None:
        return self._prompts.std(now)

    def recall_best(self, at: float, tokens_per_s: float) -> None:
        """Begin with what was known at `at`."""
        self._best.add(at, tokens_per_s)
