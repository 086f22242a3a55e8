"""Whether addresses that stand in for pools can be connected to."""

import asyncio
import logging
from collections.abc import Sequence, Set
from dataclasses import dataclass

from trimtab.policy.model import Pool, split_host_port
from trimtab.pool import EndpointSpec
from xds_server.signals.reader import PoolReader

log = logging.getLogger(__name__)

_PERIOD_S = 2.0
_CONNECT_S = 1.0  # as long as Envoy waits for a connection


@dataclass(frozen=True, slots=True)
class _Fallback:
    pool: str
    address: str  # host:port

    def __str__(self) -> str:
        return f"connecting to {self.address}"


class Reachability(PoolReader[_Fallback]):
    """Connects to each address among a pool's fallbacks every two seconds."""

    def __init__(self) -> None:
        super().__init__()
        self._unreachable: set[_Fallback] = set()

    def is_reachable(self, pool: str, address: str) -> bool:
        """Whether the last attempt made a connection, or none was made yet."""
        return _Fallback(pool, address) not in self._unreachable

    def _jobs(self, pool: Pool, endpoints: Sequence[EndpointSpec]) -> Set[_Fallback]:
        return {_Fallback(pool.name, each.address) for each in pool.fallbacks if each.address is not None}

    def _dropped(self, fallback: _Fallback) -> None:
        self._unreachable.discard(fallback)

    async def _run(self, fallback: _Fallback) -> None:
        while True:
            why = await _try(fallback.address)
            if why and fallback not in self._unreachable:
                log.warning(
                    "pool %s: its fallback %s cannot be reached (%s), and gets no work",
                    fallback.pool,
                    fallback.address,
                    why,
                )
                self._unreachable.add(fallback)
            elif not why and fallback in self._unreachable:
                log.info("pool %s: its fallback %s can be reached again", fallback.pool, fallback.address)
                self._unreachable.discard(fallback)
            await asyncio.sleep(_PERIOD_S)


async def _try(address: str) -> str:
    """Why no connection is made, or ""."""
    try:
        async with asyncio.timeout(_CONNECT_S):
            _, writer = await asyncio.open_connection(*split_host_port(address))
    except TimeoutError:
        return f"no connection in {_CONNECT_S:g} s"
    except OSError as error:
        return error.strerror or str(error)
    writer.close()
    return ""
