"""How fast one incarnation of an endpoint works recently, and what it is given to do."""

from collections.abc import Sequence
from math import fsum

from trimtab.stats.fading import FadingMean, FadingPeak
from trimtab.stats.quantile import SlidingQuantile
from trimtab.stats.windows import BurstFilter, Window

RECENT = 50
P99_SPAN_S = 60.0
# A mean gap follows a change of load within some engine steps of a busy stream, and outlasts the time between two
# streams that are read whole.
_GAP_HALF_LIFE_S = 10.0
# What an engine has shown that it can do holds through a quiet spell, and is doubted after a quarter of an hour.
_BEST_HALF_LIFE_S = 600.0
_ESTIMATE_HALF_LIFE_S = 2.5


class LatencyEstimators:
    """Windows over first tokens, gaps between tokens, tokens per second and prompts.

    All of it is unknown (None) until something was seen, and again when nothing has been seen for `memory_s`. Times
    are Unix seconds: `at` of what was seen, `now` of the question.
    """

    __slots__ = (
        "_best",
        "_bursts",
        "_counted",
        "_estimate",
        "_gap_p99",
        "_gaps",
        "_prompts",
        "_ttft",
        "_ttft_p99",
    )

    def __init__(self, memory_s: float) -> None:
        self._bursts = BurstFilter()
        self._ttft = Window(RECENT, memory_s)
        self._ttft_p99 = SlidingQuantile(0.99, P99_SPAN_S)
        self._gaps = FadingMean(_GAP_HALF_LIFE_S, memory_s)
        self._gap_p99 = SlidingQuantile(0.99, P99_SPAN_S)
        self._counted = False  # the engine counts its tokens: then nothing is estimated
        self._estimate = FadingMean(_ESTIMATE_HALF_LIFE_S, memory_s)
        self._best = FadingPeak(_BEST_HALF_LIFE_S)
        self._prompts = Window(RECENT, memory_s)

    def sent(self, at: float, prompt_bytes: int) -> None:
        """An attempt with a prompt of so many bytes began."""
        self._prompts.add(at, prompt_bytes)

    def token_seen(self, at: float, ttft_s: float) -> None:
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

    def counted(self, at: float, held_per_s: float | None) -> None:
        """The engine counts its tokens, and has held so many a second; None where too little was read to say."""
        self._counted = True
        if held_per_s is not None:
            self._best.add(at, held_per_s)

    def decoding(self, now: float, streams: int) -> None:
        """So many attempts are past their first token.

        Each of them gets a token per mean gap: that is the rate of an engine without a counter, whatever share of its
        streams is read.
        """
        gap_s = self._gaps.value(now)
        if not self._counted and gap_s:
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

    def tokens_per_s(self, now: float) -> float | None:
        """By the streams that are read whole; None for an engine that counts, also if its counter has gone silent."""
        return None if self._counted else self._estimate.value(now)

    def tokens_per_s_best(self, now: float) -> float | None:
        return self._best.value(now)

    def prompt_bytes_mean(self, now: float) -> float | None:
        return self._prompts.mean(now)

    def prompt_bytes_std(self, now: float) -> float | None:
        return self._prompts.std(now)

    def restore_best(self, at: float, tokens_per_s: float) -> None:
        """Begin with what was known at `at`."""
        self._best.add(at, tokens_per_s)
