"""The services on a real gRPC server: many clients, dead clients, big messages."""

import asyncio
import gc
from typing import Any

import grpc.aio
import pytest
from envoy.config.endpoint.v3.endpoint_pb2 import ClusterLoadAssignment
from envoy.service.load_stats.v3 import lrs_pb2_grpc
from envoy.service.load_stats.v3.lrs_pb2 import LoadStatsRequest

from tests.harness import until
from tests.xds import resources as make
from tests.xds.clients import DeltaClient, StateOfTheWorldClient, XdsClient
from tests.xds.server import UNLIMITED, joined, open_stream, xds_server
from xds_server.ads.server import _Stream
from xds_server.ads.snapshot import TypeUrl
from xds_server.ads.subscription import Subscription
from xds_server.config.endpoints import EndpointWeight, build_assignment

pytestmark = pytest.mark.integration


def asking(kind: Any, node: str) -> XdsClient:
    client = kind(node)
    client.subscribe(TypeUrl.CDS)
    client.subscribe(TypeUrl.EDS, "a")
    return client


def thousand(weight: int) -> bytes:
    return build_assignment(
        "a", [EndpointWeight(f"10.0.{number // 250}.{number % 250}", 8000, weight) for number in range(1_000)]
    )


def six_megabytes() -> bytes:
    message = ClusterLoadAssignment.FromString(thousand(1))
    for entry in message.endpoints[0].lb_endpoints:
        entry.metadata.filter_metadata["x"].update({"label": "x" * 6_000})
    return bytes(message.SerializeToString())


async def brief_visit(channel: grpc.aio.Channel, number: int) -> None:
    """Connect, ask, get something, and leave in one of the ways in which clients leave."""
    client = asking((StateOfTheWorldClient, DeltaClient)[number % 2], f"n{number}")
    call = open_stream(channel, client)
    await call.write(client.outbox.popleft())
    match number % 4:
        case 0:
            await call.read()
            await call.done_writing()
            assert await call.code() is grpc.StatusCode.OK
        case 1:
            await call.read()
            call.cancel()
        case 2:
            call.cancel()  # nothing was read
        case 3:
            await call.read()
            await call.write(client.outbox.popleft())
            call.cancel()  # something may be under way


def alive() -> tuple[int, int]:
    """Tasks, and objects that belong to streams."""
    gc.collect()
    kept = sum(isinstance(thing, (_Stream, Subscription)) for thing in gc.get_objects())
    return len(asyncio.all_tasks()), kept


async def test_two_thousand_short_streams_leave_nothing_behind() -> None:
    async with xds_server() as server:
        server.cache.publish(make.world({"a": {8001: 5}}))
        async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
            await asyncio.gather(*(brief_visit(channel, number) for number in range(40)))
            await until(lambda: not server.ads._streams)
            baseline = alive()
            for batch in range(0, 2_000, 100):
                await asyncio.gather(*(brief_visit(channel, batch + number) for number in range(100)))
            await until(lambda: not server.ads._streams)
            await until(lambda: alive() <= baseline, what=f"back to {baseline}, now {alive()}")
        assert server.ads.clients() == []


@pytest.mark.parametrize("kind", [StateOfTheWorldClient, DeltaClient])
async def test_a_client_that_does_not_read_delays_nobody_and_is_not_queued_for(kind: Any) -> None:
    async with xds_server() as server:
        server.cache.publish({**make.world({"a": {8001: 5}}), TypeUrl.EDS: {"a": thousand(1)}})
        blocked = asking(kind, "blocked")
        async with (
            grpc.aio.insecure_channel(f"127.0.0.1:{server.port}", options=UNLIMITED) as channel,
            joined(server.port, asking(kind, "quick")) as quick,
        ):
            call = open_stream(channel, blocked)

            async def answer() -> None:
                while blocked.outbox:
                    await call.write(blocked.outbox.popleft())

            await answer()
            await until(lambda: TypeUrl.EDS in [push.type_url for push in quick.received])
            for weight in range(2, 52):
                body = thousand(weight)
                server.cache.assign("a", body)
                await until(lambda body=body: quick.has[TypeUrl.EDS]["a"] == body)
            while blocked.has[TypeUrl.EDS].get("a") != body:
                blocked.take(await call.read())
                await answer()
        assert len(blocked.received) <= 7, "of 50 changes it got the first few and the last"


async def test_big_messages_pass_in_both_directions() -> None:
    async with xds_server() as server:
        body = six_megabytes()
        assert len(body) > 5_000_000
        server.cache.publish({**make.world({"a": {8001: 5}}), TypeUrl.EDS: {"a": body}})
        async with joined(server.port, asking(DeltaClient, "n1")) as client:
            await until(lambda: client.has[TypeUrl.EDS].get("a") == body)

        report = LoadStatsRequest()
        report.node.id = "n1"
        locality = report.cluster_stats.add(cluster_name="a").upstream_locality_stats.add()
        for number in range(5_000):
            stats = locality.upstream_endpoint_stats.add(total_requests_in_progress=1)
            stats.address.socket_address.address = f"10.0.{number // 250}.{number % 250}"
            stats.address.socket_address.port_value = 8000
            stats.load_metric_stats.add(metric_name="x" * 1_000)
        assert report.ByteSize() > 5_000_000
        async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}", options=UNLIMITED) as channel:
            call = lrs_pb2_grpc.LoadReportingServiceStub(channel).StreamLoadStats()
            await call.write(report)
            await call.read()
            await until(lambda: server.loads and len(server.loads[-1].in_flight) == 5_000)
            call.cancel()
