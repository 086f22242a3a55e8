"""Averages in constant memory: by sample, and over a past that fades."""

from math import exp2


class Ewma:
    """An exponentially weighted mean: a new sample has the weight `alpha` (0..1), however late it comes.

    It is unknown before the first sample, and again when no sample has come for `memory_s`.
    """

    __slots__ = ("_memory_s", "_value", "alpha", "at", "samples")

    def __init__(self, alpha: float, memory_s: float) -> None:
        self.alpha = alpha
        self._memory_s = memory_s
        self._value: float | None = None
        self.samples = 0
        self.at = 0.0  # of the newest sample

    def add(self, at: float, sample: float) -> None:
        mean = self.value(at)
        self._value = sample if mean is None else mean + self.alpha * (sample - mean)
        self.samples += 1
        self.at = max(self.at, at)

    def value(self, now: float) -> float | None:
        return self._value if self.at >= now - self._memory_s else None

    def restore(self, at: float, value: float | None, samples: int) -> None:
        """Go on from what was known at `at`."""
        self.at, self._value, self.samples = at, value, samples


class FadingShare:
    """How many of the events recently were hits, where an event counts half after `half_life_s`.

    Events may come late: each is weighed by its own age, so the order in which they come does not matter.
    """

    __slots__ = ("_at", "_half_life_s", "_hits", "_total")

    def __init__(self, half_life_s: float) -> None:
        self._half_life_s = half_life_s
        self._hits = 0.0
        self._total = 0.0
        self._at = 0.0

    def add(self, at: float, hits: float, total: float) -> None:
        """Add `total` events at `at`, of which `hits` were hits; negative numbers take an addition back."""
        age = at - self._at
        if age > 0:
            fade = exp2(-age / self._half_life_s)
            self._hits *= fade
            self._total *= fade
            self._at = at
        elif age < 0:
            fade = exp2(age / self._half_life_s)
            hits *= fade
            total *= fade
        self._hits = max(0.0, self._hits + hits)
        self._total = max(self._hits, self._total + total)

    def total(self, now: float) -> float:
        """The faded number of events."""
        return self._total * self._fade(now)

    def hits(self, now: float) -> float:
        """The faded number of hits."""
        return self._hits * self._fade(now)

    def share(self, now: float, prior_hits: float, prior_total: float) -> float:
        """The share of hits, 0..1, as if `prior_total` more events with `prior_hits` hits were just seen."""
        fade = self._fade(now)
        return (self._hits * fade + prior_hits) / (self._total * fade + prior_total)

    def _fade(self, now: float) -> float:
        return exp2(-max(0.0, now - self._at) / self._half_life_s)


class FadingMean:
    """The mean of unevenly spaced samples, each with a weight that halves after `half_life_s`.

    A mean by sample would let ten samples that come at once outweigh a minute. It is unknown before the first
    sample, and again when none has come for `memory_s`.
    """

    __slots__ = ("_at", "_half_life_s", "_memory_s", "_sum", "_weight")

    def __init__(self, half_life_s: float, memory_s: float) -> None:
        self._half_life_s = half_life_s
        self._memory_s = memory_s
        self._sum = 0.0
        self._weight = 0.0
        self._at = 0.0  # of the newest sample

    def add(self, at: float, mean: float, weight: float = 1.0) -> None:
        """Take in `weight` (> 0) samples of `at` whose mean is `mean`."""
        if self.value(at) is None:
            self._sum = self._weight = 0.0
        age = at - self._at
        if age > 0:
            fade = exp2(-age / self._half_life_s)
            self._sum *= fade
            self._weight *= fade
            self._at = at
        elif age < 0:
            weight *= exp2(age / self._half_life_s)
        self._sum += mean * weight
        self._weight += weight

    def value(self, now: float) -> float | None:
        # A sample that was very late, or very old, may have faded to nothing.
        known = self._weight > 0.0 and self._at >= now - self._memory_s
        return self._sum / self._weight if known else None


class FadingPeak:
    """The highest value recently: a peak counts half after `half_life_s`, and a higher value replaces it."""

    __slots__ = ("_at", "_half_life_s", "_peak")

    def __init__(self, half_life_s: float) -> None:
        self._half_life_s = half_life_s
        self._peak: float | None = None
        self._at = 0.0

    def add(self, at: float, value: float) -> None:
        """Take in a value >= 0 of `at`."""
        known = self.value(at)
        if known is None or value >= known:
            self._peak, self._at = value, at

    def value(self, now: float) -> float | None:
        """None before the first value."""
        return None if self._peak is None else self._peak * exp2(-max(0.0, now - self._at) / self._half_life_s)
