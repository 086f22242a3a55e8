"""From the policy's pools to addresses that Envoy can connect to."""

import asyncio
import logging
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import inf

from trimtab.policy.discovery import (
    DiscoveryPolicy,
    DnsSource,
    FileSource,
    HttpSource,
    KubernetesSource,
)
from trimtab.policy.model import Policy, Pool, no_endpoint, split_host_port
from trimtab.pool import EndpointSpec
from xds_server.discovery.follower import Follower, SourceStatus
from xds_server.discovery.from_dns import FromDns
from xds_server.discovery.from_file import FromFile
from xds_server.discovery.from_http import FromHttp
from xds_server.discovery.from_kubernetes import FromKubernetes
from xds_server.discovery.names import Names, Resolve, literal
from xds_server.discovery.resolver import Resolver
from xds_server.discovery.source import Answer, Listed, Source, socket_address

logger = logging.getLogger(__name__)


class Discovery:
    """Keeps the addresses of all pools' endpoints.

    A pool's endpoints are those that the policy lists, or those that its source finds. IP literals are taken as they
    are; host names are resolved, and a name that has never resolved is left out.

    `on_change(pool, endpoints)` is called when a pool's endpoints differ from what it was last told, the first time
    when its source and each of its names have been tried, and with () when the pool is gone. `known` has what
    `remember` gave before a restart, by pool: it counts until a source answers. Everything but `statuses` runs on the
    event loop of the caller.
    """

    def __init__(
        self,
        on_change: Callable[[str, Sequence[EndpointSpec]], None],
        *,
        known: Mapping[str, object] | None = None,
        resolve: Resolve | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self._on_change = on_change
        self._rng = rng or random.Random()
        self._names = Names(self._publish, resolve or Resolver(), self._rng)
        self._pools: tuple[Pool, ...] = ()
        self._followers: dict[str, tuple[DiscoveryPolicy, Follower]] = {}
        self._left: list[asyncio.Task[None]] = []
        self._listed: dict[str, Answer] = {name: tuple(_restore(of_pool)) for name, of_pool in (known or {}).items()}
        self._told: dict[str, tuple[EndpointSpec, ...]] = {}
        self._clashes: set[tuple[str, str, str]] = set()
        self._refused: set[tuple[str, str, str]] = set()

    def update(self, policy: Policy) -> None:
        """Take the pools of a (new) policy. What is already known of its names and by its sources stays."""
        self._pools = policy.pools
        wanted = {pool.name: pool.discovery for pool in self._pools}
        for name, (before, _) in tuple(self._followers.items()):
            if wanted.get(name) != before:
                self._leave(name)
        for name, section in wanted.items():
            if section is not None and name not in self._followers:
                self._followers[name] = (section, self._follow(name, section))
        for gone in self._told.keys() - wanted.keys():
            self._notify(gone, ())
            del self._told[gone]
            self._listed.pop(gone, None)
        self._publish()

    def statuses(self) -> Mapping[str, SourceStatus]:
        """How the source of each pool does. A pool that the policy lists has none. For any thread."""
        return {name: follower.status for name, (_, follower) in tuple(self._followers.items())}

    def unresolved(self, pool: str) -> Sequence[str]:
        """Names of the pool's listed endpoints that have no address."""
        return [
            listed.name
            for listed in self._listed.get(pool, ())
            if literal(listed.host) is None and not self._names.address(listed.host)
        ]

    def dump(self, pool: str) -> object:
        """What the source of a pool found, JSON-able; nothing for a pool that the policy lists."""
        if pool not in self._followers:
            return []
        return [
            {
                "host": e.host,
                "port": e.port,
                "name": e.name,
                "capacity": e.capacity,
                "labels": dict(e.labels),
                "uid": e.uid,
            }
            for e in self._listed.get(pool, ())
        ]

    async def close(self) -> None:
        """Stop asking and resolving, and wait until it has stopped."""
        for name in tuple(self._followers):
            self._leave(name)
        await asyncio.gather(*self._left, return_exceptions=True)
        await self._names.close()

    def _follow(self, pool: str, section: DiscoveryPolicy) -> Follower:
        return Follower(
            pool,
            section.kind,
            _source(section, self._rng),
            self._publish,
            known=self._listed.get(pool, ()),
            confirm_empty_s=section.confirm_empty_s,
            rng=self._rng,
        )

    def _leave(self, pool: str) -> None:
        _, follower = self._followers.pop(pool)
        follower.task.cancel()
        self._left = [task for task in self._left if not task.done()]
        self._left.append(follower.task)

    def _publish(self) -> None:
        listed_now = {pool.name: listed for pool in self._pools if (listed := self._listed_now(pool)) is not None}
        self._listed |= listed_now
        self._names.want({e.host for p in self._pools for e in self._listed.get(p.name, ()) if literal(e.host) is None})
        for pool, listed in listed_now.items():
            endpoints = self._endpoints(pool, listed)
            if endpoints is not None and endpoints != self._told.get(pool):
                self._told[pool] = endpoints
                self._notify(pool, endpoints)

    def _listed_now(self, pool: Pool) -> Answer | None:
        """What the policy lists or the source found; None while the source has yet to be tried."""
        if pool.discovery is not None:
            return self._followers[pool.name][1].endpoints
        return tuple(
            Listed(*split_host_port(endpoint.address), endpoint.address, endpoint.capacity, endpoint.labels)
            for endpoint in pool.endpoints
        )

    def _notify(self, pool: str, endpoints: Sequence[EndpointSpec]) -> None:
        try:
            self._on_change(pool, endpoints)
        except Exception:
            logger.exception("pool %s: its new endpoints were not taken in", pool)

    def _endpoints(self, pool: str, listed: Answer) -> tuple[EndpointSpec, ...] | None:
        """The listed endpoints that have an address; None while one of their names has yet to be tried."""
        specs: dict[str, EndpointSpec] = {}
        for one in listed:
            if not self._names.was_tried(one.host):
                return None
            ip = self._names.address(one.host)
            if ip is None:
                continue
            if why := no_endpoint(ip):
                self._warn_of_no_endpoint(pool, one.name, ip, why)
                continue
            address = socket_address(ip, one.port)
            spec = EndpointSpec(address, one.name, one.capacity, one.labels, one.uid, one.out)
            first = specs.setdefault(address, spec)
            if first is not spec:
                self._warn_of_clash(pool, first, spec)
        return tuple(specs.values())

    def _warn_of_no_endpoint(self, pool: str, name: str, ip: str, why: str) -> None:
        if (refused := (pool, name, ip)) not in self._refused:
            self._refused.add(refused)
            logger.warning("pool %s: %s is left out: its address %s %s", *refused, why)

    def _warn_of_clash(self, pool: str, first: EndpointSpec, second: EndpointSpec) -> None:
        clash = (pool, first.name, second.name)
        if clash not in self._clashes:
            self._clashes.add(clash)
            logger.warning("pool %s: %s and %s are both %s: the first is used", *clash, first.address)


def _source(section: DiscoveryPolicy, rng: random.Random) -> Source:
    match section.source:
        case FileSource() as file:
            return FromFile(file)
        case DnsSource() as dns:
            return FromDns(dns)
        case HttpSource() as http:
            return FromHttp(http, section.capacity_label, rng)
        case KubernetesSource() as kubernetes:
            return FromKubernetes(kubernetes, section.capacity_label)


def _restore(remembered: object) -> Iterator[Listed]:
    """What is well-formed of what `remember` gave."""
    for entry in remembered if isinstance(remembered, list) else ():
        match entry:
            case {
                "host": str() as host,
                "port": int() as port,
                "name": str() as name,
                "capacity": (int() | float() | None) as capacity,
                "labels": dict() as labels,
                "uid": str() as uid,
            } if 0 < port < 65536 and (capacity is None or 0 < capacity < inf):
                yield Listed(host, port, name, capacity, labels, uid)
