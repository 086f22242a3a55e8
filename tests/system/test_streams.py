"""Streams under changing weights, and bursts over unequal ones."""

import asyncio
import random
import time
from collections import Counter
from pathlib import Path

import grpc.aio
import pytest

from tests.harness import EnvoyProcess, until
from tests.system.load import failures
from tests.system.stack import Engines, Trimtab, policy_for, running
from trimtab.observation.kinds import AttemptEnded, AttemptStarted, FirstToken, Outcome
from trimtab.policy import Policy, load_policy
from trimtab.pool import EndpointSpec, PoolController
from trimtab.sim.client import replay
from trimtab.sim.trace import Request
from xds_server.ads.server import AdsService
from xds_server.ads.snapshot import SnapshotCache, TypeUrl
from xds_server.ads.transport import SERVER_OPTIONS
from xds_server.config import static_resources
from xds_server.config.bootstrap import render_bootstrap
from xds_server.config.endpoints import EndpointWeight, build_assignment
from xds_server.state_file import StateFile

pytestmark = pytest.mark.integration


async def test_200_streams_while_weights_change_and_an_endpoint_comes_and_goes(tmp_path: Path) -> None:
    """Every byte arrives and none is mixed (C1): the client knows each stream's text."""
    engines = Engines(tmp_path, ["a100", "rtx4090", "a100"])
    async with running(engines):
        policy = Trimtab(tmp_path, "serve", policy_for(engines))
        loaded = load_policy(policy.policy_file)
        cache = SnapshotCache()
        cache.publish({**static_resources(loaded), TypeUrl.EDS: {"sim": assignment(engines.addresses, [1, 1, 1])}})
        server = grpc.aio.server(options=SERVER_OPTIONS)
        ads = AdsService(cache)
        ads.add_to(server)
        server.add_insecure_port(loaded.services.xds)
        await server.start()
        envoy = EnvoyProcess(render_bootstrap(loaded), loaded.services.envoy_admin, tmp_path, concurrency=2)
        await envoy.start()
        try:
            async with asyncio.TaskGroup() as tasks:
                shaking = tasks.create_task(shake(cache, engines.addresses))
                burst = [Request(0.005 * number, 50, 150) for number in range(200)]
                results = await replay(policy.url, burst, model="sim", seed=1, cut_after_last_s=30)
                shaking.cancel()
            updates = await envoy.stats(r"cluster\.sim\.update_(success|rejected)")
        finally:
            await envoy.stop()
            ads.close()
            await server.stop(1)
    assert failures(results) == []
    assert {result.engine for result in results} == set(engines.names)
    assert updates["cluster.sim.update_success"] > 20
    assert updates.get("cluster.sim.update_rejected", 0) == 0


async def shake(cache: SnapshotCache, addresses: list[str]) -> None:
    """New weights every 100 ms; the last endpoint is away in every other second."""
    rng = random.Random(1)
    for tick in range(600):
        present = addresses if tick // 10 % 2 == 0 else addresses[:-1]
        cache.assign("sim", assignment(present, [rng.randint(1, 10_000) for _ in present]))
        await asyncio.sleep(0.1)


def assignment(addresses: list[str], weights: list[int]) -> bytes:
    hosts = [address.rpartition(":") for address in addresses]
    return build_assignment(
        "sim",
        [
            EndpointWeight(host, int(port), weight, draining=False)
            for (host, _, port), weight in zip(hosts, weights, strict=True)
        ],
    )


@pytest.mark.alone
async def test_a_burst_does_not_herd_to_the_better_of_two(tmp_path: Path) -> None:
    """Scores of about 98 and 70, both idle, 100 requests in one instant: neither gets more than 65 (A2)."""
    engines = Engines(tmp_path, ["a100", "a100"])
    async with running(engines):
        policy = policy_for(engines, scoring={"strategy": "health"})
        policy["state_file"] = str(tmp_path / "state.json")
        trimtab = Trimtab(tmp_path, "up", policy)
        history(load_policy(trimtab.policy_file), {engines.addresses[0]: 0.48, engines.addresses[1]: 1.85})

        async def all_read() -> bool:
            return all(row["signals_age_s"] is not None for row in (await trimtab.endpoints()).values())

        async with running(trimtab):
            await trimtab.wait_serving()
            await until(all_read)
            await asyncio.sleep(0.3)  # a step of the loop
            scores = {name: row["score"] for name, row in (await trimtab.endpoints()).items()}
            results = await replay(trimtab.url, [Request(0, 100, 20)] * 100, model="sim", seed=1)
    assert scores[engines.addresses[0]] == pytest.approx(98, abs=2)
    assert scores[engines.addresses[1]] == pytest.approx(70, abs=3)
    assert failures(results) == []
    counts = Counter(result.engine for result in results)
    assert max(counts.values()) <= 65, counts


def history(policy: Policy, ttfts: dict[str, float]) -> None:
    """Write the state file that a control plane leaves which has seen these TTFTs."""
    now = time.time()
    controller = PoolController(policy.pools[0], random.Random(1))
    controller.set_endpoints(now - 60, [EndpointSpec(address, address) for address in ttfts])
    for number in range(20):
        for address, ttft_s in ttfts.items():
            at, request = now - 50 + number, f"r{number}"
            controller.observe(
                at + 5,
                [
                    AttemptStarted(at, "sim", address, request, 100, True),
                    FirstToken(at + ttft_s, "sim", address, request),
                    AttemptEnded(at + 5, "sim", address, request, at, 200, Outcome.COMPLETE, True, ttft_s),
                ],
            )
            controller.step(at + 5)
    controller.step(now)
    assert policy.state_file is not None
    StateFile(Path(policy.state_file)).write({"sim": controller.dump(now)})
