"""At the rates of inference, where requests are rarer than pushes, picks follow the weights: on real Envoy."""

import asyncio
import json
from pathlib import Path

import aiohttp
import pytest

from tests.harness import engines, tokens, until
from tests.system.stack import Trimtab, running
from trimtab.lab.local_stack import on_free_ports

pytestmark = [pytest.mark.integration, pytest.mark.alone]

STARTS, REQUESTS, EVERY_S = 4, 80, 0.13


async def test_equal_engines_get_what_their_weights_say(tmp_path: Path) -> None:
    """Two engines alike, of which one is declared larger; as many pools as fresh starts, each with its own seed."""
    pools = [f"start-{number}" for number in range(STARTS)]
    quick = [lambda request, body: tokens(2, 0.02, 0.01)] * (2 * STARTS)
    async with engines(*quick) as started:
        policy = {
            **on_free_ports(),
            "ext_proc": {"cpu_budget_cores": 64},
            "pools": [
                {
                    "name": name,
                    "models": [name],
                    "signals": {"scrape": False},
                    "endpoints": [
                        {"address": engine.address, "capacity": capacity}
                        for engine, capacity in zip(started[2 * number :], (3, 2), strict=False)
                    ],
                }
                for number, name in enumerate(pools)
            ],
        }
        trimtab = Trimtab(tmp_path, "up", policy)
        async with running(trimtab), aiohttp.ClientSession() as session:
            await until(lambda: "ready" in trimtab.log(), 20)

            async def ask(name: str) -> None:
                body = {"model": name, "stream": True, "messages": [{"role": "user", "content": "hi"}]}
                async with session.post(f"{trimtab.url}/v1/chat/completions", json=body) as answer:
                    assert answer.status == 200
                    await answer.read()

            expected: dict[str, list[float]] = {name: [] for name in pools}
            for _ in range(REQUESTS):
                page = await trimtab.page("/endpoints")
                for number, name in enumerate(pools):
                    rows = {row["name"]: row for row in page["pools"][name]["endpoints"]}
                    expected[name].append(rows[started[2 * number].address]["share"])
                await asyncio.gather(*(ask(name) for name in pools), asyncio.sleep(EVERY_S))
        got = {name: len(started[2 * number].calls) for number, name in enumerate(pools)}
        print(json.dumps({name: (got[name], round(sum(expected[name]), 1)) for name in pools}))
        for name in pools:
            sigma = sum(share * (1 - share) for share in expected[name]) ** 0.5
            assert abs(got[name] - sum(expected[name])) <= 3.5 * sigma
        everything = sum(sum(shares) for shares in expected.values())
        sigma = sum(share * (1 - share) for shares in expected.values() for share in shares) ** 0.5
        assert abs(sum(got.values()) - everything) <= 3.5 * sigma
