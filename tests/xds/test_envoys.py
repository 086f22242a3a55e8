"""Real Envoys: what each is sent, what it does with it, and that no request suffers from any of it."""

import asyncio
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from envoy.config.route.v3.route_pb2 import RouteConfiguration

from tests.harness import Body, EnvoyProcess, Hang, Script, engines, free_port, until
from tests.xds import resources as make
from tests.xds.envoy import envoy, weights_in_force
from tests.xds.relay import relay
from tests.xds.server import XdsServer, xds_server
from xds_server.ads.snapshot import TypeUrl

pytestmark = pytest.mark.integration

both = pytest.mark.parametrize("delta", [False, True], ids=["sotw", "delta"])


async def until_in_force(process: EnvoyProcess, cluster: str, weights: dict[int, int]) -> None:
    async def are_in_force() -> bool:
        return await weights_in_force(process, cluster) == weights

    await until(are_in_force, 5)


async def assert_nothing_waited(process: EnvoyProcess) -> None:
    """No cluster is warming any more, and none has given up waiting for its assignment."""

    async def are_warm() -> bool:
        return not any((await process.stats("warming_clusters")).values())

    await until(are_warm, 2)
    assert not any((await process.stats("assignment_use_cached|init_fetch_timeout")).values())


def with_deprecated_field(routes: bytes) -> bytes:
    message = RouteConfiguration.FromString(routes)
    message.virtual_hosts[0].per_request_buffer_limit_bytes.value = 1_000_000
    return message.SerializeToString()


async def test_three_envoys_are_each_sent_what_concerns_them(tmp_path: Path) -> None:
    world = make.world({"a": {20_001: 5, 20_002: 5}, "b": {20_003: 5}}, listen_on=free_port())
    async with xds_server() as server, relay(server.port) as between:
        server.cache.publish(world)
        async with (
            envoy("steady", server.port, tmp_path, delta=False) as steady,
            envoy("strict", server.port, tmp_path, delta=True, strict=True) as strict,
            envoy("wobbly", between.port, tmp_path, delta=True) as wobbly,
        ):
            await _three_envoys(server, between.cut, steady, strict, wobbly, world)


async def _three_envoys(
    server: XdsServer,
    cut: Callable[[], None],
    steady: EnvoyProcess,
    strict: EnvoyProcess,
    wobbly: EnvoyProcess,
    world: make.Published,
) -> None:
    tally = server.tally
    for process in (steady, strict, wobbly):
        await until_in_force(process, "a", {20_001: 5, 20_002: 5})
    await until(lambda: sum(tally.acks.values()) == len(tally.pushes))

    async def change_a_weight(weight: int) -> None:
        """Each Envoy is sent exactly one assignment, and has it in force."""
        tally.pushes.clear()
        body = world[TypeUrl.EDS]["a"] = make.weights("a", {20_001: weight, 20_002: 5})
        server.cache.assign("a", body)
        for process in (steady, strict, wobbly):
            await until_in_force(process, "a", {20_001: weight, 20_002: 5})
        assert sorted(push[:3] for push in tally.pushes) == [
            ("steady", "EDS", 1),
            ("strict", "EDS", 1),
            ("wobbly", "EDS", 1),
        ]
        assert all(size < len(body) + 200 for *_, size in tally.pushes)

    await change_a_weight(50)

    # One refuses a route; the others take it; nobody is disturbed.
    world[TypeUrl.RDS]["routes"] = with_deprecated_field(world[TypeUrl.RDS]["routes"])
    server.cache.publish(world)
    await until(lambda: tally.refusals and tally.acks["steady", "RDS"] == tally.acks["wobbly", "RDS"] == 2)
    ((node, type_name, reason),) = tally.refusals
    assert (node, type_name) == ("strict", "RDS")
    assert "deprecated" in reason
    (row,) = [row for row in server.ads.clients() if row.node == "strict"]
    assert row.types[TypeUrl.RDS].refusal == reason
    await change_a_weight(60)

    # One loses its connection, and on its return is sent nothing that it has.
    tally.pushes.clear()
    cut()
    await until(lambda: tally.streams["wobbly"] == 2)
    asked = lambda: next(row.types.keys() for row in server.ads.clients() if row.node == "wobbly")  # noqa: E731
    await until(lambda: {TypeUrl.CDS, TypeUrl.EDS, TypeUrl.LDS, TypeUrl.RDS} <= asked(), what="it asks for all again")
    assert tally.pushes == []
    await change_a_weight(70)

    # A cluster changes, and is warm again as soon as its assignment has followed.
    tally.pushes.clear()
    world[TypeUrl.CDS]["a"] = make.cluster("a", connect_timeout_s=3)
    server.cache.publish(world)
    await until(lambda: len(tally.pushes) == 6)
    pushes = {name: [push[1:3] for push in tally.pushes if push[0] == name] for name in tally.streams}
    assert pushes["steady"] == [("CDS", 2), ("EDS", 1)], "state of the world has all clusters"
    assert pushes["strict"] == pushes["wobbly"] == [("CDS", 1), ("EDS", 1)]
    for process in (steady, strict, wobbly):
        await assert_nothing_waited(process)
    await change_a_weight(80)

    assert len(tally.refusals) == 1
    assert tally.streams == {"steady": 1, "strict": 1, "wobbly": 2}


async def test_pings_on_an_idle_connection_are_no_offence(tmp_path: Path) -> None:
    async with xds_server() as server:
        server.cache.publish(make.world({"a": {20_001: 5}}, listen_on=free_port()))
        async with envoy("n1", server.port, tmp_path, delta=True, load_reports=False):
            await asyncio.sleep(1.5)  # without the server's options, gRPC hangs up after half a second
            assert server.tally.streams == {"n1": 1}


class Traffic:
    """What clients of an Envoy have got, all the time."""

    def __init__(self, port: int) -> None:
        self.answers: Counter[tuple[int, str]] = Counter()
        self._url = f"http://127.0.0.1:{port}/"

    async def run(self) -> None:
        async with aiohttp.ClientSession() as session:
            while True:
                async with session.get(self._url) as answer:
                    self.answers[answer.status, await answer.text()] += 1
                await asyncio.sleep(0.002)

    async def until_mostly(self, body: str, samples: int = 50) -> None:
        """Wait until so many answers in a row, nearly all, come from one engine."""
        async with asyncio.timeout(10):
            while True:
                before = self.answers.copy()
                enough = self.answers.total() + samples
                await until(lambda enough=enough: self.answers.total() >= enough)
                if (self.answers - before)[200, body] > 0.9 * samples:
                    return

    def failures(self) -> dict[tuple[int, str], int]:
        return {answer: count for answer, count in self.answers.items() if answer[0] != 200}


@asynccontextmanager
async def traffic(port: int) -> AsyncIterator[Traffic]:
    clients = Traffic(port)
    tasks = [asyncio.create_task(clients.run()) for _ in range(4)]
    try:
        yield clients
    finally:
        for task in tasks:
            task.cancel()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(outcome, asyncio.CancelledError) for outcome in outcomes), outcomes


def says(name: str) -> Script:
    return lambda request, body: Body(body=name.encode())


@both
async def test_a_killed_server_comes_back_and_nobody_notices(tmp_path: Path, *, delta: bool) -> None:
    listen_on = free_port()
    first = XdsServer()
    await first.start()
    async with engines(says("one"), says("two")) as (one, two):
        mostly_one, mostly_two = {one.port: 1000, two.port: 1}, {one.port: 1, two.port: 1000}
        first.cache.publish(make.world({"a": mostly_one}, listen_on=listen_on))
        async with envoy("n1", first.port, tmp_path, delta=delta) as process, traffic(listen_on) as clients:
            await clients.until_mostly("one")
            await first.kill()
            await clients.until_mostly("one")

            second = XdsServer()
            await second.start(first.port)
            try:
                await until(lambda: second.tally.streams["n1"], what="Envoy has come back")
                await clients.until_mostly("one")
                assert second.tally.pushes == [], "a server that knows nothing yet says nothing"
                second.cache.publish(make.world({"a": mostly_one}, listen_on=listen_on))
                if not delta:
                    await until(lambda: second.tally.acks["n1", "EDS"])
                second.cache.assign("a", make.weights("a", mostly_two))
                await until_in_force(process, "a", mostly_two)
                assert not delta or [(type_name, count) for _, type_name, count, _ in second.tally.pushes] == [
                    ("EDS", 1)
                ]
                await clients.until_mostly("two")
                await assert_nothing_waited(process)
            finally:
                await second.stop()
            assert not second.tally.refusals
        assert clients.failures() == {}


@both
async def test_one_pool_replaces_another_and_no_request_fails(tmp_path: Path, *, delta: bool) -> None:
    listen_on = free_port()
    async with xds_server() as server, engines(says("one"), says("two")) as (one, two):
        server.cache.publish(make.world({"old": {one.port: 1}}, listen_on=listen_on))
        async with envoy("n1", server.port, tmp_path, delta=delta) as process, traffic(listen_on) as clients:
            for pool, port, body in [("new", two.port, "two"), ("old", one.port, "one")] * 3:
                server.cache.publish(make.world({pool: {port: 1}}, listen_on=listen_on))
                await clients.until_mostly(body, samples=20)
            await assert_nothing_waited(process)
            removed = await process.stats("cluster_manager.cluster_removed")
            await until(lambda: len([push for push in server.tally.pushes if push[1] == "CDS"]) >= 13)
            assert removed["cluster_manager.cluster_removed"] >= 5
        assert clients.failures() == {}
        assert not server.tally.refusals


async def _get(session: aiohttp.ClientSession, port: int) -> None:
    await session.get(f"http://127.0.0.1:{port}/")


@asynccontextmanager
async def open_requests(port: int, count: int) -> AsyncIterator[None]:
    """So many requests that wait for an answer."""
    async with aiohttp.ClientSession() as session:
        tasks = [asyncio.create_task(_get(session, port)) for _ in range(count)]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def test_load_is_reported_while_there_is_some_and_when_there_is_none(tmp_path: Path) -> None:
    listen_on = free_port()
    async with xds_server() as server, engines(lambda request, body: Hang()) as (engine,):
        loads = server.loads
        server.cache.publish(make.world({"a": {engine.port: 1}}, listen_on=listen_on))
        async with envoy("n1", server.port, tmp_path, delta=True) as process:
            for count in (3, 2):
                async with open_requests(listen_on, count):
                    await until(lambda: loads and loads[-1].in_flight == {engine.address: count})  # noqa: B023
                    assert (loads[-1].node, loads[-1].pool) == ("n1", "a")
                await until(lambda: not any(loads[-1].in_flight.values()))
            before = len(loads)
            await until(lambda: len(loads) > before + 3, what="reports of an idle Envoy")
            async with open_requests(listen_on, 1):
                await until(lambda: loads[-1].in_flight == {engine.address: 1})
                os.kill(process.pid, signal.SIGKILL)
                await until(lambda: "n1" not in server.lrs._nodes)
            assert loads[-1].in_flight == {engine.address: 1}
