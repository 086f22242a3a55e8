"""Each fault does what it says, strikes its share, and heals."""

import asyncio
import json
import time
from typing import Any, get_args

import aiohttp
import pytest

from tests.harness import until
from trimtab.sim import words
from trimtab.sim.faults import Fault, FaultInForce, NoOutput
from trimtab.sim.http import EngineServer

CHAT = "/v1/chat/completions"
BUSY = "The engine is currently busy and cannot accept new requests."


def chat(**fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 8, "ignore_eos": True, **fields}


async def put(http: aiohttp.ClientSession, **fault: Any) -> None:
    async with http.post("/control/fault", json=fault) as response:
        assert response.status == 200, await response.text()


async def ask(http: aiohttp.ClientSession, **fields: Any) -> tuple[int, str, aiohttp.ClientResponse]:
    async with http.post(CHAT, json=chat(**fields)) as response:
        return response.status, await response.text(), response


def last(engine: EngineServer) -> dict[str, Any]:
    return engine.attempts.since(engine.attempts.count - 1)["attempts"][0]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("kind", "status", "body", "how"),
    [
        (
            "saturate_429",
            429,
            '{"error":{"message":"KV cache exhausted","type":"engine_saturated","param":null,"code":429}}',
            "refused",
        ),
        ("saturate_503", 503, f'{{"error":{{"message":"{BUSY}', "refused"),
        ("quota_429", 429, '{"error":{"message":"Rate limit reached', "refused"),
        ("error_500", 500, '{"error":{"message":"cannot schedule new futures after shutdown"', "failed"),
    ],
)
async def test_error_answers(
    kind: str,
    status: int,
    body: str,
    how: str,
    stream: bool,
    engine: EngineServer,
    http: aiohttp.ClientSession,
) -> None:
    await put(http, kind=kind)
    got, text, response = await ask(http, stream=stream)
    assert (got, text.startswith(body)) == (status, True)
    assert "retry-after" not in response.headers
    assert (last(engine)["how"], last(engine)["status"], last(engine)["fault"]) == (how, status, kind)
    async with http.get("/health") as health:
        assert health.status == 200
    await put(http, kind="none")
    assert (await ask(http))[0] == 200


@pytest.mark.parametrize(("shape", "code"), [("openai", "rate_limit_exceeded"), ("litellm", "429")])
async def test_a_quota_can_say_when_to_come_again(shape: str, code: str, http: aiohttp.ClientSession) -> None:
    await put(http, kind="quota_429", shape=shape, retry_after_s=20)
    _, text, response = await ask(http)
    assert json.loads(text)["error"]["code"] == code
    assert response.headers["retry-after"] == "20"


async def test_a_reset_before_headers(engine: EngineServer, http: aiohttp.ClientSession) -> None:
    await put(http, kind="reset_before_headers")
    with pytest.raises((aiohttp.ClientOSError, aiohttp.ServerDisconnectedError)):
        await ask(http)
    assert (last(engine)["how"], last(engine)["status"]) == ("reset", None)


async def test_dying_in_mid_stream(engine: EngineServer, http: aiohttp.ClientSession) -> None:
    await put(http, kind="die_mid_stream", after_tokens=3)
    received = b""
    with pytest.raises(aiohttp.ClientPayloadError):
        async with http.post(CHAT, json=chat(stream=True)) as response:
            async for data in response.content.iter_any():
                received += data
    assert words.token(words.key_of("hello"), 2).encode() in received
    assert words.token(words.key_of("hello"), 3).encode() not in received
    assert (last(engine)["how"], last(engine)["tokens"]) == ("died", 3)
    await until(lambda: engine.engine.running == 0)
    with pytest.raises(aiohttp.ServerDisconnectedError):
        await ask(http)
    status, text, _ = await ask(http, stream=True, max_tokens=2)
    assert (status, text.endswith("data: [DONE]\n\n")) == (200, True), "it had less to say"


async def test_ending_in_mid_stream(engine: EngineServer, http: aiohttp.ClientSession) -> None:
    await put(http, kind="end_mid_stream", after_tokens=3)
    _, text, _ = await ask(http, stream=True)
    assert words.token(words.key_of("hello"), 2) in text.split("\n\n")[-2]
    assert '"finish_reason":null' in text.split("\n\n")[-2]
    assert "[DONE]" not in text
    assert (last(engine)["how"], last(engine)["tokens"]) == ("truncated", 3)
    await until(lambda: engine.engine.running == 0)
    assert (await ask(http))[0] == 200


@pytest.mark.parametrize("after_tokens", [3, 8], ids=["amid its tokens", "before its end mark"])
async def test_stalling_in_mid_stream(after_tokens: int, engine: EngineServer, http: aiohttp.ClientSession) -> None:
    await put(http, kind="stall_mid_stream", after_tokens=after_tokens)
    stalled = asyncio.create_task(ask(http, stream=True))
    await until(lambda: engine.attempts.count == 1 and last(engine)["tokens"] == after_tokens)
    await until(lambda: engine.engine.running == 0)
    assert (last(engine)["tokens"], last(engine)["ended_at"]) == (after_tokens, None)
    await put(http, kind="none")
    status, text, _ = await stalled
    assert (status, text.endswith("data: [DONE]\n\n")) == (200, True)
    assert (last(engine)["how"], last(engine)["tokens"]) == ("complete", 8)


async def test_an_error_event_in_a_200(engine: EngineServer, http: aiohttp.ClientSession) -> None:
    await put(http, kind="error_event")
    status, text, response = await ask(http, stream=True)
    assert (status, response.headers["content-type"]) == (200, "text/event-stream; charset=utf-8")
    error, done, end = text.split("\n\n")
    assert error.startswith('data: {"error": {"message": "EngineCore encountered an issue.')
    assert (done, end) == ("data: [DONE]", "")
    assert (last(engine)["how"], last(engine)["first_token_at"]) == ("error_event", None)
    assert (await ask(http))[0] == 500


JSON = "application/json"
EVENTS = "text/event-stream; charset=utf-8"
# Each answer of `no_output`: its status, content type (None: no such header) and body (None: see below).
WITHOUT_OUTPUT: dict[str, tuple[int, str | None, str | None]] = {
    "json_error": (200, JSON, None),
    "not_found": (404, JSON, None),
    "unauthorized": (401, JSON, '{"error":"Unauthorized"}'),
    "forbidden": (403, JSON, '{"error":"Forbidden"}'),
    "bad_request": (400, JSON, None),
    "html": (200, "text/html; charset=utf-8", None),
    "done_alone": (200, EVENTS, "data: [DONE]\n\n"),
    "empty_stream": (200, EVENTS, ""),
    "no_content": (204, None, ""),
    "redirect": (307, None, ""),
    "wrong_type": (200, "text/plain; charset=utf-8", "ok"),
    "truncated_json": (200, JSON, None),
    "empty_json": (200, JSON, "{}"),
    "foreign_json": (200, JSON, '{"status":"ok"}'),
}


def test_every_answer_without_output_is_tested() -> None:
    assert WITHOUT_OUTPUT.keys() == set(get_args(NoOutput))


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/v1/messages"])
@pytest.mark.parametrize("answer", WITHOUT_OUTPUT)
async def test_an_answer_without_output(
    answer: str, path: str, stream: bool, engine: EngineServer, http: aiohttp.ClientSession
) -> None:
    await put(http, kind="no_output", answer=answer)
    async with http.post(path, json=chat(prompt="hello", stream=stream), allow_redirects=False) as response:
        text = await response.text()
    status, content_type, body = WITHOUT_OUTPUT[answer]
    assert (response.status, response.headers.get("content-type")) == (status, content_type)
    assert body in (None, text)
    if content_type == EVENTS:
        assert response.headers["transfer-encoding"] == "chunked"
    elif status != 204:
        assert response.headers["content-length"] == str(len(text))
    assert response.headers.get("location") == (f"{path}/" if answer == "redirect" else None)
    attempt = last(engine)
    assert (attempt["fault"], attempt["status"], attempt["how"]) == ("no_output", status, "truncated")
    assert (attempt["streamed"], attempt["tokens"], attempt["first_token_at"]) == (stream, 0, None)
    assert engine.engine.generated_tokens == 0
    await put(http, kind="none")
    async with http.post(path, json=chat(prompt="hello", stream=stream)) as response:
        assert (response.status, response.content_type) == (200, "text/event-stream" if stream else JSON)


@pytest.mark.parametrize(
    ("answer", "code", "type_", "message"),
    [
        ("json_error", 500, "InternalServerError", "EngineCore encountered an issue."),
        ("not_found", 404, "NotFoundError", "The model `tiny` does not exist."),
        ("bad_request", 400, "BadRequestError", "As of transformers v4.44, default chat template is no longer"),
    ],
)
async def test_errors_without_output_are_in_the_words_of_each_api(
    answer: str, code: int, type_: str, message: str, http: aiohttp.ClientSession
) -> None:
    await put(http, kind="no_output", answer=answer)
    error = json.loads((await ask(http))[1])["error"]
    assert (error["code"], error["type"], error["message"][: len(message)]) == (code, type_, message)
    async with http.post("/v1/messages", json=chat()) as response:
        anthropic = await response.json()
    assert anthropic == {"type": "error", "error": {"type": type_, "message": error["message"]}}


async def test_pages_and_halves_without_output(http: aiohttp.ClientSession) -> None:
    await put(http, kind="no_output", answer="html")
    assert (await ask(http))[1].startswith("<!DOCTYPE html>")
    await put(http, kind="no_output", answer="truncated_json")
    for stream in (False, True):
        half = (await ask(http, stream=stream))[1]
        assert '"object":"chat.completion"' in half
        with pytest.raises(json.JSONDecodeError):
            json.loads(half)


@pytest.mark.parametrize("answer", WITHOUT_OUTPUT)
async def test_pages_go_on_while_there_is_no_output(answer: str, http: aiohttp.ClientSession) -> None:
    async def pages() -> list[tuple[int, str]]:
        return [await page(path) for path in ("/health", "/v1/models", "/metrics")]

    async def page(path: str) -> tuple[int, str]:
        async with http.get(path) as response:
            return response.status, (await response.text())[:20]

    before = await pages()
    await put(http, kind="no_output", answer=answer)
    assert await pages() == before
    assert [status for status, _ in before] == [200, 200, 200]


async def test_a_share_goes_without_output_and_an_error_is_the_default(http: aiohttp.ClientSession) -> None:
    await put(http, kind="no_output", share=0.5)
    answers = [json.loads((await ask(http, max_tokens=1))[1]) for _ in range(4)]
    assert ["error" in answer for answer in answers] == [False, True, False, True]
    assert ["choices" in answer for answer in answers] == [True, False, True, False]


async def test_pings_come_before_the_role_and_the_role_before_the_token(
    engine: EngineServer, http: aiohttp.ClientSession
) -> None:
    await put(http, kind="ping_first", seconds=0.3, role_lead_s=0.1)
    _, text, _ = await ask(http, stream=True)
    events = text.split("\n\n")[:-2]
    kinds = ["ping" if event.startswith(":") else "role" if "role" in event else "token" for event in events]
    assert kinds[0] == "ping"
    assert kinds == sorted(kinds, key=["ping", "role", "token"].index)
    assert (kinds.count("role"), kinds.count("token")) == (1, 8)
    attempt = last(engine)
    assert attempt["first_token_at"] - attempt["header_at"] >= 0.39


async def test_hanging_before_headers_ends_when_healed(engine: EngineServer, http: aiohttp.ClientSession) -> None:
    await put(http, kind="hang_before_headers")
    hanging = asyncio.create_task(ask(http, stream=True))
    await until(lambda: engine.attempts.count == 1)
    assert last(engine)["header_at"] is None
    await put(http, kind="none")
    status, text, _ = await hanging
    assert (status, text.endswith("[DONE]\n\n")) == (200, True)


async def test_hanging_after_headers_ends_by_itself(engine: EngineServer, http: aiohttp.ClientSession) -> None:
    begin = time.monotonic()
    await put(http, kind="hang_after_headers", for_s=0.3)
    async with http.post(CHAT, json=chat(stream=True)) as response:
        assert response.status == 200
        await response.content.readany()
    assert time.monotonic() - begin >= 0.29
    assert engine.state()["fault"] is None


async def test_a_hung_request_notices_that_its_client_left(engine: EngineServer, http: aiohttp.ClientSession) -> None:
    await put(http, kind="hang_before_headers")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await ask(http)
    await until(lambda: last(engine)["how"] == "client_left")


async def test_mute_freezes_what_is_shown_and_goes_on_afterwards(
    engine: EngineServer, http: aiohttp.ClientSession
) -> None:
    async def page() -> bytes:
        async with http.get("/metrics") as response:
            return await response.read()

    async with http.post(CHAT, json=chat(stream=True, max_tokens=40)) as running:
        received = await running.content.readany()
        await put(http, kind="mute")
        frozen = await page()
        assert b'vllm:num_requests_running{engine="0",model_name="tiny"} 1.0' in frozen
        generated = engine.engine.generated_tokens
        async with asyncio.timeout(5), http.post(CHAT, json=chat(stream=True)) as late:
            assert late.status == 200
            await asyncio.sleep(0.05)
            assert await page() == frozen
            assert engine.engine.generated_tokens == generated
            async with http.get("/health") as response:
                assert response.status == 200
            await put(http, kind="none")
            received += await running.read()
            assert (await late.read()).endswith(b"[DONE]\n\n")
    assert received.endswith(b"[DONE]\n\n")
    text = b"".join(part.split(b'"')[0] for part in received.split(b'"content":"')[2:])
    assert text.decode() == words.text(words.key_of("hello"), 40)


async def test_slow_is_slow_until_healed(engine: EngineServer, http: aiohttp.ClientSession) -> None:
    async def seconds() -> float:
        await ask(http, max_tokens=3)
        return last(engine)["ended_at"] - last(engine)["arrived_at"]

    await put(http, kind="slow", factor=50)
    slow_s = await seconds()
    assert slow_s >= 2 * 50 * 0.005
    assert engine.state()["fault"] == {"kind": "slow", "factor": 50}
    await put(http, kind="none")
    assert await seconds() < slow_s


async def test_a_new_fault_takes_the_place_and_the_time_limit_of_the_old_one(
    engine: EngineServer, http: aiohttp.ClientSession
) -> None:
    await put(http, kind="saturate_429", for_s=0.05)
    await put(http, kind="saturate_503")
    await asyncio.sleep(0.1)
    assert (await ask(http))[0] == 503


def test_a_share_is_struck_evenly() -> None:
    quarter = FaultInForce(Fault(kind="error_500", share=0.25))
    assert [quarter.strikes() for _ in range(8)] == [False, False, False, True] * 2
    tenth = FaultInForce(Fault(kind="error_500", share=0.1))
    assert sum(tenth.strikes() for _ in range(1000)) == 100
    always = FaultInForce(Fault(kind="error_500"))
    assert all(always.strikes() for _ in range(10))


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ('{"kind":"explode"}', "kind"),
        ('{"kind":"slow","speed":3}', "speed"),
        ('{"kind":"slow","after_tokens":3}', "after_tokens belongs to die_mid_stream"),
        ('{"kind":"mute","share":0.5}', "no share"),
        ('{"kind":"error_500","answer":"html"}', "answer belongs to no_output"),
        ('{"kind":"no_output","answer":"silence"}', "answer"),
        ('{"kind":"error_500","share":0}', "share"),
        ('{"kind":"error_500","for_s":-1}', "for_s"),
        ("[]", "valid dictionary"),
        ("nonsense", "Expecting value"),
    ],
)
async def test_a_fault_that_makes_no_sense_is_refused(
    body: str, problem: str, engine: EngineServer, http: aiohttp.ClientSession
) -> None:
    async with http.post("/control/fault", data=body) as response:
        assert response.status == 400
        assert problem in (await response.json())["error"]
    assert engine.state()["fault"] is None
