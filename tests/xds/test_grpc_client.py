"""grpcio's own xDS client: another implementation of the protocol, served from the same server."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc.aio
import pytest
from envoy.config.cluster.v3.cluster_pb2 import Cluster

from tests.harness import until
from tests.xds import resources as make
from tests.xds.server import XdsServer
from xds_server.ads.snapshot import TypeUrl
from xds_server.config.endpoints import EndpointWeight, build_assignment

pytestmark = pytest.mark.integration


@asynccontextmanager
async def echo_server(name: str) -> AsyncIterator[int]:
    """A gRPC server that answers every call with `name`; yields its port."""

    async def who(request: bytes, context: object) -> bytes:
        return name.encode()

    server = grpc.aio.server()
    handlers = {"Who": grpc.unary_unary_rpc_method_handler(who)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Echo", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield port
    finally:
        await server.stop(None)


class Caller:
    """The process that calls, and what it has been answered."""

    def __init__(self) -> None:
        self.answers: list[str] = []

    async def read(self, output: asyncio.StreamReader) -> None:
        while line := await output.readline():
            self.answers.append(line.decode().strip())

    async def until_answered_by(self, name: str) -> None:
        """Wait for some answers in a row from one server."""
        await until(lambda: self.answers[-5:] == [name] * 5, 15, f"{name} answers; last: {self.answers[-5:]}")


@asynccontextmanager
async def caller(xds_port: int, directory: Path) -> AsyncIterator[Caller]:
    bootstrap = directory / "grpc.json"
    xds_server = {
        "server_uri": f"127.0.0.1:{xds_port}",
        "channel_creds": [{"type": "insecure"}],
        "server_features": ["xds_v3"],
    }
    bootstrap.write_text(json.dumps({"xds_servers": [xds_server], "node": {"id": "grpc", "cluster": "test"}}))
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.xds.grpc_caller",
        env={**os.environ, "GRPC_XDS_BOOTSTRAP": str(bootstrap)},
        stdout=asyncio.subprocess.PIPE,
    )
    calls = Caller()
    assert process.stdout is not None
    reading = asyncio.create_task(calls.read(process.stdout))
    try:
        yield calls
    finally:
        process.kill()
        await process.wait()
        await reading


def service(*ports: int, cluster: bytes | None = None) -> make.Published:
    return {
        TypeUrl.LDS: {"svc": make.api_listener("svc", "routes")},
        TypeUrl.RDS: {"routes": make.route("routes", {"": "upstream"}, domain="svc")},
        TypeUrl.CDS: {"upstream": cluster or make.cluster("upstream")},
        TypeUrl.EDS: {"upstream": make.weights("upstream", dict.fromkeys(ports, 1))},
    }


async def test_endpoints_are_switched_refused_kept_and_recovered(tmp_path: Path) -> None:
    first = XdsServer()
    await first.start()
    async with echo_server("one") as one, echo_server("two") as two, caller(first.port, tmp_path) as calls:
        first.cache.publish(service(one))
        await calls.until_answered_by("one")

        first.tally.pushes.clear()
        first.cache.assign("upstream", make.weights("upstream", {two: 1}))
        await calls.until_answered_by("two")
        assert [push[:3] for push in first.tally.pushes] == [("grpc", "EDS", 1)]

        first.cache.assign(
            "upstream",
            build_assignment(
                "upstream",
                [EndpointWeight("127.0.0.1", one, 1), EndpointWeight("127.0.0.1", two, 9, draining=True)],
            ),
        )
        await calls.until_answered_by("one")

        unusable = Cluster(name="upstream", type=Cluster.STATIC).SerializeToString()
        first.cache.publish(service(two, cluster=unusable))
        await until(lambda: first.tally.refusals)
        ((node, type_name, reason),) = first.tally.refusals
        assert (node, type_name) == ("grpc", "CDS")
        assert "discovery type" in reason
        first.cache.publish(service(one))
        await calls.until_answered_by("one")
        assert len(first.tally.refusals) == 1

        await first.kill()
        await calls.until_answered_by("one")
        second = XdsServer()
        await second.start(first.port)
        try:
            second.cache.publish(service(two))
            await calls.until_answered_by("two")
        finally:
            await second.stop()
        assert not any(answer.startswith("failed") for answer in calls.answers)
