"""What of Envoy's runtime follows the decisions: who gets which part of a pool's work, and how many retries may run."""

from collections import defaultdict
from collections.abc import Callable, Mapping

from trimtab.decision import PoolDecision
from trimtab.policy.model import Fallback, Pool
from trimtab.weights.failover import Failover, can_take, last_resort, takes_over, wants_exploration
from xds_server.admin.state import AdminState
from xds_server.config.fallbacks import runtime_of
from xds_server.config.retry_limits import retry_limits


class RuntimeLayer:
    """The entries of the runtime layer, by the policy and the decisions in `state`; it keeps `state.splits`.

    `is_reachable` says of an address that stands in for a pool whether it takes connections.
    """

    def __init__(self, state: AdminState, is_reachable: Callable[[str, str], bool]) -> None:
        self._state = state
        self._is_reachable = is_reachable
        self._failovers: dict[str, Failover] = defaultdict(Failover)
        self._splits: dict[str, Mapping[str, object]] = {}  # entries, by pool
        self._retry_limits: dict[str, Mapping[str, int]] = {}  # likewise

    @property
    def entries(self) -> Mapping[str, object]:
        """All entries, by their keys."""
        of_pools = [*self._splits.values(), *self._retry_limits.values()]
        return {key: entry for entries in of_pools for key, entry in entries.items()}

    def drop_gone(self) -> None:
        """Drop what belongs to pools, or fallbacks, that the policy no longer has."""
        pools = {pool.name: pool for pool in self._state.policy.pools}
        for name in self._retry_limits.keys() - pools.keys():
            del self._retry_limits[name]
        for name in self._splits.keys() - {name for name, pool in pools.items() if pool.fallbacks}:
            for known in (self._failovers, self._splits, self._state.splits):
                known.pop(name, None)

    def decided(self, decision: PoolDecision) -> bool:
        """Follow a decision of one pool. Returns whether any entry is another now."""
        pools = {pool.name: pool for pool in self._state.policy.pools}
        pool = pools[decision.pool]
        before = self._splits.get(pool.name), self._retry_limits.get(pool.name, {})
        if pool.fallbacks:
            self._split(decision, pool, pools)
        # A retry of a missed deadline must not go to the endpoint that missed it, where no other takes work.
        timed = pool.name in self._state.policy.deadlined_pools
        self._retry_limits[pool.name] = retry_limits(pool, decision) if timed else {}
        return before != (self._splits.get(pool.name), self._retry_limits[pool.name])

    def _split(self, decision: PoolDecision, pool: Pool, pools: Mapping[str, Pool]) -> None:
        others = [self._state.decisions.get(fallback.pool) if fallback.pool else None for fallback in pool.fallbacks]
        parts = self._failovers[pool.name].split(
            decision.at,
            can_take(decision, pool.failover_below),
            [self._takes(pool, pools, *each) for each in zip(pool.fallbacks, others, strict=True)],
            tries=wants_exploration(decision),
            rise_per_s=pool.weighting.slow_start_points_per_s / 100,
            last_resort=last_resort([decision, *others]),
        )
        names = (pool.name, *(fallback.name for fallback in pool.fallbacks))
        self._state.splits[pool.name] = dict(zip(names, parts, strict=True))
        self._splits[pool.name] = runtime_of(pool, parts, pools)

    def _takes(self, pool: Pool, pools: Mapping[str, Pool], fallback: Fallback, decision: PoolDecision | None) -> float:
        """The part, 0..1, that a fallback takes of what comes to it. `decision`: its own, if it is a pool."""
        if fallback.pool is not None:
            return takes_over(decision, pools[fallback.pool].failover_below)
        if fallback.address is not None:
            return float(self._is_reachable(pool.name, fallback.address))
        return 1.0
