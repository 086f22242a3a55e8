"""The least control plane for an Envoy under test: the state of the world, on request and on change."""

import asyncio
from collections.abc import AsyncIterator, Mapping

import grpc
from envoy.config.endpoint.v3 import endpoint_pb2
from envoy.service.discovery.v3 import ads_pb2_grpc, discovery_pb2
from google.protobuf.any_pb2 import Any

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


class ControlPlane(ads_pb2_grpc.AggregatedDiscoveryServiceServicer):
    """Serves `resources` (type URL -> name -> bytes) to any number of Envoys; `set` changes them."""

    def __init__(self, resources: Mapping[str, Mapping[str, bytes]]) -> None:
        self._resources = {url: dict(named) for url, named in resources.items()}
        self._version = 1
        self._streams: dict[asyncio.Queue[str], set[str]] = {}
        self.refusals: list[str] = []
        self._server = grpc.aio.server()
        self.port = 0

    async def start(self, port: int) -> None:
        ads_pb2_grpc.add_AggregatedDiscoveryServiceServicer_to_server(self, self._server)
        self.port = self._server.add_insecure_port(f"127.0.0.1:{port}")
        await self._server.start()

    async def stop(self) -> None:
        await self._server.stop(0)

    def set(self, resources: Mapping[str, Mapping[str, bytes]]) -> None:
        """Replace all resources of the types given, and send what changed."""
        self._version += 1
        changed = [url for url, named in resources.items() if self._resources.get(url) != dict(named)]
        self._resources.update({url: dict(named) for url, named in resources.items()})
        if CLUSTERS_URL in changed and ENDPOINTS_URL not in changed:
            changed.append(ENDPOINTS_URL)  # a changed cluster waits for its assignment
        for queue, subscribed in self._streams.items():
            for url in changed:
                if url in subscribed:
                    queue.put_nowait(url)

    async def StreamAggregatedResources(
        self,
        request_iterator: AsyncIterator[discovery_pb2.DiscoveryRequest],
        context: grpc.aio.ServicerContext,
    ) -> AsyncIterator[discovery_pb2.DiscoveryResponse]:
        queue: asyncio.Queue[str] = asyncio.Queue()
        self._streams[queue] = set()
        reader = asyncio.create_task(self._read(request_iterator, queue))
        try:
            while True:
                url = await queue.get()
                yield discovery_pb2.DiscoveryResponse(
                    version_info=str(self._version),
                    type_url=url,
                    nonce=str(self._version),
                    resources=[
                        Any(type_url=url, value=value) for value in self._resources.get(url, {}).values()
                    ],
                )
        finally:
            reader.cancel()
            del self._streams[queue]

    async def _read(
        self, requests: AsyncIterator[discovery_pb2.DiscoveryRequest], queue: asyncio.Queue[str]
    ) -> None:
        names: dict[str, tuple[str, ...]] = {}
        async for request in requests:
            if request.HasField("error_detail"):
                self.refusals.append(request.error_detail.message)
                continue
            asked = tuple(sorted(request.resource_names))
            if request.type_url not in self._streams[queue] or names[request.type_url] != asked:
                names[request.type_url] = asked
                self._streams[queue].add(request.type_url)
                queue.put_nowait(request.type_url)
