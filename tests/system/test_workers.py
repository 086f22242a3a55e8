"""Several observing processes, IPv6, unix sockets, and an environment that names a proxy."""

from pathlib import Path

import pytest

from tests.harness import free_port, until
from tests.system.load import failures, steady
from tests.system.stack import Engines, Trimtab, policy_for, running
from trimtab.sim.client import replay

pytestmark = pytest.mark.integration


async def test_workers_see_every_attempt(tmp_path: Path) -> None:
    """Three workers behind one address, the control plane on a unix socket, clients on IPv6."""
    engines = Engines(tmp_path, ["a100", "a100"])
    async with running(engines):
        policy = policy_for(engines)
        policy["ext_proc"] |= {"workers": 3}
        policy["listen"]["address"] = "::1"
        policy["services"]["xds"] = f"unix:{tmp_path}/xds.sock"
        trimtab = Trimtab(tmp_path, "up", policy)
        trimtab.url = trimtab.url.replace("127.0.0.1", "[::1]")
        async with running(trimtab):
            await trimtab.wait_serving()
            before = await trimtab.metric("trimtab_ttft_seconds_count")
            results = await replay(trimtab.url, steady(20, 3, output_tokens=5), model="sim", seed=1)
            assert failures(results) == []

            async def all_seen() -> bool:
                return await trimtab.metric("trimtab_ttft_seconds_count") - before == len(results)

            await until(all_seen, what="every first token is counted once")


async def test_workers_report_without_the_proxy_of_the_environment(tmp_path: Path) -> None:
    """Nothing listens at the proxy, so what would go through it never arrives."""
    proxy = f"http://127.0.0.1:{free_port()}"
    env = {**dict.fromkeys(("http_proxy", "https_proxy", "all_proxy", "grpc_proxy"), proxy), "no_proxy": ""}
    engines = Engines(tmp_path, ["a100", "a100"])
    async with running(engines):
        policy = policy_for(engines)
        policy["ext_proc"] |= {"workers": 2}
        trimtab = Trimtab(tmp_path, "up", policy, env=env)
        async with running(trimtab):
            await trimtab.wait_serving()
            results = await replay(trimtab.url, steady(20, 1, output_tokens=5), model="sim", seed=1)
            assert failures(results) == []

            async def all_seen() -> bool:
                return await trimtab.metric("trimtab_ttft_seconds_count") == len(results)

            await until(all_seen, what="every first token has arrived")
