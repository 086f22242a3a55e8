"""Processes of ours reach each other without the proxy that the environment names."""

import asyncio
from collections.abc import AsyncIterator

import grpc
import pytest

from tests.harness import until
from tests.unit.xds_server.test_observation_stream import Plane, reporting, serving, token
from tests.xds.server import xds_server
from tests.xds.test_mirror import TWO_POOLS, following, same


class Proxy:
    """A proxy that lets nobody through."""

    def __init__(self) -> None:
        self.connections = 0

    def refuse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        writer.close()


@pytest.fixture(autouse=True)
async def proxy(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Proxy]:
    """The proxy that the environment names for everything, without exceptions."""
    proxy = Proxy()
    async with await asyncio.start_server(proxy.refuse, "127.0.0.1", 0) as listener:
        port = listener.sockets[0].getsockname()[1]
        for name in ("http_proxy", "https_proxy", "all_proxy", "grpc_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{port}")
        for name in ("no_proxy", "no_grpc_proxy"):
            monkeypatch.delenv(name, raising=False)
        yield proxy


async def test_grpc_by_itself_asks_the_proxy(proxy: Proxy) -> None:
    """Without this the other tests would show nothing."""
    async with xds_server() as server, grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        channel.get_state(try_to_connect=True)
        await until(lambda: proxy.connections)


async def test_observations_arrive(proxy: Proxy) -> None:
    async with serving(Plane()) as plane, reporting(plane.target) as reporter:
        reporter.report([token(1)])
        await until(lambda: plane.observations == [token(1)])
    assert proxy.connections == 0


async def test_a_replica_follows(proxy: Proxy) -> None:
    async with xds_server() as server, following(server) as mirror:
        server.cache.publish(TWO_POOLS)
        await until(lambda: same(mirror.resources, TWO_POOLS))
    assert proxy.connections == 0
