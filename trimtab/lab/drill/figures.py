"""What a drill showed: from what clients saw, and what Envoy counted, to figures and a judgement."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from statistics import median
from typing import Any

from trimtab.lab.drill.drills import Bounds, Drill
from trimtab.lab.drill.stack import ENGINES
from trimtab.sim.client import Result, error_name, spread_of

_STAMPEDE_S = 5.0
_RETURN_WINDOW_S = 2.0
_TRIES_PER_S = 2  # of each struck endpoint: more is work


@dataclass(frozen=True, slots=True)
class Sample:
    """Envoy's count of attempts per address at a time, in seconds since the load began."""

    at: float
    attempts: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Times:
    """When the blow fell, and when it was undone, in seconds since the load began."""

    struck: float
    healed: float


@dataclass(frozen=True, slots=True)
class Figures:
    """One drill's outcome. None: it was not seen, or does not apply."""

    requests: int  # from the blow on
    lost: int
    outcomes: Mapping[str, int]  # of those that did not succeed
    added_ms: float  # the worst
    added_p99_ms: float
    gap_s: float  # the longest between two tokens of one stream
    drain_s: float | None
    return_s: float | None
    attempts: float | None
    stampede: float | None

    def missed(self, bounds: Bounds) -> list[str]:
        """A line for each bound that was not kept."""
        missed = []
        for name in (field.name for field in fields(bounds)):
            value, bound = getattr(self, name), getattr(bounds, name)
            if bound is not None and (value is None or value > bound):
                missed.append(f"{name} is {'unknown' if value is None else f'{value:.4g}'}, at most {bound:g} promised")
        return missed

    def as_json(self) -> dict[str, Any]:
        return {
            "requests": self.requests,
            "lost": self.lost,
            "outcomes": dict(self.outcomes),
            "added_ms": {"worst": self.added_ms, "p99": self.added_p99_ms},
            "gap_s": self.gap_s,
            "drain_s": self.drain_s,
            "return_s": self.return_s,
            "attempts_per_request": self.attempts,
            "stampede": self.stampede,
        }


def figures(
    drill: Drill, times: Times, results: Sequence[Result], samples: Sequence[Sample], addresses: Sequence[str]
) -> Figures:
    """`addresses` are those of the engines, in their order; `samples` are in the order of time."""
    calm = [result.ttft_s for result in results if result.request.arrival_s < times.struck - 1 and result.succeeded]
    hurt = [result for result in results if (result.ended_s or times.struck) >= times.struck]
    after = [result for result in hurt if result.request.arrival_s >= times.struck]
    bad = [error_name(result.outcome, result.status) for result in hurt if not result.succeeded]
    usual = median(calm or [0.0])
    added = [max(0.0, 1e3 * (result.ttft_s - usual)) for result in after if result.succeeded] or [0.0]
    spread = spread_of(added, "p99", "max")
    struck = {addresses[number] for number in drill.struck}
    return Figures(
        requests=len(hurt),
        lost=sum(name != drill.spares for name in bad),
        outcomes=Counter(bad),
        added_ms=spread["max"],
        added_p99_ms=spread["p99"],
        gap_s=max((gap for result in hurt for gap in _gaps_s(result)), default=0.0),
        drain_s=_drain_s(samples, struck, times),
        return_s=_return_s(samples, struck, times.healed),
        attempts=_attempts(samples, times, after),
        stampede=_stampede(samples, addresses, times.healed),
    )


def _gaps_s(result: Result) -> Iterator[float]:
    return (later - earlier for earlier, later in pairwise(result.token_s))


def _between(samples: Sequence[Sample], start: float, end: float) -> Counter[str]:
    """The attempts of each address in a stretch of time."""
    inside = [sample for sample in samples if start <= sample.at <= end]
    if len(inside) < 2:
        return Counter()
    first, last = inside[0].attempts, inside[-1].attempts
    return Counter({address: max(0, count - first.get(address, 0)) for address, count in last.items()})


def _of(attempts: Counter[str], addresses: set[str]) -> int:
    return sum(attempts[address] for address in addresses)


def _drain_s(samples: Sequence[Sample], struck: set[str], times: Times) -> float | None:
    """Until the last second, before the healing, in which the struck got more than tries; None if it never ended."""
    if not struck:
        return None
    busy = [
        sample.at
        for sample in samples
        if times.struck <= sample.at <= times.healed - 1
        and _of(_between(samples, sample.at, sample.at + 1), struck) > _TRIES_PER_S * len(struck)
    ]
    if not busy:
        return 0.0
    return busy[-1] - times.struck if busy[-1] < times.healed - 1.5 else None


def _return_s(samples: Sequence[Sample], struck: set[str], healed: float) -> float | None:
    """Until a stretch of time begins in which the struck have half of their fair share; None if none does."""
    if not struck:
        return None
    wanted = 0.5 * len(struck) / ENGINES
    for sample in samples:
        if healed <= sample.at <= samples[-1].at - _RETURN_WINDOW_S:
            made = _between(samples, sample.at, sample.at + _RETURN_WINDOW_S)
            if _of(made, struck) >= max(1, wanted * made.total()):
                return sample.at - healed
    return None


def _attempts(samples: Sequence[Sample], times: Times, after: Sequence[Result]) -> float | None:
    """Per request that was sent while the blow lasted."""
    sent = sum(result.request.arrival_s < times.healed for result in after)
    made = _between(samples, times.struck, times.healed).total()
    return made / sent if sent and made else None


def _stampede(samples: Sequence[Sample], addresses: Sequence[str], healed: float) -> float | None:
    """The largest share of one endpoint after the healing, in fair shares."""
    made = _between(samples, healed, healed + _STAMPEDE_S)
    return max(made[address] for address in addresses) / made.total() * len(addresses) if made else None
