"""`trimtab standby` beside a real Envoy, while the control plane is killed and comes back."""

import json
import signal
import time
from pathlib import Path

import aiohttp
import pytest

from tests.harness import Body, EnvoyProcess, engines, error, free_port, until
from tests.system.stack import Trimtab, running
from trimtab.lab.local_stack import on_free_ports
from trimtab.policy import load_policy
from xds_server.config.bootstrap import render_bootstrap

pytestmark = pytest.mark.integration

full = error(503, "KV cache exhausted", "KVCacheFullError")


async def hosts(envoy: EnvoyProcess) -> dict[int, tuple[int, str]]:
    """Port → weight and health as they came over EDS."""
    for cluster in json.loads(await envoy.admin_get("/clusters?format=json"))["cluster_statuses"]:
        if cluster["name"] == "sim":
            return {
                host["address"]["socket_address"]["port_value"]: (
                    host["weight"],
                    host["health_status"]["eds_health_status"],
                )
                for host in cluster["host_statuses"]
            }
    return {}


async def until_draining(serve: Trimtab, envoy: EnvoyProcess, port: int) -> None:
    """Send requests until the endpoint has refused one and is out."""
    async with aiohttp.ClientSession() as session:

        async def is_out() -> bool:
            async with session.post(f"{serve.url}/v1/completions", json={"model": "sim", "prompt": "x"}) as answer:
                await answer.read()
            return (await hosts(envoy))[port][1] == "DRAINING"

        await until(is_out)


async def until_client(serve: Trimtab, timeout_s: float = 10) -> dict[str, object]:
    """The one client that the control plane shows, once it is there."""

    async def clients() -> list[dict[str, object]]:
        return list((await serve.page("/clients"))["clients"])

    (client,) = await until(clients, timeout_s)
    return dict(client)


async def test_an_envoy_that_starts_alone_serves_as_before_and_goes_back(tmp_path: Path) -> None:
    async with engines(*[lambda request, body: Body()] * 2, lambda request, body: full) as three:
        pool = {
            "name": "sim",
            "endpoints": [{"address": engine.address, "capacity": 1 + number} for number, engine in enumerate(three)],
            "scoring": {"strategy": "health"},
            "weighting": {"cool_down_min_s": 60, "cool_down_max_s": 60},
            "signals": {"scrape": False},
        }
        policy = {**on_free_ports(), "state_file": str(tmp_path / "state.json"), "pools": [pool]}
        policy["services"]["standby"] = f"127.0.0.1:{free_port()}"
        view = tmp_path / "state.json.view"
        view.write_bytes(b"garbage\n")
        standby, serve = Trimtab(tmp_path, "standby", policy), Trimtab(tmp_path, "serve", policy)
        loaded = load_policy(serve.policy_file)
        envoy = EnvoyProcess(render_bootstrap(loaded), loaded.services.envoy_admin, tmp_path)

        async def has_the_first_alone() -> bool:
            return (await hosts(envoy)).keys() == {three[0].port}

        async with running(standby, serve):
            try:
                await until(lambda: standby.log().count("its view is kept") == 1, 20)
                assert standby.log().count(f"{view} is not used") == 1
                assert standby.log().count("no view is kept yet") == 1

                await envoy.start()
                await serve.wait_serving()
                client = await until_client(serve)
                await until_draining(serve, envoy, three[2].port)
                before = await hosts(envoy)
                assert len({weight for weight, _ in before.values()}) == 3

                standby.send(signal.SIGKILL)
                await standby.ended()
                await standby.start()
                await until(lambda: standby.log().count("its view is kept") == 2, 20)
                assert (await until_client(serve))["since"] == client["since"]

                serve.send(signal.SIGKILL)
                await serve.ended()
                await envoy.stop()
                started = time.monotonic()
                await envoy.start()
                await serve.wait_serving()
                assert time.monotonic() - started < 2
                assert await hosts(envoy) == before

                await serve.start()
                await until(lambda: serve.log().count("serving xDS") == 2, 20)
                await until_client(serve)
                pool["endpoints"] = pool["endpoints"][:1]
                serve.write_policy()
                await until(has_the_first_alone, 5)
                listeners = await envoy.stats("listener_manager.listener_(added|modified|removed)$")
                assert sum(listeners.values()) == 1
            finally:
                await envoy.stop()
