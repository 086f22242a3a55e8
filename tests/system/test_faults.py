"""What must be seen of an endpoint that turns bad, through real Envoy, in front of three like engines at 25 req/s."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.system.load import failures, share, steady
from tests.system.stack import Engines, Trimtab, policy_for, running
from trimtab.sim.client import replay

pytestmark = [pytest.mark.integration, pytest.mark.alone]

RATE = 25.0


@pytest.fixture
async def engines(tmp_path: Path) -> AsyncIterator[Engines]:
    engines = Engines(tmp_path, ["a100", "a100", "a100"])
    async with running(engines):
        yield engines


@pytest.mark.parametrize("strategy", ["predicted_ttft", pytest.param("health", marks=pytest.mark.soak)])
async def test_a_slow_endpoint_loses_work_and_gets_it_back(tmp_path: Path, engines: Engines, strategy: str) -> None:
    """10 times slower: half the share within 5 s. Healed: back within the ramp's time (100/50 s) plus 3 s."""
    slow_start_points_per_s = 50
    trimtab = Trimtab(
        tmp_path,
        "up",
        policy_for(
            engines, scoring={"strategy": strategy}, weighting={"slow_start_points_per_s": slow_start_points_per_s}
        ),
    )
    slow_at, healed_at, end = 2.0, 9.5, 17.0
    async with running(trimtab):
        await trimtab.wait_serving()
        async with asyncio.TaskGroup() as tasks:
            load = tasks.create_task(replay(trimtab.url, steady(RATE, end), model="sim", seed=1))
            await asyncio.sleep(slow_at)
            await engines.fault(0, "slow", factor=10)
            await asyncio.sleep(healed_at - slow_at)
            await engines.fault(0, "none")
    results = load.result()
    name = engines.names[0]
    before = share(results, name, 0, slow_at)
    assert before == pytest.approx(1 / 3, abs=0.12)
    assert share(results, name, slow_at + 5, healed_at) <= before / 2
    assert (
        share(results, name, healed_at + 100 / slow_start_points_per_s + 3, end) >= 0.6 * before
    )  # of some 60 requests
    assert failures(results) == []


async def test_endpoints_that_refuse_fast_get_no_traffic(tmp_path: Path, engines: Engines) -> None:
    """Two of three, one with 429 and one with 503."""
    trimtab = Trimtab(tmp_path, "up", policy_for(engines))
    full_at, end = 2.0, 12.0
    async with running(trimtab):
        await trimtab.wait_serving()
        async with asyncio.TaskGroup() as tasks:
            load = tasks.create_task(replay(trimtab.url, steady(RATE, end), model="sim", seed=2))
            await asyncio.sleep(full_at)
            await engines.fault(0, "saturate_429")
            await engines.fault(1, "saturate_503")
        saturated = await trimtab.metric("trimtab_rejections_total", verdict="saturated")
        loops = await trimtab.metric("trimtab_loop_seconds_count", pool="sim", source="reject")
        loops_s = await trimtab.metric("trimtab_loop_seconds_sum", pool="sim", source="reject")
        refused = [
            [attempt["arrived_at"] for attempt in await engines.attempts(number) if attempt["status"] == status]
            for number, status in enumerate((429, 503))
        ]
    assert saturated == sum(map(len, refused))
    assert 0 < loops_s < 0.25 * loops
    for arrivals in refused:
        late = [at for at in arrivals if at - arrivals[0] > 3]
        assert len(late) < 0.05 * RATE * (end - full_at - 3)
    wrong = failures(load.result())
    assert len(wrong) <= 0.005 * RATE * end, wrong


async def test_an_engine_that_hangs_with_its_health_green_gets_no_traffic(tmp_path: Path, engines: Engines) -> None:
    """Out within 5 s. Healed, it answers what it held back, so it need not wait for its breaker: back within 5 s."""
    trimtab = Trimtab(tmp_path, "up", policy_for(engines))
    name = engines.names[0]
    hung_at, healed_at, end = 2.0, 8.0, 17.0
    async with running(trimtab):
        await trimtab.wait_serving()
        async with asyncio.TaskGroup() as tasks:
            load = tasks.create_task(replay(trimtab.url, steady(20, end), model="sim", seed=6))
            await asyncio.sleep(hung_at)
            await engines.fault(0, "hang_before_headers")
            await asyncio.sleep(healed_at - hung_at)
            out = (await trimtab.endpoints())[engines.addresses[0]]
            await engines.fault(0, "none")
        silent = await trimtab.metric("trimtab_failure_signals_total", signal="silent")
        sent = [attempt["arrived_at"] for attempt in await engines.attempts(0)]
    assert (out["state"], out["takes_work"]) == ("open", False)
    assert "no token for" in out["reason"]
    assert silent == 1
    start = sent[0]
    assert not [at - start for at in sent if hung_at + 5 < at - start < healed_at - 0.2]
    results = load.result()
    assert share(results, name, healed_at + 5, end) > 0.15
    assert failures(results) == []


async def test_a_callers_quota_costs_an_endpoint_nothing(tmp_path: Path, engines: Engines) -> None:
    trimtab = Trimtab(tmp_path, "up", policy_for(engines, scoring={"strategy": "health"}))
    async with running(trimtab):
        await trimtab.wait_serving()
        await replay(trimtab.url, steady(RATE, 1.5), model="sim", seed=3)
        before = {name: row["weight"] for name, row in (await trimtab.endpoints()).items()}
        await engines.fault(0, "quota_429", share=0.5)
        await replay(trimtab.url, steady(RATE, 4), model="sim", seed=4)
        after = {name: row["weight"] for name, row in (await trimtab.endpoints()).items()}
        quota = await trimtab.metric("trimtab_rejections_total", verdict="quota")
    assert quota > 10
    assert after[engines.addresses[0]] >= 0.9 * before[engines.addresses[0]]


@pytest.mark.soak  # weighting's own tests have it in virtual time
async def test_engines_that_were_all_full_come_back_together(tmp_path: Path, engines: Engines) -> None:
    """The first whose cool-down ends must not get all the work: it would be full again, and so on in turn."""
    trimtab = Trimtab(tmp_path, "up", policy_for(engines))
    full_at, healed_at, end = 2.0, 4.0, 13.0
    async with running(trimtab):
        await trimtab.wait_serving()
        async with asyncio.TaskGroup() as tasks:
            load = tasks.create_task(replay(trimtab.url, steady(RATE, end), model="sim", seed=5))
            await asyncio.sleep(full_at)
            for number in range(3):
                await engines.fault(number, "saturate_429")
            await asyncio.sleep(healed_at - full_at)
            for number in range(3):
                await engines.fault(number, "none")
    results = load.result()
    assert failures([result for result in results if result.request.arrival_s > healed_at + 0.5]) == []
    for second in range(int(healed_at) + 1, int(end) - 2):
        assert max(share(results, name, second, second + 2) for name in engines.names) < 0.75
