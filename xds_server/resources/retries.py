"""How many retries may be under way at once, by the runtime layer, which Envoy reads anew for each of them."""

from collections.abc import Mapping

from trimtab.policy.model import Pool
from trimtab.shaping.decision import PoolDecision

# A connection that breaks by chance is worth a retry; a queue that is longer than the deadline would be met again by
# each request in it.
_ALONE = 1


def retry_limits(pool: Pool, decision: PoolDecision) -> Mapping[str, int]:
    """The runtime layer's entries for a pool's clusters: a limit where a retry could only go back to where it was.

    A cluster that has two endpoints that take work has no entry, and its own limit, which is none.
    """
    return {
        f"circuit_breakers.{cluster}.default.max_retries": _ALONE
        for number, cluster in enumerate(pool.clusters)
        if _takers(decision, number) < 2
    }


def _takers(decision: PoolDecision, number: int) -> int:
    """How many endpoints take work of a length class, or of a pool that has none."""
    return sum(one.classes[number].takes_work if one.classes else one.takes_work for one in decision.endpoints)
