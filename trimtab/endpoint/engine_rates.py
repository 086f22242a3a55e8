"""What an engine's counters and histograms say of the last seconds."""

from array import array
from dataclasses import dataclass
from itertools import pairwise
from math import isnan, nan

from trimtab.observation.kinds import Histogram, Signals
from trimtab.stats.windows import Lookback

_WINDOW_S = 10.0
# Preemptions come seldom, and are counted late, when the victim is resumed.
_PREEMPTIONS_WINDOW_S = 60.0
_HELD_S = 0.8 * _WINDOW_S
_COUNTERS = 4  # that a packed reading begins with


@dataclass(frozen=True, slots=True)
class Spread:
    """The values that a histogram gained."""

    count: float
    mean: float
    p50: float
    p99: float


@dataclass(frozen=True, slots=True)
class Rates:
    """Over the last ten seconds, or between the last two readings if they are further apart. None is UNKNOWN."""

    tokens_per_s: float | None = None  # generated
    prompt_tokens_per_s: float | None = None
    preemptions_per_s: float | None = None  # over the last minute
    prefix_hit_rate: float | None = None  # 0..1, of the prompt tokens of this time; else what the engine says itself
    ttft_s: Spread | None = None  # as the engine counts it; None also where there was no first token
    inter_token_s: Spread | None = None


class _Packed:
    """What rates are taken of, of one reading, in a sixth of the memory: a pool keeps many."""

    __slots__ = ("_inter_token", "_numbers", "_ttft")

    def __init__(self, signals: Signals) -> None:
        counters = (signals.generated_tokens, signals.prompt_tokens, signals.prefix_queries, signals.prefix_hits)
        numbers = [nan if value is None else value for value in counters]
        # Bounds are shared by all readings of an engine.
        self._ttft = _put(signals.ttft, numbers)
        self._inter_token = _put(signals.inter_token, numbers)
        self._numbers = array("d", numbers)  # at once: an array that grows keeps room for more

    @property
    def generated_tokens(self) -> float | None:
        return self._counter(0)

    @property
    def prompt_tokens(self) -> float | None:
        return self._counter(1)

    @property
    def prefix_queries(self) -> float | None:
        return self._counter(2)

    @property
    def prefix_hits(self) -> float | None:
        return self._counter(3)

    @property
    def ttft(self) -> Histogram | None:
        return None if self._ttft is None else self._histogram(_COUNTERS, self._ttft)

    @property
    def inter_token(self) -> Histogram | None:
        if self._inter_token is None:
            return None
        return self._histogram(len(self._numbers) - len(self._inter_token) - 1, self._inter_token)

    def _counter(self, number: int) -> float | None:
        value = self._numbers[number]
        return None if isnan(value) else value

    def _histogram(self, at: int, bounds: tuple[float, ...]) -> Histogram:
        *counts, total = self._numbers[at : at + len(bounds) + 1]
        return Histogram(bounds, tuple(counts), total)


def _put(histogram: Histogram | None, numbers: list[float]) -> tuple[float, ...] | None:
    if histogram is None:
        return None
    numbers += (*histogram.counts, histogram.total)
    return histogram.bounds


_NOTHING = _Packed(Signals())


class RateWindow:
    """The readings of one source that rates are taken over."""

    __slots__ = ("_minute", "_recent", "tokens_per_s_held")

    def __init__(self) -> None:
        self._recent = Lookback[_Packed](_WINDOW_S)
        self._minute = Lookback[float | None](_PREEMPTIONS_WINDOW_S)
        self.tokens_per_s_held: float | None = None  # the newest rate, if it is no matter of a moment

    def add(self, at: float, signals: Signals) -> Rates:
        """Take in the newest reading; the rates up to it."""
        seconds, before = self._recent.add(at, _Packed(signals)) or (0.0, _NOTHING)
        minute_s, preempted = self._minute.add(at, signals.preemptions) or (0.0, None)
        tokens_per_s = _per_second(before.generated_tokens, signals.generated_tokens, seconds)
        self.tokens_per_s_held = tokens_per_s if seconds >= _HELD_S else None
        return Rates(
            tokens_per_s=tokens_per_s,
            prompt_tokens_per_s=_per_second(before.prompt_tokens, signals.prompt_tokens, seconds),
            preemptions_per_s=_per_second(preempted, signals.preemptions, minute_s),
            prefix_hit_rate=_hit_rate(before, signals),
            ttft_s=spread(before.ttft, signals.ttft),
            inter_token_s=spread(before.inter_token, signals.inter_token),
        )


def _gain(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None or after < before else after - before


def _per_second(before: float | None, after: float | None, seconds: float) -> float | None:
    gain = _gain(before, after)
    return None if gain is None or seconds <= 0 else gain / seconds


def _hit_rate(before: _Packed, after: Signals) -> float | None:
    hits, queries = _gain(before.prefix_hits, after.prefix_hits), _gain(before.prefix_queries, after.prefix_queries)
    if hits is None or not queries:
        return after.prefix_hit_rate
    return hits / queries if hits <= queries else None


def spread(before: Histogram | None, after: Histogram | None) -> Spread | None:
    """What a histogram gained; None if that is nothing, or if the two do not belong together."""
    if before is None or after is None or before.bounds != after.bounds:
        return None
    gained = [late - early for early, late in zip(before.counts, after.counts, strict=True)]
    count, total = gained[-1], after.total - before.total
    if count <= 0 or total < 0 or gained[0] < 0 or any(low > high for low, high in pairwise(gained)):
        return None
    return Spread(count, total / count, _quantile(0.5, after.bounds, gained), _quantile(0.99, after.bounds, gained))


def _quantile(share: float, bounds: tuple[float, ...], counts: list[float]) -> float:
    """As Prometheus reckons it: straight lines within a bucket; from the last bucket, its lower bound."""
    rank = share * counts[-1]
    index = next(index for index, count in enumerate(counts) if count >= rank)
    below, low = (counts[index - 1], bounds[index - 1]) if index else (0.0, min(0.0, bounds[0]))
    if index == len(bounds) - 1:
        return low
    return low + (bounds[index] - low) * (rank - below) / (counts[index] - below)
