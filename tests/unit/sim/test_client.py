"""The load client against engines that behave, and against some that do not."""

import asyncio
import dataclasses
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable

import aiohttp
import pytest
from aiohttp import web

from tests.unit.sim.conftest import QUICK, Start
from trimtab.sim import words
from trimtab.sim.client import Outcome, Result, replay, summarise
from trimtab.sim.faults import Fault
from trimtab.sim.http import EngineServer
from trimtab.sim.trace import Request

TRACE = [Request(0.02 * number, 10 + 90 * number, 5 + number) for number in range(10)]
Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


async def play(engine: EngineServer, trace: list[Request] = TRACE, **options: float) -> list[Result]:
    return await replay(f"http://{engine.address}", trace, model="tiny", seed=3, **options)  # type: ignore[arg-type]


async def test_every_request_is_answered_and_checked(engine: EngineServer) -> None:
    told: list[tuple[int, Outcome | None, int]] = []
    results = await replay(
        f"http://{engine.address}/",
        TRACE,
        model="tiny",
        seed=3,
        on_event=lambda result: told.append((result.number, result.outcome, len(result.token_s))),
    )
    assert [result.outcome for result in results] == [Outcome.OK] * 10
    assert [len(result.token_s) for result in results] == [request.output_tokens for request in TRACE]
    for number, request in enumerate(TRACE):
        events = [(outcome, tokens) for n, outcome, tokens in told if n == number]
        assert events == [(None, 0), (None, 1), (Outcome.OK, request.output_tokens)]
    attempts = engine.attempts.since(0)["attempts"]
    asked = Counter((attempt["prompt_tokens"], attempt["output_tokens"]) for attempt in attempts)
    assert asked == Counter((request.prompt_tokens, request.output_tokens) for request in TRACE)
    assert {attempt["how"] for attempt in attempts} == {"complete"}, "no connection was dropped before its end"
    for result in results:
        assert result.sent_s is not None
        assert result.sent_s >= result.request.arrival_s
        assert result.ttft_s > 0


async def test_the_summary(start: Start) -> None:
    engine = await start(QUICK, name="gpu-1")
    summary = summarise(await play(engine))
    json.dumps(summary)
    assert (summary["requests"], summary["succeeded"], summary["unfinished"]) == (10, 10, 0)
    assert summary["share"] == {"gpu-1": 10}
    assert summary["errors"] == {}
    assert 5 <= summary["ttft_ms"]["p50"] <= summary["ttft_ms"]["p90"] <= summary["ttft_ms"]["p99"]
    assert summary["output_tokens_per_s"] > 0
    assert set(summary["lateness_ms"]) == {"p50", "p99", "max"}


async def test_it_does_not_wait_for_earlier_answers(engine: EngineServer) -> None:
    engine.set_fault(Fault(kind="hang_after_headers"))
    results = await play(engine, cut_after_last_s=0.2)
    assert all(result.sent_s is not None for result in results)
    assert {result.outcome for result in results} == {Outcome.NO_TOKEN}
    cut_off_s = TRACE[-1].arrival_s + 0.2
    assert [result.ttft_s for result in results] == pytest.approx([cut_off_s - r.arrival_s for r in TRACE])
    summary = summarise(results)
    assert (summary["succeeded"], summary["errors"]) == (0, {"no token": 10})


async def test_a_stream_in_good_order_at_the_cut_off_has_not_failed(engine: EngineServer) -> None:
    (result,) = await play(engine, [Request(0.0, 10, 1500)], cut_after_last_s=0.8)
    assert result.outcome is Outcome.UNFINISHED
    assert 0 < len(result.token_s) < 1500
    assert result.ttft_s < 0.8
    summary = summarise([result])
    assert (summary["succeeded"], summary["unfinished"], summary["errors"]) == (1, 1, {})


@pytest.mark.parametrize(
    ("fault", "outcome", "error"),
    [
        (Fault(kind="saturate_429"), Outcome.HTTP_ERROR, "http 429"),
        (Fault(kind="error_event"), Outcome.ERROR_EVENT, "error event"),
        (Fault(kind="die_mid_stream", after_tokens=2), Outcome.CUT, "cut"),
        (Fault(kind="reset_before_headers"), Outcome.CUT, "cut"),
    ],
)
async def test_failures_are_told_apart(fault: Fault, outcome: Outcome, error: str, engine: EngineServer) -> None:
    engine.set_fault(fault)
    (result,) = await play(engine, TRACE[:1])
    assert result.outcome is outcome
    assert not result.succeeded
    assert summarise([result])["errors"] == {error: 1}


async def test_nobody_there() -> None:
    (result,) = await replay("http://127.0.0.1:1", TRACE[:1], model="tiny", seed=3)
    assert result.outcome is Outcome.UNREACHABLE
    assert result.ttft_s == 15


def chunk(text: str) -> bytes:
    return b'data: {"choices":[{"index":0,"delta":{"content":"' + text.encode() + b'"}}]}\n\n'


@pytest.fixture
async def scripted() -> AsyncIterator[Callable[[list[bytes]], Awaitable[str]]]:
    """Servers that answer every request with the given pieces."""
    runners: list[web.AppRunner] = []

    async def serve(pieces: list[bytes]) -> str:
        async def answer(request: web.Request) -> web.StreamResponse:
            response = web.StreamResponse(headers={"content-type": "text/event-stream"})
            await response.prepare(request)
            for piece in pieces:
                await response.write(piece)
                await asyncio.sleep(0)
            return response

        app = web.Application()
        app.router.add_post("/v1/chat/completions", answer)
        runner = web.AppRunner(app)
        runners.append(runner)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return f"http://127.0.0.1:{runner.addresses[0][1]}"

    yield serve
    for runner in runners:
        await runner.cleanup()


KEY = words.key_of(words.make_prompt(5, "3-0"), "3-0")
RIGHT = [b": ping\n\n", chunk(f" {KEY}.0"), chunk(f" {KEY}.1"), b"data: [DONE]\n\n"]


@pytest.mark.parametrize(
    ("pieces", "outcome"),
    [
        (RIGHT, Outcome.OK),
        ([bytes([byte]) for byte in b"".join(RIGHT)], Outcome.OK),
        ([b"".join(RIGHT)], Outcome.OK),
        ([*RIGHT[:2], b"data: [DONE]\n\n"], Outcome.WRONG_BYTES),
        ([*RIGHT[:3], chunk(f" {KEY}.2"), RIGHT[3]], Outcome.WRONG_BYTES),
        ([RIGHT[1], RIGHT[1], RIGHT[3]], Outcome.WRONG_BYTES),
        ([RIGHT[1], chunk(" 00000000.1"), RIGHT[3]], Outcome.WRONG_BYTES),
        (RIGHT[:3], Outcome.CUT),
        ([], Outcome.CUT),
    ],
)
async def test_every_byte_counts(
    pieces: list[bytes], outcome: Outcome, scripted: Callable[[list[bytes]], Awaitable[str]]
) -> None:
    (result,) = await replay(await scripted(pieces), [Request(0.0, 5, 2)], model="tiny", seed=3)
    assert result.outcome is outcome, result.detail


async def test_two_hundred_streams_at_once_are_not_mixed(start: Start) -> None:
    engine = await start(dataclasses.replace(QUICK, kv_blocks=20_000, max_num_seqs=256))
    results = await play(engine, [Request(0.0, 20, 20)] * 200)
    assert Counter(result.outcome for result in results) == {Outcome.OK: 200}


async def test_an_empty_trace_is_nothing_to_do() -> None:
    assert await replay("http://127.0.0.1:1", [], model="tiny", seed=3) == []
    assert summarise([])["requests"] == 0


async def test_engine_and_client_meet_over_aiohttp_too(engine: EngineServer) -> None:
    """The prompt arrives as it was sent, or the key would differ."""
    prompt = words.make_prompt(4000 // 4, "x")
    body = {"messages": [{"role": "user", "content": prompt}], "user": "u", "max_tokens": 2}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"http://{engine.address}/v1/chat/completions", json=body) as response,
    ):
        answer = await response.json()
    assert answer["choices"][0]["message"]["content"] == words.text(words.key_of(prompt, "u"), 2)
