"""An engine whose worker is stopped, in front of real Envoy: its health and metrics answer, and no client meets it."""

import asyncio
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from tests.harness import until
from tests.system.load import failures, steady
from tests.system.stack import Engines, Trimtab, running
from trimtab.lab.local_stack import on_free_ports
from trimtab.sim.client import replay

pytestmark = pytest.mark.integration

INTERVAL_S = 1.6


@asynccontextmanager
async def front(worker: str) -> AsyncIterator[str]:
    """The API process of vLLM: it takes requests and opens streams itself, and shows what its worker last told it."""
    page = b""

    async def show(request: web.Request) -> web.Response:
        nonlocal page
        try:
            async with asyncio.timeout(0.1), session.get(f"http://{worker}/metrics") as answer:
                page = await answer.read()
        except TimeoutError:
            pass
        return web.Response(body=page)

    async def health(request: web.Request) -> web.Response:
        return web.Response()

    async def generate(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        body = await request.json()
        async with session.post(f"http://{worker}{request.path}", json=body) as answer:
            async for chunk in answer.content.iter_any():
                await response.write(chunk)
        return response

    app = web.Application()
    app.router.add_get("/metrics", show)
    app.router.add_get("/health", health)
    app.router.add_post("/{path:.*}", generate)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0)
    async with aiohttp.ClientSession() as session:
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        try:
            yield f"127.0.0.1:{runner.addresses[0][1]}"
        finally:
            await runner.cleanup()


async def test_a_stopped_worker(tmp_path: Path) -> None:
    for name in ("worker", "well"):
        (tmp_path / name).mkdir()
    worker, well = Engines(tmp_path / "worker", ["a100"]), Engines(tmp_path / "well", ["a100"])
    async with running(worker, well), front(worker.addresses[0]) as hung:
        pool = {
            "name": "sim",
            "models": ["sim"],
            "endpoints": [{"address": hung}, {"address": well.addresses[0]}],
            "probe": {"interval_s": INTERVAL_S, "deadline_ms": 400},
        }
        trimtab = Trimtab(tmp_path, "up", {**on_free_ports(), "pools": [pool]})

        async def becomes(state: str, timeout_s: float) -> float:
            async def is_it() -> bool:
                return (await trimtab.endpoints())[hung]["state"] == state

            began = time.monotonic()
            await until(is_it, timeout_s)
            return time.monotonic() - began

        async def is_known() -> bool:
            probed = await trimtab.metric("trimtab_probes_total", endpoint=hung, result="token")
            return probed >= 1 and (await trimtab.endpoints())[hung]["signals_age_s"] is not None

        async with running(trimtab):
            await trimtab.wait_serving()
            await until(is_known)
            worker.send(signal.SIGSTOP)
            assert await becomes("down", 10) < 2 * INTERVAL_S + 1, "the second is for a busy machine"
            row = (await trimtab.endpoints())[hung]
            assert (row["takes_work"], row["probe"]["result"]) == (False, "silent")
            assert row["signals_age_s"] < 3, "its page is read as ever"
            await asyncio.sleep(0.5)  # until Envoy knows
            results = await replay(trimtab.url, steady(10, 1), model="sim", seed=1)
            assert failures(results) == []
            assert await trimtab.metric("trimtab_ttft_seconds_count", endpoint=hung) == 0, "probes are not traffic"
            assert await trimtab.metric("trimtab_probe_ttft_seconds_count", endpoint=hung) >= 1
            worker.send(signal.SIGCONT)
            await becomes("up", 10)
