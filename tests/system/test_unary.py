"""Requests that are not streamed teach a pool as much as streamed ones: on unlike engines, through real Envoy."""

import asyncio
import json
from pathlib import Path

import aiohttp
import pytest

from tests.harness import until
from tests.system.stack import Engines, Trimtab, running
from trimtab.lab.local_stack import on_free_ports

pytestmark = [pytest.mark.integration, pytest.mark.alone]

RATE, SECONDS = 8.0, 20.0
POOLS = {"streamed": True, "unary": True, "streamed-unread": False, "unary-unread": False}  # whether metrics are read


async def test_unary_and_streamed_work_is_spread_alike(tmp_path: Path) -> None:
    engines = {name: Engines(tmp_path, ["a100", "cpu"], name) for name in POOLS}
    async with running(*engines.values()):
        pools = [
            {
                "name": name,
                "models": [name],
                "endpoints": [{"address": address} for address in engines[name].addresses],
                "signals": {"scrape": is_read},
            }
            for name, is_read in POOLS.items()
        ]
        trimtab = Trimtab(tmp_path, "up", {**on_free_ports(), "ext_proc": {"cpu_budget_cores": 64}, "pools": pools})
        async with running(trimtab), aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            await until(lambda: "ready" in trimtab.log(), 20)

            async def ask(name: str, number: int) -> None:
                words = "word " * (50 + 7 * number % 300)
                body = {
                    "model": name,
                    "stream": name.startswith("streamed"),
                    "max_tokens": 20 + 13 * number % 30,
                    "messages": [{"role": "user", "content": words}],
                }
                async with session.post(f"{trimtab.url}/v1/chat/completions", json=body) as answer:
                    assert answer.status == 200, await answer.text()
                    await answer.read()

            async with asyncio.TaskGroup() as tasks:
                for number in range(round(RATE * SECONDS)):
                    for name in POOLS:
                        tasks.create_task(ask(name, number))
                    await asyncio.sleep(1 / RATE)
            shares = {}
            for name in POOLS:
                a100, cpu = [len(await engines[name].attempts(number)) for number in (0, 1)]
                shares[name] = a100 / (a100 + cpu)
                rows = await trimtab.endpoints(name)
                print(name, a100, cpu)
                assert all(row["ttft_s"] for row in rows.values()), "every endpoint shows a TTFT"
        print(json.dumps(shares))
        assert shares["unary"] == pytest.approx(shares["streamed"], abs=0.1)
        # An answer says what its engine costs only when it ends, and by then a slow one has more of them.
        assert shares["unary-unread"] == pytest.approx(shares["streamed-unread"], abs=0.13)
