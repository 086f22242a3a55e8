"""Sliding windows in constant memory: over samples, and over readings of what only grows."""

from array import array
from math import inf, sqrt
from typing import Generic, TypeVar

T = TypeVar("T")

# Yardstick of a burst filter. The spacing keeps one engine step, which may show many first tokens at once, from
# passing for the usual spread.
_YARDSTICK_S = 0.5
_SPACING_S = 0.01
_LEAST = 8  # so many samples make a yardstick
_SIGMAS = 3.5
_EVEN = 0.1  # of the mean: a spread below that is taken for so much, or steady samples could never differ
_SUSTAINED = 5

_READINGS = 6  # that are kept of a span: an engine may be read ten times a second, and a histogram is large


class Window:
    """The last `count` samples, none older than `span_s`. Samples may come a little out of order."""

    __slots__ = ("_count", "_first", "_samples", "_size", "_span_s", "_squares", "_sum", "_times")

    def __init__(self, count: int, span_s: float) -> None:
        self._count = count
        self._span_s = span_s
        self._times = array("d", bytes(8 * count))
        self._samples = array("f", bytes(4 * count))  # seven digits
        self.clear()

    def clear(self) -> None:
        """Forget all samples."""
        self._first = 0  # where the oldest one is
        self._size = 0
        self._sum = 0.0
        self._squares = 0.0

    def add(self, at: float, sample: float) -> None:
        if self._size == self._count:
            self._drop()
        position = (self._first + self._size) % self._count
        self._times[position] = at
        self._samples[position] = sample
        self._size += 1
        sample = self._samples[position]  # as it will be taken away again
        self._sum += sample
        self._squares += sample * sample

    def size(self, now: float) -> int:
        """How many samples are in the window at `now`."""
        oldest = now - self._span_s
        while self._size and self._times[self._first] < oldest:
            self._drop()
        return self._size

    def mean(self, now: float) -> float | None:
        """The samples' mean; None if there are none."""
        size = self.size(now)
        return self._sum / size if size else None

    def std(self, now: float) -> float | None:
        """The samples' standard deviation (of the window itself, not of what it was drawn from); None without any."""
        size = self.size(now)
        if not size:
            return None
        mean = self._sum / size
        return sqrt(max(0.0, self._squares / size - mean * mean))

    def _drop(self) -> None:
        self._size -= 1
        if not self._size:
            self.clear()  # and with the samples the rounding errors of the sums
            return
        sample = self._samples[self._first]
        self._first = (self._first + 1) % self._count
        self._sum -= sample
        self._squares -= sample * sample


class BurstFilter:
    """Holds back single samples that are far from those of the last half second.

    Far is 3.5 standard deviations. Five such samples in a row are a change, not a burst: then all five pass and
    become the new yardstick. Where samples come too seldom to tell, below some 16 a second, all pass.
    """

    __slots__ = ("_held", "_spaced_at", "_yardstick")

    def __init__(self) -> None:
        self._yardstick = Window(round(_YARDSTICK_S / _SPACING_S), _YARDSTICK_S)
        self._spaced_at = -inf  # of the newest sample in the yardstick
        self._held: list[tuple[float, float]] = []

    def admit(self, at: float, sample: float) -> list[tuple[float, float]]:
        """The samples, with their times, that may pass now: this one, none, or it with those held back before."""
        if self._is_far(at, sample):
            self._held.append((at, sample))
            if len(self._held) < _SUSTAINED:
                return []
            self._yardstick.clear()
            admitted, self._held = self._held, []
            self._spaced_at = -inf
        else:
            self._held.clear()
            admitted = [(at, sample)]
        for moment, value in admitted:
            if moment - self._spaced_at >= _SPACING_S:
                self._yardstick.add(moment, value)
                self._spaced_at = moment
        return admitted

    def _is_far(self, at: float, sample: float) -> bool:
        if self._yardstick.size(at) < _LEAST:
            return False
        mean, std = self._yardstick.mean(at) or 0.0, self._yardstick.std(at) or 0.0
        return abs(sample - mean) > _SIGMAS * max(std, _EVEN * abs(mean))


class Lookback(Generic[T]):
    """The readings of the last `span_s` seconds, thinned, for what was gained since. Readings come in order."""

    __slots__ = ("_readings", "_span_s", "_times")

    def __init__(self, span_s: float) -> None:
        self._span_s = span_s
        self._times = array("d")
        self._readings: list[T] = []

    def add(self, at: float, reading: T) -> tuple[float, T] | None:
        """Take in a reading; the one that it is to be compared with, after how many seconds it comes.

        That one is of `span_s` ago, or the last one if it is older. None for the first reading.
        """
        times, readings = self._times, self._readings
        while len(times) > 1 and times[1] <= at - self._span_s:
            del times[0], readings[0]
        earlier = (at - times[0], readings[0]) if times else None
        if not times or at - times[-1] >= self._span_s / _READINGS:
            times.append(at)
            readings.append(reading)
        return earlier
