"""Endpoints that answer at once and without model output get no work, and bad callers put nobody out: on real Envoy."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from tests.harness import DONE, Body, Chunks, FakeEngine, Step, engines, error, tokens, until
from tests.system.stack import Trimtab, running
from trimtab.lab.local_stack import on_free_ports

pytestmark = [pytest.mark.integration, pytest.mark.alone]

JSON = {"content-type": "application/json"}
STREAM = {"content-type": "text/event-stream"}
COMPLETION = json.dumps(
    {
        "object": "chat.completion",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "hello"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 9, "completion_tokens": 10, "total_tokens": 19},
    }
).encode()
ERROR = json.dumps({"error": {"message": "Internal error", "type": "InternalServerError", "code": 500}}).encode()

BROKEN: Mapping[str, Step] = {
    "json-error": Body(200, ERROR, JSON),
    "not-found": error(404, "The model `m` does not exist.", "NotFoundError"),
    "unauthorized": Body(401, b'{"error": "Unauthorized"}', JSON),
    "html": Body(200, b"<!doctype html><html><body>Welcome</body></html>", {"content-type": "text/html"}),
    "done-alone": Chunks([(0, DONE)]),
    "empty-stream": Body(200, b"", STREAM),
    "bad-request": error(400, "This model has no chat template.", "BadRequestError"),
    "no-content": Body(204, b"", {}),
    "redirect": Body(307, b"", {"location": "/elsewhere"}),
    "wrong-type": Body(200, b"ok", {"content-type": "text/plain"}),
    "binary": Body(200, b"\x00\x01\x02", {"content-type": "application/octet-stream"}),
    "truncated-json": Body(200, COMPLETION[:60], JSON),
    "error-event": Chunks([(0, b"data: " + ERROR + b"\n\n"), (0, DONE)]),
    "foreign-json": Body(200, b'{"status": "ok"}', JSON),
    "empty-json": Body(200, b"{}", JSON),
    "server-error": error(500, "boom", "InternalServerError"),
}
RATE, SECONDS, JUDGED_FROM_S = 6.0, 11.0, 6.0


def well(request: web.Request, body: bytes) -> Step:
    """A stream whose first token comes after 0.3 s, or a whole answer after that."""
    if b'"bad"' in body:
        return error(400, "max_tokens must be at least 1", "BadRequestError")
    return tokens(3, first_s=0.3, gap_s=0.02) if b'"stream": true' in body else Body(200, COMPLETION, JSON, after_s=0.4)


def broken(step: Step) -> Callable[[web.Request, bytes], Step]:
    return lambda request, body: step


@dataclass
class Row:
    """A pool of three engines, of which the third is broken, and what became of its requests."""

    name: str
    engines: Sequence[FakeEngine]
    answered: list[bool] = field(default_factory=list)
    calls_before: int = 0  # of the broken engine, when it is judged from

    @property
    def late_share(self) -> float:
        """The broken engine's part of all attempts of the last seconds."""
        return (len(self.engines[2].calls) - self.calls_before) / ((SECONDS - JUDGED_FROM_S) * RATE)


@asynccontextmanager
async def rows(
    folder: Path, broken_ones: Mapping[str, Step], **pool: Any
) -> AsyncIterator[tuple[Trimtab, Sequence[Row]]]:
    async with AsyncExitStack() as stack:
        made = []
        for name, step in broken_ones.items():
            started = await stack.enter_async_context(engines(well, well, broken(step)))
            made.append(Row(name, started))
        policy = {
            **on_free_ports(),
            "ext_proc": {"cpu_budget_cores": 64},
            "pools": [
                {
                    "name": row.name,
                    "models": [row.name],
                    "endpoints": [{"address": engine.address} for engine in row.engines],
                    "signals": {"scrape": False},
                    **pool,
                }
                for row in made
            ],
        }
        trimtab = Trimtab(folder, "up", policy)
        await stack.enter_async_context(running(trimtab))
        await until(lambda: serves(trimtab), 30, "Envoy serves")
        async with aiohttp.ClientSession() as session:
            await ask(session, trimtab.url, made[0].name)  # the first call to a service waits for its connection
        yield trimtab, made


async def serves(trimtab: Trimtab) -> bool:
    try:
        async with aiohttp.ClientSession() as session, session.get(f"{trimtab.url}/v1/models") as answer:
            return answer.status == 200
    except aiohttp.ClientError:
        return False


async def ask(session: aiohttp.ClientSession, url: str, model: str, **more: Any) -> bool:
    """Whether one request is answered with model output."""
    body = {"model": model, "stream": True, "messages": [{"role": "user", "content": "hello there"}], **more}
    async with session.post(f"{url}/v1/chat/completions", json=body, allow_redirects=False) as answer:
        text = await answer.read()
        return answer.status == 200 and (b"token " in text or b'"hello"' in text)


async def load(trimtab: Trimtab, made: Sequence[Row]) -> None:
    """The same steady load to every row, and note where the last seconds begin."""

    async def one(row: Row) -> None:
        row.answered.append(await ask(session, trimtab.url, row.name))

    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session, asyncio.TaskGroup() as tasks:
        for number in range(round(RATE * SECONDS)):
            if number == round(RATE * JUDGED_FROM_S):
                for row in made:
                    row.calls_before = len(row.engines[2].calls)
            for row in made:
                tasks.create_task(one(row))
            await asyncio.sleep(1 / RATE)


async def test_whoever_fails_fast_gets_next_to_nothing(tmp_path: Path) -> None:
    async with rows(tmp_path, BROKEN) as (trimtab, made):
        await load(trimtab, made)
        reasons = {row.name: (await trimtab.endpoints(row.name))[row.engines[2].address]["reason"] for row in made}
        shares = {row.name: round(row.late_share, 3) for row in made}
        calls = {row.name: len(row.engines[2].calls) for row in made}
        print(json.dumps({"shares": shares, "calls": calls, "reasons": reasons}, indent=1))
        assert {name: share for name, share in shares.items() if share > 0.03} == {}
        assert "got 404 here, 0 of " in reasons["not-found"]
        assert reasons["not-found"].split(", ")[1].endswith("elsewhere: is the model loaded?")
        assert "requests got 404 here" in trimtab.log()


async def test_behind_the_gate_no_client_hears_of_it(tmp_path: Path) -> None:
    # What is retried by its status alone, and what nobody reads.
    refused = {name: step for name, step in BROKEN.items() if name not in ("server-error", "binary")}
    async with rows(tmp_path, refused, gate={"enabled": True}) as (trimtab, made):
        await load(trimtab, made)
        shares = {row.name: round(row.late_share, 3) for row in made}
        failed = {row.name: row.answered.count(False) for row in made}
        print(json.dumps({"shares": shares, "failed": failed}, indent=1))
        assert {name: share for name, share in shares.items() if share > 0.03} == {}
        assert sum(failed.values()) < 0.01 * sum(len(row.answered) for row in made)


async def test_a_caller_of_bad_requests_puts_nobody_out(tmp_path: Path) -> None:
    """50 bad requests a second beside 5 good ones, with and without the gate."""
    async with AsyncExitStack() as stack:
        pools = {}
        for name, gate in (("plain", False), ("gated", True)):
            pools[name] = await stack.enter_async_context(engines(well, well, well)), gate
        policy = {
            **on_free_ports(),
            "ext_proc": {"cpu_budget_cores": 64},
            "pools": [
                {
                    "name": name,
                    "models": [name],
                    "endpoints": [{"address": engine.address} for engine in started],
                    "signals": {"scrape": False},
                    "gate": {"enabled": gate},
                }
                for name, (started, gate) in pools.items()
            ],
        }
        trimtab = Trimtab(tmp_path, "up", policy)
        await stack.enter_async_context(running(trimtab))
        await until(lambda: serves(trimtab), 30, "Envoy serves")
        states: Counter[str] = Counter()
        good: list[bool] = []
        session = await stack.enter_async_context(aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)))

        async def well_asked(name: str) -> None:
            good.append(await ask(session, trimtab.url, name))

        async with asyncio.TaskGroup() as tasks:
            for number in range(9 * 50):
                for name in pools:
                    tasks.create_task(ask(session, trimtab.url, name, max_tokens=0, user="bad"))
                    if number % 10 == 0:
                        tasks.create_task(well_asked(name))
                if number % 25 == 0:
                    for name in pools:
                        states.update(row["state"] for row in (await trimtab.endpoints(name)).values())
                await asyncio.sleep(0.02)
        assert states.keys() <= {"up", "slow-start"}, states
        assert all(good)
        for started, gate in pools.values():
            bad = sum(
                isinstance(call.step, Body) and call.step.status == 400 for engine in started for call in engine.calls
            )
            assert bad < (1.2 if gate else 1.01) * 450, "they are not tried again and again"
