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

    def recall(self, at: float, value: float | None, samples: int) -> None:
        """Go on from what was known at `at`."""
        self.at, self._value, self.samples = at, value, samples


class FadingShare:
    """How many of the events of late were hits, where an event counts half after `half_life_s`.

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
