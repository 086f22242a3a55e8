"""How much an endpoint can take, relative to the others of its pool."""

from collections.abc import Mapping

from trimtab.fleet.snapshot import EndpointId, PoolSnapshot


def capacities_of(pool: PoolSnapshot) -> Mapping[EndpointId, float]:
    """Capacities as declared; an endpoint without one counts as the mean of those with one, else as 1."""
    declared = [view.capacity for view in pool.endpoints if view.capacity is not None]
    mean = sum(declared) / len(declared) if declared else 1.0
    return {view.id: mean if view.capacity is None else view.capacity for view in pool.endpoints}
