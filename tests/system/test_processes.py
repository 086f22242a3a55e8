"""What happens to traffic when a process of ours is stopped or killed."""

import asyncio
import signal
import time
from pathlib import Path

import pytest

from tests.harness import EnvoyProcess, until
from tests.system.load import failures, steady
from tests.system.rig import observed
from tests.system.stack import Engines, Trimtab, policy_for, running
from trimtab.policy import load_policy
from trimtab.sim.client import Result, replay
from trimtab.sim.trace import Request
from xds_server.config.bootstrap import render_bootstrap

pytestmark = pytest.mark.integration


async def test_traffic_goes_on_when_the_python_process_is_killed(tmp_path: Path) -> None:
    """No client sees an error; after the restart the weights go on from where they were."""
    engines = Engines(tmp_path, ["a100", "rtx4090", "a100"])
    async with running(engines):
        policy = policy_for(engines, capacities=[10, 4, 10], scoring={"strategy": "health"})
        state_file = tmp_path / "state.json"
        policy["state_file"] = str(state_file)
        serve = Trimtab(tmp_path, "serve", policy)
        loaded = load_policy(serve.policy_file)
        envoy = EnvoyProcess(render_bootstrap(loaded), loaded.services.envoy_admin, tmp_path)
        await serve.start()
        try:
            await envoy.start()
            await serve.wait_serving()
            await engines.fault(2, "slow", factor=20)
            async with asyncio.TaskGroup() as tasks:
                trace = steady(20, 14, output_tokens=5)
                load = tasks.create_task(replay(serve.url, trace, model="sim", seed=1))
                await learned(serve, slow=engines.addresses[2])
                now = time.time()
                await until(lambda: state_file.exists() and state_file.stat().st_mtime > now, 10, "it is kept")
                before = shares(await serve.endpoints())
                serve.send(signal.SIGKILL)
                await serve.ended()
                await asyncio.sleep(1)
                await serve.start()
                await until(lambda: "serving xDS" in serve.log().rpartition("serving xDS")[0], 20, "the restart")
                await asyncio.sleep(1.5)
                after = shares(await serve.endpoints())
            clients = (await serve.page("/clients"))["clients"]
        finally:
            await serve.stop()
            await envoy.stop()
    assert failures(load.result()) == []
    assert len(clients) == 1
    assert before[engines.addresses[2]] < before[engines.addresses[0]]
    # The ramp lets a score rise by 15 points a second.
    for address, share in after.items():
        assert abs(share - before[address]) < 0.15, (before, after)


async def test_sigterm_lets_streams_end_and_takes_no_new_ones(tmp_path: Path) -> None:
    """Envoy and the services end together, when the last answer is out, with status 0. A SIGHUP ends nothing."""
    engines = Engines(tmp_path, ["a100"])
    async with running(engines):
        trimtab = Trimtab(tmp_path, "up", policy_for(engines))
        async with running(trimtab):
            await trimtab.wait_serving()
            async with asyncio.TaskGroup() as tasks:
                load = tasks.create_task(replay(trimtab.url, [Request(0, 100, 300)], model="sim", seed=1))
                trimtab.send(signal.SIGHUP)
                await until(lambda: in_flight(trimtab))
                trimtab.send(signal.SIGTERM)
                await until(lambda: is_closed(trimtab))
                assert not load.done()
            assert await trimtab.ended() == 0
    assert failures(load.result()) == []


async def in_flight(trimtab: Trimtab) -> int:
    return sum(row["in_flight"] for row in (await trimtab.endpoints()).values())


async def is_closed(trimtab: Trimtab) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", trimtab.policy["listen"]["port"])
    except ConnectionRefusedError:
        return True
    writer.close()
    return False


async def learned(serve: Trimtab, *, slow: str) -> None:
    """Wait until one endpoint has lost a fifth of what the best has."""

    async def has_lost() -> bool:
        found = shares(await serve.endpoints())
        return found[slow] <= 0.8 * max(found.values())

    await until(has_lost)


def shares(endpoints: dict[str, dict[str, float]]) -> dict[str, float]:
    return {name: row["share"] for name, row in endpoints.items()}


@pytest.mark.alone
async def test_a_stopped_observer_delays_no_stream(tmp_path: Path) -> None:
    """`trimtab ext-proc` is stopped for 5 s: answered streams do not notice, errors wait the time-out at most."""
    stop_at, resume_at, end = 2.0, 7.0, 8.0
    engines = Engines(tmp_path, ["a100", "a100", "a100"])
    async with running(engines), observed(tmp_path, policy_for(engines)) as (plane, worker, _):
        reject_timeout_s = plane.policy.ext_proc.reject_timeout_ms / 1000
        # The number of its prompt tokens tells a request apart in the engines' own log.
        trace = [
            Request(number / 20, prompt_tokens=100 + number, output_tokens=20) for number in range(round(20 * end))
        ]
        async with asyncio.TaskGroup() as tasks:
            load = tasks.create_task(replay(worker.url, trace, model="sim", seed=1))
            await asyncio.sleep(stop_at)
            worker.send(signal.SIGSTOP)
            await asyncio.sleep(1)
            await engines.fault(0, "saturate_503", for_s=resume_at - stop_at - 2)  # a 429 unread may be a quota
            await asyncio.sleep(resume_at - stop_at - 1)
            worker.send(signal.SIGCONT)
        results = load.result()
        told = [attempt for number in range(3) for attempt in await engines.attempts(number)]
    assert failures(results) == []
    refused = {attempt["prompt_tokens"] for attempt in told if attempt["status"] == 503}
    assert refused
    own = {
        attempt["prompt_tokens"]: attempt["first_token_at"] - attempt["arrived_at"]
        for attempt in told
        if attempt["first_token_at"]
    }

    def delays(from_s: float, to_s: float, *, retried: bool) -> list[float]:
        return sorted(
            delay(result, own)
            for result in results
            if from_s <= result.request.arrival_s < to_s and (result.request.prompt_tokens in refused) is retried
        )

    control = delays(0, stop_at, retried=False)
    stopped = delays(stop_at, resume_at, retried=False)
    assert stopped[-1] <= control[-1] + 0.1, (control[-3:], stopped[-3:])
    back_off_s = plane.policy.pools[0].retries.back_off_base_ms / 1000
    late = delays(stop_at, resume_at, retried=True)
    assert late[-1] <= control[-1] + 0.1 + 2 * (reject_timeout_s + back_off_s), late[-3:]


def delay(result: Result, own: dict[int, float]) -> float:
    """How much later the client had its first token than it would have had from the engine alone, seconds."""
    assert result.sent_s is not None
    return result.token_s[0] - result.sent_s - own[result.request.prompt_tokens]
