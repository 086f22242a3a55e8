"""From the policy's endpoints to addresses that Envoy can connect to."""

import asyncio
import ipaddress
import logging
import random
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from trimtab.policy.model import Endpoint, Policy, Pool, split_host_port
from trimtab.pool import EndpointSpec
from xds_server.resolver import Resolver

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


class Discovery:
    """Keeps the addresses of all pools' endpoints.

    IP literals are taken as they are. Host names are resolved at once and then every ten seconds, each on
    its own, with back-off and the last good address while they fail; a name that has never resolved is
    left out. Of several addresses the first is taken, and kept while the name still has it: round-robin
    DNS makes no new endpoints.

    `on_change(pool, endpoints)` is called when a pool's endpoints differ from what it was last told, the
    first time when each of the pool's names has been tried, and with () when the pool is gone. Everything
    runs on the event loop of the caller.
    """

    def __init__(
        self,
        on_change: Callable[[str, Sequence[EndpointSpec]], None],
        *,
        resolve: Resolve | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self._on_change = on_change
        self._resolve = resolve or Resolver()
        self._rng = rng or random.Random()
        self._pools: tuple[Pool, ...] = ()
        self._hosts: dict[str, _Host] = {}
        self._told: dict[str, tuple[EndpointSpec, ...]] = {}
        self._clashes: set[tuple[str, str, str]] = set()

    def update(self, policy: Policy) -> None:
        """Take the endpoints of a (new) policy. What is already known of its names stays."""
        self._pools = policy.pools
        wanted = {host for pool in self._pools for host, _ in map(_split, pool.endpoints) if _literal(host) is None}
        for host in self._hosts.keys() - wanted:
            self._hosts.pop(host).task.cancel()
        for host in wanted - self._hosts.keys():
            self._hosts[host] = _Host(asyncio.create_task(self._keep(host), name=f"resolve {host}"))
        for gone in self._told.keys() - {pool.name for pool in self._pools}:
            self._tell(gone, ())
            del self._told[gone]
        self._publish()

    async def close(self) -> None:
        """Stop resolving, and wait until it has stopped."""
        tasks = [host.task for host in self._hosts.values()]
        self._hosts.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _keep(self, name: str) -> None:
        failures = 0
        while True:
            addresses, error = await self._look_up(name)
            host = self._hosts[name]
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
            self._publish()
            pause = min(_FIRST_RETRY_S * 2 ** min(failures - 1, 10), _LONGEST_RETRY_S) if failures else _PERIOD_S
            await asyncio.sleep(pause * self._rng.uniform(0.8, 1.2))

    async def _look_up(self, name: str) -> tuple[Sequence[str], str]:
        try:
            async with asyncio.timeout(_DEADLINE_S):
                return await self._resolve(name), "no address"
        except TimeoutError:
            return (), f"no answer within {_DEADLINE_S:g} s"
        except (OSError, UnicodeError) as error:
            return (), str(error)

    def _publish(self) -> None:
        for pool in self._pools:
            endpoints = self._endpoints(pool)
            if endpoints is not None and endpoints != self._told.get(pool.name):
                self._told[pool.name] = endpoints
                self._tell(pool.name, endpoints)

    def _tell(self, pool: str, endpoints: Sequence[EndpointSpec]) -> None:
        try:
            self._on_change(pool, endpoints)
        except Exception:
            logger.exception("pool %s: its new endpoints were not taken in", pool)

    def _endpoints(self, pool: Pool) -> tuple[EndpointSpec, ...] | None:
        """The pool's endpoints that have an address; None while one of its names has yet to be tried."""
        specs: dict[str, EndpointSpec] = {}
        for endpoint in pool.endpoints:
            host, port = _split(endpoint)
            ip = _literal(host)
            if ip is None:
                known = self._hosts[host]
                if not known.tried:
                    return None
                ip = known.address
                if ip is None:
                    continue
            address = f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"
            spec = EndpointSpec(address, endpoint.address, endpoint.capacity, endpoint.labels)
            first = specs.setdefault(address, spec)
            if first is not spec:
                self._warn_of_clash(pool.name, first, spec)
        return tuple(specs.values())

    def _warn_of_clash(self, pool: str, first: EndpointSpec, second: EndpointSpec) -> None:
        clash = (pool, first.name, second.name)
        if clash not in self._clashes:
            self._clashes.add(clash)
            logger.warning("pool %s: %s and %s are both %s: the first is used", *clash, first.address)


def _split(endpoint: Endpoint) -> tuple[str, int]:
    return split_host_port(endpoint.address)


def _literal(host: str) -> str | None:
    """An IP address in the spelling that Envoy reports (the C library's); None for a host name."""
    try:
        ip = ipaddress.ip_address(host)
    except ValueError:
        return None
    family = socket.AF_INET if ip.version == 4 else socket.AF_INET6
    return socket.inet_ntop(family, ip.packed)
