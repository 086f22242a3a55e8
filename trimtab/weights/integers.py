"""From shares to the integers that are pushed."""

from collections.abc import Sequence
from random import Random

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


# By so much a pushed weight differs from what was decided, at random; and by so much it is finer than that.
_JITTER = 0.02
_FINER = 100


def jittered(weights: Sequence[int], rng: Random) -> list[int]:
    """Weights to push in place of `weights`, up to 2 % off in proportion to each other.

    Each push makes Envoy begin its schedule anew, at a point of it that the weights decide. Where requests are rarer
    than pushes each meets a new schedule, and the same few weights would always give it the same endpoint. With a
    jitter that point is random, and so each pick is a draw by the weights. Equal weights need none: Envoy does not
    schedule by them.
    """
    if len(set(weights)) < 2:
        return [weight * _FINER for weight in weights]
    return [round(weight * _FINER * rng.uniform(1.0 - _JITTER, 1.0 + _JITTER)) for weight in weights]


def moved(weight: int, pushed: int, hysteresis: float) -> bool:
    """Whether a weight differs from the pushed one by at least the part `hysteresis` of that."""
    return weight != pushed and abs(weight - pushed) >= hysteresis * pushed
