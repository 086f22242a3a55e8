"""Whether addresses that stand in for pools can be connected to."""

import asyncio
import logging
from collections.abc import Set

from trimtab.policy.model import split_host_port

log = logging.getLogger(__name__)

_PERIOD_S = 2.0
_CONNECT_S = 1.0  # as long as Envoy waits for a connection


class Reachability:
    """Connects to each of some addresses every two seconds. One that was not tried yet counts as reachable.

    Lives on one event loop.
    """

    def __init__(self) -> None:
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._unreachable: set[str] = set()

    def want(self, addresses: Set[str]) -> None:
        """Watch these (`host:port`), and no others."""
        for address in self._tasks.keys() - addresses:
            self._tasks.pop(address).cancel()
            self._unreachable.discard(address)
        for address in addresses - self._tasks.keys():
            self._tasks[address] = asyncio.create_task(self._watch(address), name=f"reach {address}")

    def __contains__(self, address: str) -> bool:
        """Whether the last attempt made a connection."""
        return address not in self._unreachable

    async def close(self) -> None:
        """Watch none any more."""
        tasks = list(self._tasks.values())
        self.want(frozenset())
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _watch(self, address: str) -> None:
        while True:
            why = await _try(address)
            if why and address in self:
                log.warning("the fallback %s cannot be reached (%s), and gets no work", address, why)
                self._unreachable.add(address)
            elif not why and address not in self:
                log.info("the fallback %s can be reached again", address)
                self._unreachable.discard(address)
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
