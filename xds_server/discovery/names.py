"""Host names, resolved again and again."""

import asyncio
import ipaddress
import logging
import random
import socket
from collections.abc import Awaitable, Callable, Sequence, Set
from dataclasses import dataclass

from xds_server.access import unforeseen

logger = logging.getLogger(__name__)

_PERIOD_S = 10.0
_FIRST_RETRY_S = 1.0
_LONGEST_RETRY_S = 30.0
_DEADLINE_S = 5.0

Resolve = Callable[[str], Awaitable[Sequence[str]]]


@dataclass(slots=True)
class _Host:
    """A host name in use. `address` is None until it has resolved once, and then the last good one."""

    task: asyncio.Task[None]
    address: str | None = None
    tried: bool = False


class Names:
    """Keeps host names resolved: at once and then every ten seconds, each on its own.

    The last good address stays while a name fails, with back-off. Of several addresses the first is taken, and kept
    while the name still has it: round-robin DNS makes no new endpoints. `on_news` is called when names were tried for
    the first time or have other addresses, once for all that did at one moment.
    """

    def __init__(self, on_news: Callable[[], None], resolve: Resolve, rng: random.Random) -> None:
        self._on_news = on_news
        self._resolve = resolve
        self._rng = rng
        self._hosts: dict[str, _Host] = {}
        self._news: asyncio.Handle | None = None  # yet to be told

    def want(self, names: Set[str]) -> None:
        """Keep these resolved, and no others."""
        for name in self._hosts.keys() - names:
            self._hosts.pop(name).task.cancel()
        for name in names - self._hosts.keys():
            self._hosts[name] = _Host(asyncio.create_task(self._keep(name), name=f"resolve {name}"))

    def was_tried(self, host: str) -> bool:
        """Whether it is an IP address, or a wanted name that was resolved, or failed to, at least once."""
        return literal(host) is not None or self._hosts[host].tried

    def address(self, host: str) -> str | None:
        """The IP address of an address or a wanted name; None for a name that has never resolved."""
        return literal(host) or self._hosts[host].address

    async def close(self) -> None:
        """Stop resolving, and wait until it has stopped."""
        tasks = [host.task for host in self._hosts.values()]
        self._hosts.clear()
        if self._news is not None:
            self._news.cancel()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _keep(self, name: str) -> None:
        failures = 0
        while True:
            addresses, error = await self._look_up(name)
            host = self._hosts[name]
            before = (host.tried, host.address)
            if addresses:
                if failures:
                    logger.info("%s resolves again", name)
                failures = 0
                if host.address not in addresses:
                    host.address = addresses[0]
            else:
                if not failures:
                    kept = f"{host.address} is kept" if host.address else "it is left out until it resolves"
                    logger.warning("%s does not resolve (%s): %s", name, error, kept)
                failures += 1
            host.tried = True
            if before != (True, host.address):
                self._note_news()
            pause = min(_FIRST_RETRY_S * 2 ** min(failures - 1, 10), _LONGEST_RETRY_S) if failures else _PERIOD_S
            await asyncio.sleep(pause * self._rng.uniform(0.8, 1.2))

    def _note_news(self) -> None:
        # Who hears of it goes over all endpoints, which may have a thousand names.
        if self._news is None:
            self._news = asyncio.get_running_loop().call_soon(self._tell_news)

    def _tell_news(self) -> None:
        self._news = None
        self._on_news()

    async def _look_up(self, name: str) -> tuple[Sequence[str], str]:
        try:
            async with asyncio.timeout(_DEADLINE_S):
                return await self._resolve(name), "no address"
        except TimeoutError:
            return (), f"no answer within {_DEADLINE_S:g} s"
        except (OSError, UnicodeError) as error:
            return (), str(error)
        except Exception as error:  # noqa: BLE001 - one name must not end the task that keeps it
            return (), unforeseen(error)


def literal(host: str) -> str | None:
    """An IP address in the spelling that Envoy reports (the C library's); None for a host name."""
    try:
        ip = ipaddress.ip_address(host)
    except ValueError:
        return None
    family = socket.AF_INET if ip.version == 4 else socket.AF_INET6
    return socket.inet_ntop(family, ip.packed)
