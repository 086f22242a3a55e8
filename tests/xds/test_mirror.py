"""The client that copies a whole server, and how the server treats it."""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import pytest

from tests.harness import until
from tests.xds import resources as make
from tests.xds.server import XdsServer, xds_server
from xds_server.ads.mirror import Mirror

TWO_POOLS = make.world({"a": {8001: 5}, "b": {8002: 5}})


@asynccontextmanager
async def following(server: XdsServer) -> AsyncIterator[Mirror]:
    mirror = Mirror(f"127.0.0.1:{server.port}", "standby@test")
    task = asyncio.create_task(mirror.follow())
    try:
        yield mirror
    finally:
        task.cancel()


def same(resources: Mapping[str, Mapping[str, bytes]] | None, world: make.Published) -> bool:
    return resources is not None and {url: dict(named) for url, named in resources.items()} == world


async def test_it_has_everything_and_follows_every_change() -> None:
    async with xds_server() as server, following(server) as mirror:
        await until(lambda: server.ads._streams)
        assert not mirror.answers  # nothing has been published yet, and emptiness is not the truth
        for world in (
            TWO_POOLS,
            make.world({"a": {8001: 7, 8003: 1}, "b": {8002: 5}}),
            make.world({"b": {8002: 5}, "c": {8004: 5}}),
            make.world({"c": {8004: 5}}, listen_on=10_001),
        ):
            server.cache.publish(world)
            await until(lambda: same(mirror.resources, world))  # noqa: B023
            assert mirror.answers


async def test_it_is_no_envoy_to_the_server() -> None:
    async with xds_server() as server, following(server) as mirror:
        server.cache.publish(TWO_POOLS)
        await until(lambda: mirror.answers)
        assert server.ads.clients() == []
    tally = server.tally
    assert (tally.streams, tally.pushes, tally.acks, tally.refusals) == ({}, [], {}, [])


async def test_what_was_served_last_is_kept_and_the_next_server_is_found(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    async with xds_server() as first:
        first.cache.publish(TWO_POOLS)
        async with following(first) as mirror:
            await until(lambda: mirror.answers)
            await first.kill()
            await until(lambda: not mirror.answers)
            assert same(mirror.resources, TWO_POOLS)
            second = XdsServer()
            await second.start(first.port)
            await until(lambda: second.ads._streams)
            assert same(mirror.resources, TWO_POOLS)  # until the next server has told of everything
            other = make.world({"a": {8001: 6}})
            second.cache.publish(other)
            await until(lambda: same(mirror.resources, other))
            assert mirror.answers
            await second.stop()
            await until(lambda: not mirror.answers)
    assert [record.message.split(": ")[0] for record in caplog.records] == [
        f"the control plane at 127.0.0.1:{first.port} does not answer"
    ] * 2
