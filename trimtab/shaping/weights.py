"""From shares to the integers that are pushed."""

from collections.abc import Sequence

# Weights are wide, because Envoy gives a weight near 1 no traffic at all beside large ones.
_TOTAL = 10_000
_MEAN = 1_000  # the least that the mean weight of a large pool is


def floored(shares: Sequence[float], floors: Sequence[float]) -> list[float]:
    """Scale `shares`, of which one at least is above 0, to a sum of 1 with none below its floor.

    The floors must sum to less than 1.
    """
    largest = max(shares, default=1.0)
    free, rest = 1.0, {i: share / largest for i, share in enumerate(shares)}
    result = list(floors)
    while True:
        scale = free / sum(rest.values()) if rest else 0.0
        low = [i for i, share in rest.items() if share * scale < floors[i]]
        if not low:
            break
        for i in low:
            del rest[i]
            free -= floors[i]
    for i, share in rest.items():
        result[i] = share * scale
    return result


def to_weight(share: float, endpoints: int) -> int:
    """The weight of a share, in a pool of so many endpoints whose shares sum to 1. It is never below 1."""
    return max(1, round(share * max(_TOTAL, _MEAN * endpoints)))


def moved(weight: int, pushed: int, hysteresis: float) -> bool:
    """Whether a weight differs from the pushed one by at least the part `hysteresis` of that."""
    return weight != pushed and abs(weight - pushed) >= hysteresis * pushed
