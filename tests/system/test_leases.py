"""Leases and first tokens when a part goes away while streams run: what is in flight is in flight, no more, no less."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.harness import EnvoyProcess, until
from tests.system.load import failures, steady
from tests.system.rig import SeeingPlane, observed
from tests.system.stack import Engines, Trimtab, policy_for, running
from trimtab.endpoint.snapshot import EndpointView
from trimtab.sim.client import Result, replay
from trimtab.sim.trace import Request

pytestmark = pytest.mark.integration

STREAMS = 20
_STOPPED_S = 3.5


@dataclass
class Stack:
    """The parts, and what was known of the endpoints at each moment."""

    engines: Engines
    plane: SeeingPlane
    worker: Trimtab
    envoy: EnvoyProcess
    past: list[list[EndpointView]] = field(default_factory=list)

    @property
    def views(self) -> list[EndpointView]:
        return [row.view for row in self.plane.decisions["sim"].endpoints]

    @property
    def in_flight(self) -> int:
        return sum(view.in_flight for view in self.views)

    @property
    def reported(self) -> int | None:
        """By Envoy's own count."""
        numbers = [view.in_flight_reported for view in self.views]
        return None if None in numbers else sum(filter(None, numbers))

    async def send(self, output_tokens: int) -> asyncio.Task[list[Result]]:
        """Streams that have started when this returns."""
        burst = [Request(0.01 * number, 50, output_tokens) for number in range(STREAMS)]
        task = asyncio.create_task(replay(self.worker.url, burst, model="sim", seed=1, cut_after_last_s=30))
        await until(lambda: self.in_flight == self.reported == STREAMS, 5, "all streams in flight")
        return task

    async def drop(self, load: asyncio.Task[list[Result]]) -> None:
        """The clients leave in the middle of their streams."""
        assert not load.done()
        load.cancel()
        await until(lambda: self.in_flight == 0, 5, "all ends")

    async def watch(self) -> None:
        while True:
            self.past.append(self.views)
            await asyncio.sleep(0.1)

    def ever(self, of: Callable[[EndpointView], float]) -> float:
        """The largest that has been seen since the start."""
        return max(abs(of(view)) for views in self.past for view in views)


@asynccontextmanager
async def stack(folder: Path) -> AsyncIterator[Stack]:
    engines = Engines(folder, ["a100", "a100"])
    async with running(engines), observed(folder, policy_for(engines)) as (plane, worker, envoy):
        parts = Stack(engines, plane, worker, envoy)
        watching = asyncio.create_task(parts.watch())
        try:
            yield parts
        finally:
            watching.cancel()


async def test_streams_keep_their_leases_when_reports_stop_and_when_the_cluster_is_changed(tmp_path: Path) -> None:
    async with stack(tmp_path) as parts:
        load = await parts.send(1200)
        begun = len(parts.past)
        lrs = parts.plane._lrs
        lrs.close()
        await until(lambda: parts.reported is None, 5, "reports missed")
        lrs._closed.clear()
        await until(lambda: parts.reported == STREAMS, 15, "reports again")
        parts.worker.policy["ext_proc"] |= {"reject_timeout_ms": 120}  # is in the cluster
        parts.worker.write_policy()
        await until(lambda: parts.reported == 0, 5, "the new cluster")
        await asyncio.sleep(2)
        assert {sum(view.in_flight for view in views) for views in parts.past[begun:]} == {STREAMS}
        await parts.drop(load)
    assert parts.ever(lambda view: view.lease_difference) == 0


async def test_a_killed_envoy_gives_its_leases_back(tmp_path: Path) -> None:
    async with stack(tmp_path) as parts:
        load = await parts.send(2000)
        os.kill(parts.envoy.pid, signal.SIGKILL)
        await load
        await parts.envoy.start()
        await until(lambda: parts.reported == parts.in_flight == 0, 15, "leases given back")


async def test_what_a_stopped_observer_left_goes_without_new_traffic(tmp_path: Path) -> None:
    """It is stopped, the streams end unseen, it is killed: nobody will ever tell of those ends."""
    async with stack(tmp_path) as parts:
        load = await parts.send(150)
        parts.worker.send(signal.SIGSTOP)
        assert failures(await load) == []
        parts.worker.send(signal.SIGKILL)
        await parts.worker.ended()
        await until(lambda: parts.in_flight == 0, 5, "leases given back")


async def test_streams_whose_token_nobody_saw_do_not_look_silent(tmp_path: Path) -> None:
    """The ext_proc worker is killed while streams wait for their first token, and is back soon."""
    async with stack(tmp_path) as parts:
        for number in range(2):
            await parts.engines.fault(number, "ping_first", seconds=3)
        load = await parts.send(800)
        parts.worker.send(signal.SIGKILL)
        await parts.worker.ended()
        await parts.worker.start()
        await asyncio.sleep(4)
        assert parts.in_flight == STREAMS
        assert parts.ever(lambda view: view.oldest_wait_s) < 3
        await parts.drop(load)


@asynccontextmanager
async def one_process(folder: Path, engines: Engines) -> AsyncIterator[Trimtab]:
    trimtab = Trimtab(folder, "up", policy_for(engines))
    async with running(trimtab):
        await trimtab.wait_serving()
        yield trimtab


@asynccontextmanager
async def worker_apart(folder: Path, engines: Engines) -> AsyncIterator[Trimtab]:
    async with observed(folder, policy_for(engines)) as (_, worker, _):
        yield worker


@pytest.mark.alone
@pytest.mark.parametrize("started", [one_process, worker_apart])
async def test_tokens_that_waited_for_a_stopped_observer_are_not_taken_for_slow(
    tmp_path: Path, started: Callable[[Path, Engines], AbstractAsyncContextManager[Trimtab]]
) -> None:
    engines = Engines(tmp_path, ["a100", "a100"])
    slowest = 0.0
    async with running(engines), started(tmp_path, engines) as worker:
        load = asyncio.create_task(replay(worker.url, steady(20, 30, output_tokens=60), model="sim", seed=1))

        async def until_samples(least: int) -> None:
            """Wait until each endpoint has so many first tokens, and keep the slowest that is shown meanwhile."""
            nonlocal slowest
            samples = 0
            while samples < least:
                assert not load.done(), f"{samples} first tokens"
                rows = (await worker.endpoints()).values()
                slowest = max([slowest, *(max(row["ttft_s"] or 0, row["oldest_wait_s"]) for row in rows)])
                samples = min(row["ttft_samples"] for row in rows)
                await asyncio.sleep(0.02)

        await until_samples(5)
        worker.send(signal.SIGSTOP)
        await asyncio.sleep(_STOPPED_S)
        worker.send(signal.SIGCONT)
        await until_samples(15)
        load.cancel()
    assert slowest < _STOPPED_S / 2
