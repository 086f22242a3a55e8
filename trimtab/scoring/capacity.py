"""How much an endpoint can take, relative to the others of its pool."""

from collections.abc import Mapping, Sequence

from trimtab.endpoint.snapshot import EndpointId, EndpointView


def capacities_of(pool: Sequence[EndpointView]) -> Mapping[EndpointId, float]:
    """Capacities as declared; an endpoint without one counts as the mean of those with one, else as 1."""
    declared = [view.capacity for view in pool if view.capacity is not None]
    mean = sum(declared) / len(declared) if declared else 1.0
    return {view.id: mean if view.capacity is None else view.capacity for view in pool}


def capabilities_of(pool: Sequence[EndpointView]) -> Mapping[EndpointId, float]:
    """Tokens per second as measured. One that is UNKNOWN follows its capacity, at the rate of those that are known.

    An engine that has not generated a token yet is UNKNOWN too: it has had no occasion. If all are, these are the
    capacities.
    """
    capacities = capacities_of(pool)
    known = {view.id: view.tokens_per_s_best for view in pool if view.tokens_per_s_best}
    if not known:
        return capacities
    rate = sum(known.values()) / sum(capacities[id] for id in known)
    return {id: known.get(id, rate * capacity) for id, capacity in capacities.items()}
