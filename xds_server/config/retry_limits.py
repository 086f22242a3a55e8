"""How many retries may be under way at once, by the runtime layer, which Envoy reads anew for each of them."""

from collections.abc import Mapping, Sequence

from trimtab.decision import EndpointDecision, PoolDecision
from trimtab.policy.model import Pool

# A connection that breaks by chance is worth a retry; a queue that is longer than the deadline would be met again by
# each request in it.
_ALONE = 1


def retry_limits(pool: Pool, decision: PoolDecision) -> Mapping[str, int]:
    """The runtime layer's entries for a pool's clusters: a limit where a retry could only go back to where it was.

    A cluster that has two endpoints that take work has no entry, and its own limit, which is none. Nor has one while
    something is under way at an endpoint that is out: its retry has somewhere to go.
    """
    return {
        f"circuit_breakers.{cluster}.default.max_retries": _ALONE
        for number, cluster in enumerate(pool.clusters)
        if _is_alone(number, decision.endpoints)
    }


def _is_alone(number: int, endpoints: Sequence[EndpointDecision]) -> bool:
    """Whether one endpoint has all work of a length class, or of a pool that has none."""
    takers = [one.id for one in endpoints if _takes(one, number)]
    return len(takers) < 2 and not any(one.view.in_flight for one in endpoints if one.id not in takers)


def _takes(endpoint: EndpointDecision, number: int) -> bool:
    return endpoint.classes[number].takes_work if endpoint.classes else endpoint.takes_work
