"""Discovery through the whole system: real Envoy, simulated engines, streams that must not notice."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.harness import until
from tests.system.load import failures
from tests.system.stack import Engines, Trimtab, on_free_ports, running
from tests.unit.xds_server.discovery.kubernetes_api import kubernetes_api, pod
from trimtab.sim.client import replay
from trimtab.sim.trace import Request

pytestmark = [pytest.mark.integration, pytest.mark.alone]


def policy(section: dict[str, Any]) -> dict[str, Any]:
    return {**on_free_ports(), "pools": [{"name": "sim", "discovery": section}]}


async def seen(trimtab: Trimtab, expected: set[str], deadline_s: float) -> dict[str, dict[str, Any]]:
    """The endpoints, as soon as these (by address) take work and no others do."""
    rows: dict[str, dict[str, Any]] = {}

    async def are_seen() -> bool:
        nonlocal rows
        rows = await trimtab.endpoints()
        return {row["address"] for row in rows.values() if row["takes_work"]} == expected

    await until(are_seen, deadline_s)
    return rows


async def test_no_stream_notices_that_the_endpoints_are_others(tmp_path: Path) -> None:
    engines = Engines(tmp_path, ["a100", "a100", "a100", "a100"])
    path = tmp_path / "endpoints.json"

    def write(addresses: Sequence[str]) -> None:
        part = path.with_suffix(".part")
        part.write_text(json.dumps([{"address": address} for address in addresses]))
        part.replace(path)

    async with running(engines):
        old, new = engines.addresses[:2], engines.addresses[2:]
        write(old)
        trimtab = Trimtab(tmp_path, "up", policy({"file": {"path": str(path)}}))
        async with running(trimtab):
            await trimtab.wait_serving()
            requests = [Request(0.02 * number, 50, 100) for number in range(150)]
            load = asyncio.create_task(replay(trimtab.url, requests, model="sim", seed=1, cut_after_last_s=30))
            await asyncio.sleep(1)
            write(new)
            await seen(trimtab, set(new), 1.5)
            path.write_text("nonsense: [")
            await asyncio.sleep(0.6)
            page = await trimtab.page("/endpoints")
            results = await load
            attempts = await trimtab.metric("trimtab_attempts_total", endpoint=old[0])
    assert failures(results) == []
    assert {result.engine for result in results} == set(engines.names)
    discovery = page["pools"]["sim"]["discovery"]
    assert discovery["found"] == 2 and discovery["stale_since"]
    assert discovery["why"].startswith(f"{path}:1:")
    assert attempts == 0, "an endpoint that is gone has no series"


async def test_a_pod_that_is_terminating_ends_its_streams_and_gets_no_new_ones(tmp_path: Path) -> None:
    engines = Engines(tmp_path, ["a100", "a100"])
    async with running(engines), kubernetes_api() as api:
        ports = [int(address.rpartition(":")[2]) for address in engines.addresses]
        for name, port in zip("ab", ports, strict=True):
            await api.put("pods", pod(name, "127.0.0.1", port=port))
        section = {"kubernetes": {"selector": "app=vllm", "namespace": "llm", "api": api.url}}
        trimtab = Trimtab(tmp_path, "up", policy(section))
        async with running(trimtab):
            await trimtab.wait_serving()
            await seen(trimtab, set(engines.addresses), 10)
            requests = [Request(0.02 * number, 50, 100) for number in range(150)]
            load = asyncio.create_task(replay(trimtab.url, requests, model="sim", seed=2, cut_after_last_s=30))
            await asyncio.sleep(1)
            await api.put("pods", pod("a", "127.0.0.1", port=ports[0], leaving=True))
            rows = await seen(trimtab, {engines.addresses[1]}, 1)
            assert rows["a"]["state"] == "draining" and rows["a"]["reason"] == "draining: terminating"
            await asyncio.sleep(0.3)
            taken = len(await engines.attempts(0))
            results = await load
            assert len(await engines.attempts(0)) == taken > 0
            await api.delete("pods", "a")
            await seen(trimtab, {engines.addresses[1]}, 1)
            assert "a" not in await trimtab.endpoints()
    assert failures(results) == []
