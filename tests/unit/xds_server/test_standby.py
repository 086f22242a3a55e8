"""The standby without an Envoy: what it serves, and when it sends its clients away."""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import grpc.aio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.harness import until
from tests.xds import resources as make
from tests.xds.clients import DeltaEnvoy, StateOfTheWorldEnvoy
from tests.xds.server import XdsServer, joined, open_stream, xds_server
from xds_server.ads.mirror import Mirror
from xds_server.ads.snapshot import Snapshot, SnapshotCache, TypeUrl
from xds_server.standby import Standby
from xds_server.view_file import ViewFile

WORLD = make.world({"a": {8001: 5, 8002: 7}})

HEALTH = "/grpc.health.v1.Health/Check"
SERVING = b"\x08\x01"


def snapshot(world: make.Published = WORLD) -> Snapshot:
    cache = SnapshotCache()
    cache.publish(world)
    assert cache.snapshot is not None
    return cache.snapshot


@asynccontextmanager
async def standing_by(primary: int | Mirror, file: Path | None) -> AsyncIterator[int]:
    """A running standby for the server at a port, and the port that it serves on."""
    mirror = Mirror(f"127.0.0.1:{primary}", "standby@test") if isinstance(primary, int) else primary
    standby = Standby(mirror, ViewFile(file) if file else None)
    server = grpc.aio.server()
    standby.ads.add_to(server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    task = asyncio.create_task(standby.run())
    try:
        yield port
    finally:
        task.cancel()
        standby.ads.close()
        await server.stop(None)


async def served(port: int, client: DeltaEnvoy | StateOfTheWorldEnvoy, world: make.Published) -> None:
    client.begin()
    async with joined(port, client):
        await until(lambda: client.has == world)


async def healthy(port: int) -> bool:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        answer: bytes = await channel.unary_unary(HEALTH)(b"")
        return answer == SERVING


async def until_healthy(port: int) -> None:
    await until(lambda: healthy(port), 5)


@pytest.mark.parametrize("client", [StateOfTheWorldEnvoy, DeltaEnvoy])
async def test_the_last_view_outlives_the_control_plane_and_the_standby(
    tmp_path: Path, client: type[DeltaEnvoy | StateOfTheWorldEnvoy]
) -> None:
    file = tmp_path / "state.json.view"
    async with xds_server() as primary:
        primary.cache.publish(WORLD)
        async with standing_by(primary.port, file) as port:
            await until_healthy(port)
            primary.cache.assign("a", changed := make.weights("a", {8001: 6}))
            last = {**WORLD, TypeUrl.EDS: {"a": changed}}
            await until(lambda: (kept := ViewFile(file).read()) and kept[0] == last)
            await primary.kill()
            await served(port, client(), last)
        async with standing_by(primary.port, file) as port:
            await served(port, client(), last)


async def test_without_a_view_it_is_not_healthy_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with xds_server() as primary, standing_by(primary.port, tmp_path / "view") as port:
        assert not await healthy(primary.port)  # nothing is published yet
        assert not await healthy(port)
        assert "no view is kept yet" in caplog.text
        primary.cache.publish(WORLD)
        assert await healthy(primary.port)
        await until_healthy(port)


async def test_clients_are_sent_away_while_the_control_plane_answers(tmp_path: Path) -> None:
    ViewFile(tmp_path / "view").write(snapshot())
    primary = XdsServer()
    primary.cache.publish(WORLD)
    await primary.start()
    try:
        async with (
            standing_by(primary.port, tmp_path / "view") as port,
            grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
        ):
            client = DeltaEnvoy()
            client.begin()
            call = open_stream(channel, client)
            await call.write(client.outbox.popleft())
            async with asyncio.timeout(5):
                while await call.read() is not grpc.aio.EOF:
                    pass
            assert await call.code() is grpc.StatusCode.OK
    finally:
        await primary.stop()


class Told(Mirror):
    """A replica that has what the test says."""

    told: Mapping[str, Mapping[str, bytes]] = {}
    answers = True

    @property
    def resources(self) -> Mapping[str, Mapping[str, bytes]]:
        return self.told


async def test_a_change_that_is_half_told_is_not_taken(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    mirror = Told("127.0.0.1:1", "standby@test")
    mirror.told = {**WORLD, TypeUrl.EDS: {}}
    async with standing_by(mirror, None) as port:
        await until(lambda: "half way" in caplog.text)
        assert not await healthy(port)
        mirror.told = WORLD
        await until_healthy(port)
        mirror.told = {**WORLD, TypeUrl.CDS: {}}
        await until(lambda: caplog.text.count("half way") == 2)
        await served(port, DeltaEnvoy(), WORLD)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_damaged_file_is_said_and_not_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, data: st.DataObject
) -> None:
    file = ViewFile(tmp_path / "view")
    file.write(snapshot())
    whole = (tmp_path / "view").read_bytes()
    place = data.draw(st.integers(0, len(whole) - 1))
    damaged = data.draw(
        st.sampled_from(
            [whole[:place], whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :], whole + b"x", b"\xff\n"]
        )
    )
    (tmp_path / "view").write_bytes(damaged)
    caplog.clear()
    assert file.read() is None
    (record,) = caplog.records
    assert str(tmp_path / "view") in record.message


def test_what_is_written_is_read_and_no_file_is_no_fault(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = ViewFile(tmp_path / "new" / "view")
    assert file.read() is None
    assert caplog.records == []
    file.write(snapshot())
    kept = file.read()
    assert kept is not None
    assert kept[0] == WORLD
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["view"]
