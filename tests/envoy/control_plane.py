"""The delivery of resources to an Envoy under test, and whether it has taken them."""

from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager

import grpc
import grpc.aio

from tests.harness import until
from trimtab.observation.kinds import LoadReported, SignalsRead
from trimtab.policy.model import split_host_port
from xds_server.ads.events import XdsEvents
from xds_server.ads.server import AdsService
from xds_server.ads.snapshot import SnapshotCache
from xds_server.ads.transport import SERVER_OPTIONS
from xds_server.config.endpoints import EndpointWeight, build_assignment
from xds_server.lrs import LrsService


def assignment(cluster: str, weights: Mapping[str, int], draining: Collection[str] = ()) -> bytes:
    """The serialised assignment of `ip:port` -> weight."""
    endpoints = [
        EndpointWeight(*split_host_port(address), weight, address in draining) for address, weight in weights.items()
    ]
    return build_assignment(cluster, endpoints)


class ControlPlane(XdsEvents):
    """Serves `resources` (type URL -> name -> bytes); `set` changes them."""

    def __init__(self, resources: Mapping[str, Mapping[str, bytes]]) -> None:
        self._resources = {url: dict(named) for url, named in resources.items()}
        self._cache = SnapshotCache()
        self._cache.publish(self._resources)
        self._awaited: list[str] = []
        self.refusals: list[str] = []
        self.loads: list[LoadReported | SignalsRead] = []

    @asynccontextmanager
    async def serving(self, address: str) -> AsyncIterator[None]:
        server = grpc.aio.server(options=SERVER_OPTIONS)
        ads, lrs = AdsService(self._cache, self), LrsService(self.loads.extend, is_pool=lambda name: True)
        ads.add_to(server)
        lrs.add_to(server)
        server.add_insecure_port(address)
        await server.start()
        try:
            yield
        finally:
            ads.close()
            lrs.close()
            await server.stop(0)

    async def set(self, resources: Mapping[str, Mapping[str, bytes]]) -> None:
        """Replace all resources of the types given, and wait until Envoy has acknowledged what changed."""
        self._awaited = [url for url, named in resources.items() if self._resources[url] != dict(named)]
        self._resources.update({url: dict(named) for url, named in resources.items()})
        self._cache.publish(self._resources)
        await until(lambda: not self._awaited, what=f"acknowledged: {self._awaited}")

    def acked(self, node: str, type_url: str, version: str, seconds: float) -> None:
        if type_url in self._awaited:
            self._awaited.remove(type_url)

    def nacked(self, node: str, type_url: str, version: str, reason: str) -> None:
        self.refusals.append(reason)
