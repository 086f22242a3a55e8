"""A quantile of the last minute in constant memory."""

from array import array
from collections.abc import Sequence
from itertools import accumulate, chain
from math import fsum

from fastdigest import TDigest, merge_all

_SLOTS = 3
# So many keep P99 of a ring within some 0.1 % of its rank: between P98.9 and P99.1.
_CENTROIDS = 64
# A t-digest object carries a buffer of 4 KiB, so digests are kept packed and samples are gathered until it pays to
# open one.
_GATHER = 64
_REFRESH_S = 1.0


class SlidingQuantile:
    """The quantile `q` (0..1) of the samples of the last `span_s` seconds.

    The window is a ring of t-digests, one for each third of it, and the oldest is dropped whole: so it covers the last
    two to three thirds. The value may be a second old: merging the ring is dear against adding a sample, and
    a minute's P99 does not move faster.
    """

    __slots__ = ("_digests", "_fresh", "_q", "_slot", "_slot_s", "_value", "_value_at")

    def __init__(self, q: float, span_s: float) -> None:
        self._q = q
        self._slot_s = span_s / _SLOTS
        self._slot = -1  # the number of the newest
        self._fresh = array("f")  # samples of that slot that are in no digest yet
        self._digests: list[tuple[int, array[float]]] = []  # a slot's number and its digest, at most one for each slot
        self._value: float | None = None
        self._value_at = 0.0

    def add(self, at: float, sample: float) -> None:
        """Take in a finite sample; one that comes late counts for the newest slot."""
        slot = int(at // self._slot_s)
        if slot > self._slot:
            self._advance(slot)
        self._fresh.append(sample)
        if len(self._fresh) >= _GATHER:
            self._digest()

    def value(self, now: float) -> float | None:
        """The quantile; None if there is no sample in the window."""
        if self._value is None or not 0.0 <= now - self._value_at < _REFRESH_S:
            self._value = self._compute(now)
            self._value_at = now
        return self._value

    def highest(self, now: float) -> float | None:
        """The largest sample in the window; None if there is none."""
        fresh = self._expire(now)
        return max(chain((packed[1] for _, packed in self._digests), fresh), default=None)

    def _compute(self, now: float) -> float | None:
        fresh = self._expire(now)
        digests = [_unpacked(packed) for _, packed in self._digests]
        if fresh:
            digests.append(TDigest.from_values(fresh, max_centroids=_CENTROIDS))
        return float(merge_all(digests).quantile(self._q)) if digests else None

    def _advance(self, slot: int) -> None:
        if self._fresh:
            self._digest()
        self._slot = slot
        self._drop_before(slot - _SLOTS + 1)

    def _expire(self, now: float) -> Sequence[float]:
        """Drop the digests that have left the window, and return what is in it of the samples that are in none."""
        oldest = int(now // self._slot_s) - _SLOTS + 1
        self._drop_before(oldest)
        return self._fresh if self._slot >= oldest else ()

    def _drop_before(self, oldest: int) -> None:
        while self._digests and self._digests[0][0] < oldest:
            del self._digests[0]

    def _digest(self) -> None:
        if self._digests and self._digests[-1][0] == self._slot:
            digest = _unpacked(self._digests.pop()[1])
        else:
            digest = TDigest(max_centroids=_CENTROIDS)
        digest.batch_update(self._fresh)
        self._digests.append((self._slot, _packed(digest, self._q / 2)))
        self._fresh = array("f")


def _packed(digest: TDigest, below: float) -> "array[float]":
    """Least, most, and each centroid's mean and weight, in the seven digits that a quantile has at best.

    Centroids that lie wholly below the rank `below` become one: nobody asks for what is between them.
    """
    centroids = digest.centroids
    ranks = accumulate(weight for _, weight in centroids)
    low = sum(rank < below * digest.n_values for rank in ranks)
    kept = centroids[low:]
    if low:
        weight = fsum(weight for _, weight in centroids[:low])
        kept = [(fsum(mean * weight for mean, weight in centroids[:low]) / weight, weight), *kept]
    return array("f", [digest.min(), digest.max(), *chain.from_iterable(kept)])


def _unpacked(packed: "array[float]") -> TDigest:
    centroids = [{"m": mean, "c": weight} for mean, weight in zip(packed[2::2], packed[3::2], strict=True)]
    return TDigest.from_dict({"max_centroids": _CENTROIDS, "min": packed[0], "max": packed[1], "centroids": centroids})
