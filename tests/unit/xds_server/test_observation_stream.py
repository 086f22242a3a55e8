"""The ext_proc workers and the control plane over real gRPC, through stops, kills and floods."""

import asyncio
import contextlib
import logging
import random
import signal
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest

from ext_proc.reporter import Reporter
from tests.harness import until
from tests.unit.xds_server.made import decision
from trimtab.observation.kinds import AttemptEnded, AttemptStarted, FirstToken, Observation, Outcome
from trimtab.observation.wire import to_proto
from trimtab.v1 import observation_stream_pb2 as pb
from trimtab.v1.observation_stream_pb2_grpc import ObservationStreamStub, add_ObservationStreamServicer_to_server
from xds_server.observation_stream import ObservationStreamService

ROOT = Path(__file__).parents[3]


def token(number: int, address: str = "10.0.0.1:80") -> FirstToken:
    return FirstToken(at=1.0, pool="p", address=address, request_id=str(number))


def kinds(count: int, address: str) -> list[Observation]:
    """`count` observations of an ext_proc worker that is told apart by `address`."""
    made: list[Observation] = []
    for i in range(count):
        where = (float(i), "p", address, str(i))
        match i % 3:
            case 0:
                made.append(AttemptStarted(*where, prompt_bytes=i, streamed=True))
            case 1:
                made.append(FirstToken(*where))
            case _:
                made.append(AttemptEnded(*where, float(i), 200, Outcome.COMPLETE, True, 0.5, i, 2 * i))
    return made


class Plane:
    """A control plane in this process that remembers what came."""

    def __init__(self) -> None:
        self.observations: list[Observation] = []
        self.usage: dict[str, list[tuple[float, int, int, int]]] = defaultdict(list)
        self.gone: list[str] = []
        self.service = ObservationStreamService(self.take, self.note, self.gone.append)
        self.target = ""

    def take(self, observations: Sequence[Observation]) -> None:
        assert self.usage, "an ext_proc worker is heard of before what it saw"
        self.observations.extend(observations)

    def note(
        self, worker: str, cpu_seconds: float, watched: int, dropped: int, faults: int, gated: Mapping[str, int]
    ) -> None:
        self.usage[worker].append((cpu_seconds, watched, dropped, faults))

    @property
    def ids(self) -> list[int]:
        return [int(observation.request_id) for observation in self.observations]


@asynccontextmanager
async def serving(plane: Plane, target: str = "127.0.0.1:0") -> AsyncIterator[Plane]:
    server = grpc.aio.server()
    add_ObservationStreamServicer_to_server(plane.service, server)
    port = server.add_insecure_port(target)
    plane.target = target if target.startswith("unix:") else f"127.0.0.1:{port}"
    await server.start()
    try:
        yield plane
    finally:
        plane.service.close()
        await server.stop(5)


@pytest.fixture
async def plane() -> AsyncIterator[Plane]:
    async with serving(Plane()) as plane:
        yield plane


@asynccontextmanager
async def reporting(target: str, worker: str = "o", **options: object) -> AsyncIterator[Reporter]:
    reporter = Reporter(target, worker, **options)
    reporter.start()
    try:
        yield reporter
    finally:
        await reporter.close(grace_s=5)


async def test_a_hundred_thousand_arrive_once_and_in_order(plane: Plane) -> None:
    workers = {f"10.0.0.{i}:80": kinds(25_000, f"10.0.0.{i}:80") for i in range(4)}

    async def observe(name: str, observations: list[Observation]) -> None:
        async with reporting(plane.target, name) as reporter:
            for start in range(0, len(observations), 100):
                reporter.report(observations[start : start + 100])
                await asyncio.sleep(0)

    await asyncio.gather(*(observe(*item) for item in workers.items()))
    received = defaultdict(list)
    for observation in plane.observations:
        received[observation.address].append(observation)
    assert received == workers
    assert all(counters[-1][2] == 0 for counters in plane.usage.values())


async def test_a_batch_waits_for_company_but_not_for_long(plane: Plane) -> None:
    async with reporting(plane.target) as reporter:
        await until(lambda: plane.usage)
        messages = len(plane.usage["o"])
        reporter.report([token(0)])
        await until(lambda: plane.observations)
        for i in range(1, 400):
            reporter.report([token(i)])
        await until(lambda: len(plane.observations) == 400)
    assert len(plane.usage["o"]) - messages <= 4


async def test_counters_come_without_observations(plane: Plane) -> None:
    async with reporting(plane.target, watched=lambda: 7, faults=lambda: 2, cpu_seconds=lambda: 1.5):
        began = time.monotonic()
        await until(lambda: len(plane.usage["o"]) >= 3)
        assert time.monotonic() - began < 5
    assert set(plane.usage["o"]) == {(1.5, 7, 0, 2)}


async def test_an_observer_whose_connection_ends_is_told_as_gone(plane: Plane) -> None:
    async with reporting(plane.target, "one"), reporting(plane.target, "other"):
        await until(lambda: plane.usage.keys() == {"one", "other"})
        assert plane.gone == []
    await until(lambda: sorted(plane.gone) == ["one", "other"])


async def test_a_full_buffer_drops_the_oldest_and_counts(plane: Plane) -> None:
    reporter = Reporter(plane.target, "o", capacity=100)
    reporter.report([token(i) for i in range(1000)])
    assert reporter.dropped == 900
    reporter.start()
    await reporter.close(grace_s=5)
    assert plane.ids == list(range(900, 1000))
    assert plane.usage["o"][-1][2] == 900


async def test_a_stuck_control_plane_never_holds_up_the_observer() -> None:
    """It takes the connection and reads nothing; more is reported than all buffers on the way hold."""
    hole = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    target = f"127.0.0.1:{hole.sockets[0].getsockname()[1]}"
    reporter = Reporter(target, "o", capacity=1000)
    reporter.start()
    began = time.thread_time()
    for start in range(0, 100_000, 100):
        reporter.report([token(i) for i in range(start, start + 100)])
        await asyncio.sleep(0)
    took = time.thread_time() - began
    assert reporter.dropped == 99_000
    await reporter.close(grace_s=0.1)
    hole.close()
    assert took < 5


async def test_close_with_nobody_there_takes_its_grace(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    reporter = Reporter(f"unix:{tmp_path}/nobody", "o")
    reporter.start()
    reporter.report([token(0)])
    await asyncio.sleep(0.5)
    began = time.monotonic()
    await reporter.close(grace_s=0.2)
    assert time.monotonic() - began < 4
    messages = [record.getMessage() for record in caplog.records]
    assert len([m for m in messages if m.startswith("no answer yet from the control plane")]) == 1
    assert messages[-1] == "1 observations were not delivered"


async def test_what_no_message_can_hold_is_dropped_and_said_once(
    plane: Plane, caplog: pytest.LogCaptureFixture
) -> None:
    bad = AttemptStarted(1.0, "p", "a", "r", prompt_bytes=-1, streamed=None)
    async with reporting(plane.target) as reporter:
        reporter.report([token(0), bad, token(1), bad])
        await until(lambda: len(plane.observations) == 2)
        assert reporter.dropped == 2
    assert len([r for r in caplog.records if r.name == "ext_proc.reporter" and r.levelno >= logging.WARNING]) == 1


async def test_states_come_at_once_and_when_they_are_news(plane: Plane) -> None:
    seen: list[pb.PoolStates] = []
    plane.service.publish([decision("p", 1.0, "a:80")])
    async with reporting(plane.target, on_states=seen.append):
        await until(lambda: seen)
        plane.service.publish([decision("p", 2.0, "a:80", "b:80"), decision("q", 2.0)])
        await until(lambda: len(seen) >= 2)
    assert [[(p.pool, p.at, len(p.endpoints)) for p in s.pools] for s in seen] == [
        [("p", 1.0, 1)],
        [("p", 2.0, 2), ("q", 2.0, 0)],
    ]


async def test_a_slow_observer_gets_the_newest_state_only(plane: Plane) -> None:
    names = [f"{'x' * 100}-{i}:80" for i in range(200)]
    async with grpc.aio.insecure_channel(plane.target) as channel:
        call = ObservationStreamStub(channel).Exchange()
        await call.write(pb.ObservationBatch(worker="slow"))
        await call.read()
        for at in range(1, 401):
            plane.service.publish([decision("p", float(at), *names)])
            await asyncio.sleep(0)
        seen = []
        while not seen or seen[-1] < 400:
            states = await call.read()
            seen += [pool.at for pool in states.pools]
        call.cancel()
    assert seen == sorted(seen) and len(seen) < 300


async def test_garbage_is_dropped_and_counted(plane: Plane) -> None:
    async with grpc.aio.insecure_channel(plane.target) as channel:
        call = ObservationStreamStub(channel).Exchange()
        garbage = [
            pb.Observation(),
            pb.Observation(at=1, pool="p", address="a", ended=pb.AttemptEnded(outcome=77)),
        ]
        await call.write(pb.ObservationBatch(worker="o", observations=[*garbage, to_proto(token(3))]))
        assert (await call.read()).received == 3
        await call.done_writing()
    assert plane.ids == [3]
    assert plane.usage["o"] == [(0.0, 0, 2, 0)]


async def test_repeated_observations_are_taken_in_once(plane: Plane) -> None:
    async with grpc.aio.insecure_channel(plane.target) as channel:
        received = []
        for first, numbers in [(0, [0, 1, 2]), (1, [1, 2, 3]), (0, [0, 1]), (6, [6]), (5, [5])]:
            call = ObservationStreamStub(channel).Exchange()
            messages = [to_proto(token(n)) for n in numbers]
            await call.write(pb.ObservationBatch(worker="o", run=1, first=first, observations=messages))
            received.append((await call.read()).received)
            call.cancel()
    assert plane.ids == [0, 1, 2, 3, 6]
    assert received == [3, 4, 4, 7, 7]


async def test_a_restarted_observer_of_the_same_name_is_another_one(plane: Plane) -> None:
    for _ in range(2):
        async with reporting(plane.target, "ext-proc-1") as reporter:
            reporter.report([token(0), token(1)])
    assert plane.ids == [0, 1, 0, 1]


async def test_a_consumer_that_fails_ends_no_stream(plane: Plane, caplog: pytest.LogCaptureFixture) -> None:
    def fail(observations: Sequence[Observation]) -> None:
        plane.observations.extend(observations)
        raise ZeroDivisionError

    plane.service._on_observations = fail
    async with reporting(plane.target) as reporter:
        reporter.report([token(0)])
        await until(lambda: plane.ids == [0])
        reporter.report([token(1)])
        await until(lambda: plane.ids == [0, 1])
    assert "ZeroDivisionError" in caplog.text


async def test_streams_end_when_the_server_stops() -> None:
    plane = Plane()
    async with serving(plane):
        reporter = Reporter(plane.target, "o")
        reporter.start()
        await until(lambda: plane.usage)
        began = time.monotonic()
    assert time.monotonic() - began < 4
    await reporter.close(grace_s=0)


@asynccontextmanager
async def cutting_proxy(target: str, pieces: list[int]) -> AsyncIterator[str]:
    """Forwards to `target`, and cuts a connection after each piece's number of bytes from the client."""
    host, _, port = target.rpartition(":")

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(4096):
                writer.write(data)
                await writer.drain()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection(host, int(port))
        answers = asyncio.create_task(forward(up_reader, writer))
        left = pieces.pop() if pieces else 10**9
        with contextlib.suppress(OSError):
            while left > 0 and (data := await reader.read(min(left, 4096))):
                left -= len(data)
                up_writer.write(data)
                await up_writer.drain()
        answers.cancel()
        for end in (writer, up_writer):
            end.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    server.close()


async def test_cut_connections_neither_lose_nor_repeat(plane: Plane) -> None:
    rng = random.Random(1)
    pieces = [rng.randrange(50_000, 150_000) for _ in range(10)]
    number = 0
    async with cutting_proxy(plane.target, pieces) as target, reporting(target) as reporter:
        for _ in range(2000):
            reporter.report([token(n) for n in range(number, number + 50)])
            number += 50
            await asyncio.sleep(0.005)
            if not pieces:
                break
        await until(lambda: len(plane.ids) >= number, 20)
    assert not pieces
    assert plane.ids == list(range(number))


class Child:
    """The control plane as a process of its own."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.ids: list[int] = []
        self._reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            self.ids += map(int, line.split())

    async def kill(self) -> None:
        self.process.kill()
        await self.process.wait()
        await self._reader


@asynccontextmanager
async def child(target: str) -> AsyncIterator[Child]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.unit.xds_server.observation_server",
        target,
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        assert await process.stdout.readline() == b"listening\n"
        yield Child(process)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def steadily(reporter: Reporter, numbers: range, until_true: Callable[[], object]) -> int:
    """Report a few observations every few milliseconds until the condition holds. Returns the next number."""
    for number in numbers:
        reporter.report([token(number)])
        await asyncio.sleep(0.002)
        if until_true():
            return number + 1
    raise AssertionError("the condition did not come true in time")


async def test_a_killed_control_plane_that_comes_back_misses_nothing(tmp_path: Path) -> None:
    target = f"unix:{tmp_path}/feedback"
    many = 10_000
    async with reporting(target) as reporter:
        async with child(target) as first:
            sent = await steadily(reporter, range(many), lambda: len(first.ids) > 200)
            await first.kill()
        sent = await steadily(reporter, range(sent, many), lambda start=sent: reporter._next < start + 1 or True)
        async with child(target) as second:
            sent = await steadily(reporter, range(sent, many), lambda: second.ids)
            await until(lambda: second.ids[-1] == sent - 1)
            assert reporter.dropped == 0
            assert first.ids == list(range(len(first.ids)))
            assert second.ids == list(range(second.ids[0], sent))
            assert second.ids[0] <= len(first.ids)


async def test_a_stopped_control_plane_that_goes_on_misses_nothing(tmp_path: Path) -> None:
    target = f"unix:{tmp_path}/feedback"
    async with child(target) as plane, reporting(target) as reporter:
        sent = await steadily(reporter, range(10_000), lambda: len(plane.ids) > 100)
        plane.process.send_signal(signal.SIGSTOP)
        for number in range(sent, sent + 20_000):
            reporter.report([token(number)])
            if number % 100 == 0:
                await asyncio.sleep(0.002)
        plane.process.send_signal(signal.SIGCONT)
        await until(lambda: plane.ids and plane.ids[-1] == sent + 20_000 - 1)
        assert plane.ids == list(range(sent + 20_000))
        assert reporter.dropped == 0
