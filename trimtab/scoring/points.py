"""How a score of 100 is lost, point by point."""

from collections.abc import Callable, Mapping

from trimtab.endpoint.snapshot import EndpointId, EndpointView, PoolSnapshot
from trimtab.scoring.capacity import capacities_of
from trimtab.scoring.contract import Score


def part(value: float | None, limit: float) -> float | None:
    """How much of a limit is reached, 0 to 1; UNKNOWN stays UNKNOWN."""
    return None if value is None else min(1.0, value / limit)


def points_lost(terms: Mapping[str, tuple[float, float | None]]) -> dict[str, float]:
    """Points lost to a weighted sum of losses: term -> (its weight, its loss of 0 to 1, None if UNKNOWN).

    What is known carries the whole weight. So the sum always lies between that of the best and that of the worst
    that the unknown could be, and is 0 if nothing is known.
    """
    known = {term: (weight, loss) for term, (weight, loss) in terms.items() if loss is not None}
    total = sum(weight for weight, _ in known.values())
    return {term: 100.0 * weight / total * loss for term, (weight, loss) in known.items()} if total else {}


def by_capacity(
    pool: PoolSnapshot, lost: Callable[[EndpointView], Mapping[str, float]], why: str = ""
) -> dict[EndpointId, Score]:
    """Scores of what is left of 100 points, each with the share that it makes of the endpoint's capacity."""
    capacities = capacities_of(pool.endpoints)
    scores = {}
    for view in pool.endpoints:
        terms = lost(view)
        score = max(0.0, 100.0 - sum(terms.values()))
        scores[view.id] = Score(score, score / 100.0 * capacities[view.id], terms, why)
    return scores


def against_the_best(pool: PoolSnapshot, shares: Mapping[EndpointId, float]) -> dict[EndpointId, float]:
    """Scores of a strategy that only compares: share per capacity, where the most of the pool is 100."""
    capacities = capacities_of(pool.endpoints)
    rates = {id: share / capacities[id] for id, share in shares.items()}
    best = max(rates.values(), default=0.0)
    return {id: 100.0 * (rate / best) if best > 0 else 0.0 for id, rate in rates.items()}
