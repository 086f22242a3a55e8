"""In which pools' clusters an attempt may have a first-token deadline, or run beside another one of its request.

That is so in a pool with the gate, and in those that stand in for it: a request keeps its deadline, whoever serves it.
"""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trimtab.policy.model import Pool

SHORTEST_HEDGE_MS = 1000  # the least deadline that may be hedged: half a second before it, retries of errors end


def deadlined(pools: "Iterable[Pool]") -> frozenset[str]:
    """The pools in whose clusters an attempt may have a first-token deadline."""
    return frozenset(name for pool in pools if pool.gate.enabled for name in _serving(pool))


def hedged(pools: "Iterable[Pool]") -> frozenset[str]:
    """The pools in whose clusters attempts of one request may run side by side."""
    return frozenset(name for pool in pools if pool.gate.enabled and pool.gate.hedge for name in _serving(pool))


def _serving(pool: "Pool") -> Iterator[str]:
    yield pool.name
    yield from (fallback.pool for fallback in pool.fallbacks if fallback.pool is not None)
