"""What clients see of engines that hang or refuse, and of an ext_proc worker that stops, at 20 req/s through three
engines.
"""

import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.harness import until
from tests.system.load import failures, steady
from tests.system.rig import observed
from tests.system.stack import Engines, Trimtab, policy_for, running
from trimtab.sim.client import Result, replay

pytestmark = [pytest.mark.integration, pytest.mark.alone]

RATE = 20.0
DEADLINE_S = 1.0
GATE = {"enabled": True, "first_token_deadline_ms": round(DEADLINE_S * 1000)}


@pytest.fixture
async def engines(tmp_path: Path) -> AsyncIterator[Engines]:
    engines = Engines(tmp_path, ["a100", "a100", "a100"])
    async with running(engines):
        yield engines


async def running_sequences(engines: Engines, number: int) -> int:
    url = f"http://{engines.addresses[number]}/control/state"
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        return int((await answer.json())["running"])


async def attempts_of(engines: Engines) -> int:
    return sum([len(await engines.attempts(number)) for number in range(3)])


async def load(trimtab: Trimtab, seconds: float, seed: int) -> list[Result]:
    return list(await replay(trimtab.url, steady(RATE, seconds), model="sim", seed=seed))


def worst_ttft_s(results: list[Result]) -> float:
    return max(result.ttft_s for result in results)


async def test_an_engine_that_hangs_with_its_health_green_costs_the_deadline_and_nothing_else(
    tmp_path: Path, engines: Engines
) -> None:
    trimtab = Trimtab(tmp_path, "up", policy_for(engines, gate=GATE))
    async with running(trimtab):
        await trimtab.wait_serving()
        usual = await load(trimtab, 2, seed=1)
        await engines.fault(0, "hang_after_headers")
        hung = await load(trimtab, 5, seed=2)
        gone = await trimtab.metric("trimtab_gate_releases_total", release="gone")
        # The late attempt is cancelled at its deadline, and the engine frees it.
        assert await running_sequences(engines, 0) == 0
    assert failures([*usual, *hung]) == []
    assert gone > 0
    # The machine is shared: what is usual on it now is the measure.
    assert DEADLINE_S <= worst_ttft_s(hung) <= DEADLINE_S + worst_ttft_s(usual) + 0.2


async def test_retries_save_what_one_engine_refuses_and_are_not_wasted_when_all_do(
    tmp_path: Path, engines: Engines
) -> None:
    trimtab = Trimtab(tmp_path, "up", policy_for(engines, gate=GATE))
    async with running(trimtab):
        await trimtab.wait_serving()
        await load(trimtab, 1, seed=1)
        await engines.fault(0, "saturate_503")
        one = await load(trimtab, 5, seed=2)
        before = await attempts_of(engines)
        for number in range(3):
            await engines.fault(number, "saturate_503")
        everyone = await load(trimtab, 5, seed=3)
        made = await attempts_of(engines) - before
    assert len(failures(one)) <= 0.005 * len(one)
    assert len(failures(everyone)) == len(everyone)
    assert made < 1.2 * len(everyone)


async def test_an_observer_that_stops_costs_a_moment_and_no_request(tmp_path: Path, engines: Engines) -> None:
    policy: dict[str, Any] = policy_for(engines, gate=GATE | {"first_token_deadline_ms": 10_000})
    async with observed(tmp_path, policy) as (_, worker, envoy):
        usual = await load(worker, 1, seed=1)

        async def is_used() -> int:
            return (await envoy.stats(r"^cluster\.trimtab_ext_proc\.membership_healthy$")).popitem()[1]

        worker.send(signal.SIGSTOP)
        try:
            noticing = await load(worker, 5, seed=2)
            assert not await is_used()
            stopped = await load(worker, 1, seed=3)
        finally:
            worker.send(signal.SIGCONT)
        await until(is_used)
        worker.send(signal.SIGKILL)
        killed = await load(worker, 2, seed=4)
    for results in (usual, noticing, stopped, killed):
        assert failures(results) == []
    assert worst_ttft_s(noticing) < worst_ttft_s(usual) + 1.5
    assert max(worst_ttft_s(stopped), worst_ttft_s(killed)) < worst_ttft_s(usual) + 0.5
