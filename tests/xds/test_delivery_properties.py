"""Whatever happens in whatever order, a client ends with what was published, and loses no traffic."""

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest
from envoy.config.route.v3.route_pb2 import RouteConfiguration
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.xds import resources as make
from tests.xds.clients import DeltaClient, DeltaEnvoy, Link, StateOfTheWorldClient, StateOfTheWorldEnvoy
from xds_server.ads.server import AdsService
from xds_server.ads.snapshot import SnapshotCache, TypeUrl

_NAMES = ("a", "b", "c", "d")
_PORTS = {name: 8001 + number for number, name in enumerate(_NAMES)}
_BAD_WEIGHT, _BAD_TIMEOUT = 3, 3


@dataclass(frozen=True)
class Publish:
    clusters: dict[str, tuple[int, int]]  # name → connect timeout, weight
    listener: int


@dataclass(frozen=True)
class Weight:
    name: str
    weight: int


@dataclass(frozen=True)
class Deliver:
    most: int


@dataclass(frozen=True)
class Stall:
    stalled: bool


@dataclass(frozen=True)
class Want:
    names: frozenset[str]
    wanted: bool


@dataclass(frozen=True)
class Reconnect:
    restarted: bool  # the control plane came back as another process


_names = st.sampled_from(_NAMES)
_publish = st.builds(
    Publish,
    st.dictionaries(_names, st.tuples(st.integers(1, 3), st.integers(1, 3)), min_size=1),
    st.integers(10_000, 10_001),
)
_weight = st.builds(Weight, _names, st.integers(1, 3))
_deliver = st.builds(Deliver, st.integers(0, 3))
_stall = st.builds(Stall, st.booleans())
_want = st.builds(Want, st.frozensets(_names, min_size=1), st.booleans())
_reconnect = st.builds(Reconnect, st.booleans())


def world(publish: Publish) -> make.Published:
    published = make.world({name: {_PORTS[name]: weight} for name, (_, weight) in publish.clusters.items()})
    published[TypeUrl.CDS] = {
        name: make.cluster(name, connect_timeout_s=timeout) for name, (timeout, _) in publish.clusters.items()
    }
    published[TypeUrl.LDS] = {"edge": make.listener("edge", publish.listener)}
    return published


_BAD = {make.weights(name, {_PORTS[name]: _BAD_WEIGHT}) for name in _NAMES} | {
    make.cluster(name, connect_timeout_s=_BAD_TIMEOUT) for name in _NAMES
}


class Play:
    """Carries out a list of steps between a cache and one client."""

    def __init__(self, client: Any) -> None:
        self.client = client
        self.now: make.Published = {type_url: {} for type_url in TypeUrl}
        self._start_service()
        self._link = Link(self._service, client)

    def _start_service(self) -> None:
        self._cache = SnapshotCache()
        self._service = AdsService(self._cache)
        if self.now[TypeUrl.CDS]:
            self._cache.publish(self.now)

    async def step(self, step: Any) -> None:
        match step:
            case Publish():
                self.now = world(step)
                self._cache.publish(self.now)
            case Weight(name, weight) if name in self.now[TypeUrl.EDS]:
                body = make.weights(name, {_PORTS[name]: weight})
                self.now = {**self.now, TypeUrl.EDS: {**self.now[TypeUrl.EDS], name: body}}
                self._cache.assign(name, body)
            case Deliver(most):
                await self._link.deliver(most)
            case Stall(stalled):
                self._link.reading.clear() if stalled else self._link.reading.set()
            case Want(names, True):
                self.client.subscribe(TypeUrl.EDS, *sorted(names))
            case Want(names, False) if TypeUrl.EDS in self.client.wants:
                self.client.unsubscribe(TypeUrl.EDS, *sorted(names))
            case Reconnect(restarted):
                await self._close()
                if restarted:
                    self._start_service()
                self.client.reconnect()
                self._link = Link(self._service, self.client)

    async def _close(self) -> None:
        self._link.reading.set()
        await self._link.hang_up()

    async def end(self) -> None:
        """Let everything arrive, and see that then nobody has anything more to say."""
        self._link.reading.set()
        await self._link.settle()
        assert await self._link.settle() == []
        await self._close()


async def play(client: Any, begin: Any, steps: list[Any]) -> make.Published:
    play = Play(client)
    begin()
    for step in steps:
        await play.step(step)
    await play.end()
    return play.now


@pytest.mark.parametrize("kind", [StateOfTheWorldEnvoy, DeltaEnvoy])
@settings(max_examples=60, deadline=None)
@given(steps=st.lists(st.one_of(_publish, _weight, _deliver, _stall), max_size=25))
def test_no_route_leads_to_a_cluster_that_is_not_warm(kind: Any, steps: list[Any]) -> None:
    class Watched(kind):  # type: ignore[misc, valid-type]
        """Knows which clusters take traffic: those that have been warm since they were added."""

        warm: frozenset[str] = frozenset()

        def take(self, response: Any) -> None:
            super().take(response)
            clusters = self.has[TypeUrl.CDS].keys()
            self.warm = frozenset((self.warm | (clusters - self.warming)) & clusters)
            if "routes" in self.has[TypeUrl.RDS]:
                routes = RouteConfiguration.FromString(self.has[TypeUrl.RDS]["routes"])
                used = {route.route.cluster for host in routes.virtual_hosts for route in host.routes}
                assert used <= self.warm

    client = Watched()
    published = asyncio.run(play(client, client.begin, steps))
    assert client.has == published
    assert not client.warming


@pytest.mark.parametrize("kind", [StateOfTheWorldClient, DeltaClient])
@settings(max_examples=100, deadline=None)
@given(steps=st.lists(st.one_of(_publish, _weight, _deliver, _stall, _want, _reconnect), max_size=25))
def test_a_client_ends_with_all_that_it_wants_and_can_accept(kind: Any, steps: list[Any]) -> None:
    client = kind(refuses=_BAD.__contains__)
    published = asyncio.run(play(client, lambda: client.subscribe(TypeUrl.CDS), steps))

    for type_url in (TypeUrl.CDS, TypeUrl.EDS):
        assert not _BAD & set(client.has[type_url].values())
    assignments = published[TypeUrl.EDS]
    wanted = client.wants.get(TypeUrl.EDS, set())
    assert client.has[TypeUrl.EDS].keys() <= wanted
    for name in wanted & assignments.keys():
        if assignments[name] not in _BAD:
            assert client.has[TypeUrl.EDS][name] == assignments[name]

    clusters = published[TypeUrl.CDS]
    if not _BAD & set(clusters.values()):
        assert client.has[TypeUrl.CDS] == clusters
    elif kind is DeltaClient:
        good = {name: body for name, body in clusters.items() if body not in _BAD}
        assert good.items() <= client.has[TypeUrl.CDS].items(), "a bad neighbour holds nothing back"
