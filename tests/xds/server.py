"""The xDS server on a real port, and a client of the test's own that speaks to it over gRPC."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc.aio
from envoy.service.discovery.v3 import ads_pb2_grpc

from tests.harness import free_port
from tests.xds.clients import DeltaClient, XdsClient
from trimtab.observation.kinds import LoadReported
from xds_server.ads.events import XdsEvents
from xds_server.ads.server import AdsService
from xds_server.ads.snapshot import SnapshotCache, TypeUrl
from xds_server.ads.transport import SERVER_OPTIONS
from xds_server.lrs import LrsService

UNLIMITED = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))


class Tally(XdsEvents):
    """Counts what was pushed and answered, by node and type."""

    def __init__(self) -> None:
        self.streams: Counter[str] = Counter()
        self.pushes: list[tuple[str, str, int, int]] = []  # node, type, resources, bytes
        self.acks: Counter[tuple[str, str]] = Counter()
        self.refusals: list[tuple[str, str, str]] = []  # node, type, reason
        self.slowest_ack_s = 0.0

    def connected(self, node: str, protocol: str) -> None:
        self.streams[node] += 1

    def pushed(self, node: str, type_url: str, version: str, resources: int, size_bytes: int) -> None:
        self.pushes.append((node, TypeUrl(type_url).name, resources, size_bytes))

    def acked(self, node: str, type_url: str, version: str, seconds: float) -> None:
        self.acks[node, TypeUrl(type_url).name] += 1
        self.slowest_ack_s = max(self.slowest_ack_s, seconds)

    def nacked(self, node: str, type_url: str, version: str, reason: str) -> None:
        self.refusals.append((node, TypeUrl(type_url).name, reason))


class XdsServer:
    """ADS and LRS for one cache."""

    def __init__(self, tally: Tally | None = None) -> None:
        self.cache = SnapshotCache()
        self.tally = tally or Tally()
        self.loads: list[LoadReported] = []
        self.ads = AdsService(self.cache, self.tally)
        self.lrs = LrsService(self._loaded, is_pool=lambda name: name != "xds", interval_s=0.1)
        self._server = grpc.aio.server(options=SERVER_OPTIONS)
        self.ads.add_to(self._server)
        self.lrs.add_to(self._server)
        self.port = 0

    def _loaded(self, loads: Sequence[LoadReported]) -> None:
        self.loads += loads

    async def start(self, port: int = 0) -> None:
        # A port that is kept: another server may be started on it when this one is killed.
        self.port = self._server.add_insecure_port(f"127.0.0.1:{port or free_port()}")
        assert self.port
        await self._server.start()

    async def stop(self) -> None:
        """End in good order, which must not need the time of grace."""
        self.ads.close()
        self.lrs.close()
        await asyncio.wait_for(self._server.stop(grace=30), timeout=5)

    async def kill(self) -> None:
        """End as a killed process does: every connection breaks."""
        await self._server.stop(grace=None)


@asynccontextmanager
async def xds_server() -> AsyncIterator[XdsServer]:
    server = XdsServer()
    await server.start()
    try:
        yield server
    finally:
        await server.stop()


def open_stream(channel: grpc.aio.Channel, client: XdsClient) -> Any:
    stub = ads_pb2_grpc.AggregatedDiscoveryServiceStub(channel)
    delta = isinstance(client, DeltaClient)
    return stub.DeltaAggregatedResources() if delta else stub.StreamAggregatedResources()


@asynccontextmanager
async def joined(port: int, client: XdsClient) -> AsyncIterator[XdsClient]:
    """`client` on a connection of its own, reading and answering by itself."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=UNLIMITED) as channel:
        call = open_stream(channel, client)

        async def converse() -> None:
            while True:
                while client.outbox:
                    await call.write(client.outbox.popleft())
                response = await call.read()
                if response is grpc.aio.EOF:
                    return
                client.take(response)

        task = asyncio.create_task(converse())
        try:
            yield client
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
