"""Signs of death that only streams which are read whole can show, through real Envoy."""

import asyncio
from pathlib import Path

import pytest

from tests.harness import until
from tests.system.load import failures, steady
from tests.system.stack import Engines, Trimtab, policy_for, running
from trimtab.sim.client import Outcome, replay
from trimtab.sim.trace import Request

pytestmark = [pytest.mark.integration, pytest.mark.alone, pytest.mark.soak]


async def test_streams_that_stop_and_streams_that_end_too_soon(tmp_path: Path) -> None:
    """An engine hangs amid its streams while nobody else waits, goes on, and then ends streams without their mark."""
    engines = Engines(tmp_path, ["a100", "a100"])
    async with running(engines):
        policy = policy_for(
            engines,
            failure_signals={"stalled_after_s": 2.5},
            weighting={"breaker_open_s": 20},
        )
        policy["ext_proc"] |= {"full_stream_percent": 100}
        trimtab = Trimtab(tmp_path, "up", policy)
        address = engines.addresses[0]

        async def is_in(*states: str) -> bool:
            return (await trimtab.endpoints())[address]["state"] in states

        async def is_streaming() -> bool:
            open_ones = [attempt for attempt in await engines.attempts(0) if attempt["ended_at"] is None]
            return bool(open_ones) and all(attempt["tokens"] for attempt in open_ones)

        async def failure_signals(failure_signal: str) -> float:
            return await trimtab.metric("trimtab_failure_signals_total", endpoint=address, signal=failure_signal)

        async with running(trimtab):
            await trimtab.wait_serving()
            usual = await replay(trimtab.url, steady(20, 1), model="sim", seed=1)
            async with asyncio.TaskGroup() as tasks:
                # Some 7 s of tokens each.
                burst = [Request(0.01 * number, 100, 400) for number in range(10)]
                streams = tasks.create_task(replay(trimtab.url, burst, model="sim", seed=2, cut_after_last_s=30))
                await until(is_streaming, 5)
                await asyncio.sleep(1)  # until the ext_proc workers have it
                await engines.fault(0, "mute")
                await until(lambda: is_in("open"), 15)
                reason = (await trimtab.endpoints())[address]["reason"]
                await engines.fault(0, "none")
                await until(lambda: is_in("slow-start", "up"), 10)
                assert not streams.done(), "tokens brought it back, not the end of a stream"
            assert reason.startswith("open: nothing more of its streams for ")
            assert await failure_signals("stalled") >= 1
            assert failures([*usual, *streams.result()]) == []

            await until(lambda: is_in("up"), 10)
            await engines.fault(0, "end_mid_stream")
            short = await replay(trimtab.url, steady(20, 3), model="sim", seed=3)
            row = (await trimtab.endpoints())[address]
            assert (row["state"], row["takes_work"]) == ("open", False)
            assert row["reason"].startswith("open: a stream ended before its answer did")
            cut = [result for result in short if not result.succeeded]
            assert {(result.outcome, result.engine) for result in cut} == {(Outcome.CUT, engines.names[0])}
            assert await failure_signals("truncated") == len(cut)
            assert len(cut) < 15, "of some 30 that it would have got"
