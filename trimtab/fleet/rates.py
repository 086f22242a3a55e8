"""What an engine's counters and histograms say of the last seconds."""

from collections import deque
from dataclasses import dataclass
from itertools import pairwise

from trimtab.fleet.observation import Histogram, Signals

WINDOW_S = 10.0
_STEP_S = 1.0  # readings that are closer are not all kept: an engine may be read ten times a second


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

    generated_tokens_per_s: float | None = None
    prompt_tokens_per_s: float | None = None
    preemptions_per_s: float | None = None
    prefix_hit_rate: float | None = None  # 0..1, of the prompt tokens of this time; else what the engine says itself
    ttft_s: Spread | None = None  # as the engine counts it; None also where there was no first token
    inter_token_s: Spread | None = None


class RateWindow:
    """The readings of one source that rates are taken over."""

    __slots__ = ("_kept",)

    def __init__(self) -> None:
        self._kept: deque[tuple[float, Signals]] = deque()

    def add(self, at: float, signals: Signals) -> Rates:
        """Take in the newest reading; the rates up to it."""
        kept = self._kept
        while len(kept) > 1 and kept[1][0] <= at - WINDOW_S:
            kept.popleft()
        rates = _rates(at - kept[0][0], kept[0][1], signals) if kept else Rates(prefix_hit_rate=signals.prefix_hit_rate)
        if not kept or at - kept[-1][0] >= _STEP_S:
            kept.append((at, signals))
        return rates


def _rates(seconds: float, before: Signals, after: Signals) -> Rates:
    return Rates(
        generated_tokens_per_s=_per_second(before.generated_tokens, after.generated_tokens, seconds),
        prompt_tokens_per_s=_per_second(before.prompt_tokens, after.prompt_tokens, seconds),
        preemptions_per_s=_per_second(before.preemptions, after.preemptions, seconds),
        prefix_hit_rate=_hit_rate(before, after),
        ttft_s=spread(before.ttft, after.ttft),
        inter_token_s=spread(before.inter_token, after.inter_token),
    )


def _gain(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None or after < before else after - before


def _per_second(before: float | None, after: float | None, seconds: float) -> float | None:
    gain = _gain(before, after)
    return None if gain is None or seconds <= 0 else gain / seconds


def _hit_rate(before: Signals, after: Signals) -> float | None:
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
