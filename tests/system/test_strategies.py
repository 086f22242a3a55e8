"""Every strategy behind real Envoy, swapped by the policy file alone under one control plane."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.harness import EnvoyProcess, until
from tests.system.load import failures, steady
from tests.system.stack import Engines, Trimtab, policy_for, running
from tests.unit.scoring.strategies import POLICIES
from trimtab.policy import load_policy
from trimtab.sim.client import replay
from xds_server.config.bootstrap import render_bootstrap

pytestmark = pytest.mark.integration

# Those that take a step every few seconds take one every few intervals here.
QUICK = {"wdrm": {"step_s": 0.2}, "decode_p99": {"step_s": 0.2}}


async def in_envoy(envoy: EnvoyProcess) -> dict[str, int]:
    """The weights by which Envoy itself says that it balances."""
    clusters = json.loads(await envoy.admin_get("/clusters?format=json"))["cluster_statuses"]
    hosts = [host for cluster in clusters if cluster["name"] == "sim" for host in cluster["host_statuses"]]
    places = [host["address"]["socket_address"] for host in hosts]
    return {
        f"{place['address']}:{place['port_value']}": host["weight"] for place, host in zip(places, hosts, strict=True)
    }


async def swap(serve: Trimtab, name: str, numbers: dict[str, Any]) -> None:
    """Write another strategy into the policy file, and wait until it is in force."""
    serve.policy["pools"][0]["scoring"] = numbers
    serve.write_policy()

    async def is_in_force() -> bool:
        return bool((await serve.page("/policy"))["pools"][0]["scoring"]["strategy"] == name)

    await until(is_in_force, 15)


async def test_each_strategy_moves_the_weights_of_a_running_envoy(tmp_path: Path) -> None:
    """Three engines, of which the last is slow. Nothing is restarted, and no request fails."""
    engines = Engines(tmp_path, ["a100", "rtx4090", "a100"])
    async with running(engines):
        policy = policy_for(
            engines,
            capacities=[10, 4, 10],
            signals={"scrape_interval_ms": 300, "scrape_timeout_ms": 300},
        )
        policy["ext_proc"] |= {"full_stream_percent": 100}
        serve = Trimtab(tmp_path, "serve", policy)
        loaded = load_policy(serve.policy_file)
        envoy = EnvoyProcess(render_bootstrap(loaded), loaded.services.envoy_admin, tmp_path)
        await serve.start()
        try:
            await envoy.start()
            await serve.wait_serving()
            await engines.fault(2, "slow", factor=4)
            process = serve.pid
            for name, scoring in POLICIES.items():
                before = await serve.metric("trimtab_xds_pushes_total", type="EDS")
                await swap(serve, name, {**scoring.model_dump(mode="json"), **QUICK.get(name, {})})
                results = await replay(serve.url, steady(25, 0.4, output_tokens=10), model="sim", seed=1)
                assert failures(results) == [], name
                decided = await serve.endpoints()
                weights = await in_envoy(envoy)
                assert await serve.metric("trimtab_xds_pushes_total", type="EDS") > before, f"{name} pushed nothing"
                assert weights.keys() == decided.keys(), name
                assert len(set(weights.values())) > 1, (name, weights)
            assert (serve.alive, serve.pid) == (True, process)
        finally:
            await serve.stop()
            await envoy.stop()
    assert "Traceback" not in serve.log()
