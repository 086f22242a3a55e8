"""Length classes in front of engines: what is in flight is counted per endpoint, whatever cluster it came through."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.harness import until
from tests.system.load import failures
from tests.system.rig import observed
from tests.system.stack import Engines, policy_for, running
from trimtab.endpoint.snapshot import EndpointView
from trimtab.sim.client import replay
from trimtab.sim.trace import Request

pytestmark = pytest.mark.integration

CLASSES = [{"name": "short", "up_to_tokens": 128}, {"name": "medium", "up_to_tokens": 1024}, {"name": "long"}]


async def test_leases_balance_over_classes_and_when_the_classes_change(tmp_path: Path) -> None:
    engines = Engines(tmp_path, ["a100", "a100"])
    burst = [Request(0.02 * number, (30, 500, 3000)[number % 3], 500) for number in range(18)]
    wait_s = 2  # for so long a cluster that is no class's any more is kept
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(running(engines))
        policy = policy_for(engines, classes=CLASSES)
        policy["listen"]["stream_idle_timeout_s"] = wait_s
        plane, worker, envoy = await stack.enter_async_context(observed(tmp_path, policy))

        def views() -> list[EndpointView]:
            return [row.view for row in plane.decisions["sim"].endpoints]

        def in_flight() -> int:
            return sum(view.in_flight for view in views())

        def reported() -> int | None:
            numbers = [view.in_flight_reported for view in views()]
            return None if None in numbers else sum(filter(None, numbers))

        load = asyncio.create_task(replay(worker.url, burst, model="sim", seed=1, cut_after_last_s=30))
        await until(lambda: in_flight() == reported() == len(burst), 5, "all streams in flight, by both counts")
        assert plane.decisions["sim"].classes == ("short", "medium", "long")
        worker.policy["pools"][0]["classes"] = [CLASSES[0], CLASSES[2]]
        worker.write_policy()
        await until(lambda: plane.decisions["sim"].classes == ("short", "long"), 5, "the other classes")
        await asyncio.sleep(wait_s / 2)
        assert await envoy.stats("cluster.sim/medium.upstream_rq_active")
        assert reported() == len(burst)
        await until(lambda: (reported() or 0) < len(burst), wait_s + 8, "a cluster less")
        await asyncio.sleep(1)
        assert not load.done() and in_flight() == len(burst)
        assert failures(await load) == []
        await until(lambda: in_flight() == reported() == 0, 5, "all leases given back")
        assert {view.lease_difference for view in views()} == {0}
