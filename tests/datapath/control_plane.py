"""The least control plane for an Envoy under test: the state of the world, on request and on change."""

import asyncio
from collections.abc import AsyncIterator, Mapping

import grpc
from envoy.config.endpoint.v3 import endpoint_pb2
from envoy.service.discovery.v3 import ads_pb2_grpc, discovery_pb2
from google.protobuf.any_pb2 import Any

from tests.harness import until
from xds_server.transport import SERVER_OPTIONS

ENDPOINTS_URL = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"
CLUSTERS_URL = "type.googleapis.com/envoy.config.cluster.v3.Cluster"


def assignment(cluster: str, weights: Mapping[str, int]) -> bytes:
    """The serialised assignment of `address:port` -> weight."""
    message = endpoint_pb2.ClusterLoadAssignment(cluster_name=cluster)
    locality = message.endpoints.add()
    for address, weight in weights.items():
        host, _, port = address.rpartition(":")
        entry = locality.lb_endpoints.add()
        entry.load_balancing_weight.value = weight
        entry.endpoint.address.socket_address.address = host
        entry.endpoint.address.socket_address.port_value = int(port)
    return message.SerializeToString()


class _Stream:
    """One Envoy: what it asked for, and what it has acknowledged."""

    def __init__(self) -> None:
        self.due: asyncio.Queue[str] = asyncio.Queue()
        self.asked: dict[str, tuple[str, ...]] = {}
        self.sent: dict[str, str] = {}  # type URL -> nonce of the last response
        self.answered: dict[str, str] = {}

    @property
    def is_settled(self) -> bool:
        return self.due.empty() and bool(self.sent) and self.sent == self.answered

    async def read(self, requests: AsyncIterator[discovery_pb2.DiscoveryRequest], refusals: list[str]) -> None:
        async for request in requests:
            url, names = request.type_url, tuple(sorted(request.resource_names))
            if request.response_nonce:
                self.answered[url] = request.response_nonce
            if request.HasField("error_detail"):
                refusals.append(request.error_detail.message)
            elif self.asked.get(url) != names:
                self.asked[url] = names
                self.due.put_nowait(url)


class ControlPlane(ads_pb2_grpc.AggregatedDiscoveryServiceServicer):
    """Serves `resources` (type URL -> name -> bytes) to any number of Envoys; `set` changes them."""

    def __init__(self, resources: Mapping[str, Mapping[str, bytes]]) -> None:
        self._resources = {url: dict(named) for url, named in resources.items()}
        self._version = 0
        self._streams: set[_Stream] = set()
        self.refusals: list[str] = []
        self._server = grpc.aio.server(options=SERVER_OPTIONS)

    async def start(self, port: int) -> None:
        ads_pb2_grpc.add_AggregatedDiscoveryServiceServicer_to_server(self, self._server)
        self._server.add_insecure_port(f"127.0.0.1:{port}")
        await self._server.start()

    async def stop(self) -> None:
        await self._server.stop(0)

    async def set(self, resources: Mapping[str, Mapping[str, bytes]]) -> None:
        """Replace all resources of the types given, send what changed, and wait until it is acknowledged."""
        changed = [url for url, named in resources.items() if self._resources.get(url) != dict(named)]
        self._resources.update({url: dict(named) for url, named in resources.items()})
        if CLUSTERS_URL in changed and ENDPOINTS_URL not in changed:
            changed.append(ENDPOINTS_URL)  # a changed cluster waits for its assignment
        for stream in self._streams:
            for url in changed:
                if url in stream.asked:
                    stream.due.put_nowait(url)
        await until(lambda: all(stream.is_settled for stream in self._streams), what="acknowledged")

    async def StreamAggregatedResources(
        self,
        request_iterator: AsyncIterator[discovery_pb2.DiscoveryRequest],
        context: grpc.aio.ServicerContext,
    ) -> AsyncIterator[discovery_pb2.DiscoveryResponse]:
        stream = _Stream()
        self._streams.add(stream)
        reader = asyncio.create_task(stream.read(request_iterator, self.refusals))
        try:
            while True:
                url = await stream.due.get()
                self._version += 1
                stream.sent[url] = str(self._version)
                named = self._resources.get(url, {})
                yield discovery_pb2.DiscoveryResponse(
                    version_info=str(self._version),
                    type_url=url,
                    nonce=str(self._version),
                    resources=[Any(type_url=url, value=value) for value in named.values()],
                )
        finally:
            reader.cancel()
            self._streams.discard(stream)
