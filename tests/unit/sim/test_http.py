"""The server beside the captures of a real vLLM, and against the OpenAI SDK."""

import asyncio
import dataclasses
import json
from typing import Any

import aiohttp
import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.harness import until
from tests.unit.sim.captures import DATA, answers, shape_of, streamed_events, streamed_headers
from tests.unit.sim.conftest import QUICK, Start
from trimtab.sim import words
from trimtab.sim.http import EngineServer
from trimtab.sim.kinds import CPU

CHAT = "/v1/chat/completions"
ERRORS = answers("vllm_errors.txt")


def chat(content: Any = "hello", **fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "messages": [{"role": "user", "content": content}], **fields}


def events_of(body: str) -> list[str]:
    return [event.removeprefix("data: ") for event in body.split("\n\n") if event]


async def control_log(http: aiohttp.ClientSession, since: int = 0) -> list[dict[str, Any]]:
    async with http.get(f"/control/log?since={since}") as response:
        return (await response.json())["attempts"]


async def metrics(http: aiohttp.ClientSession) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    async with http.get("/metrics") as response:
        families = text_string_to_metric_families(await response.text())
        return {
            (
                sample.name,
                frozenset(sample.labels.items()) - {("engine", "0"), ("model_name", "tiny")},
            ): sample.value
            for family in families
            for sample in family.samples
        }


async def test_a_stream_is_as_captured(http: aiohttp.ClientSession) -> None:
    body = chat(stream=True, max_tokens=6, ignore_eos=True, stream_options={"include_usage": True})
    async with http.post(CHAT, json=body) as response:
        ours = events_of(await response.text())
        headers = {name.lower() for name in response.headers}
    assert [shape_of(event) for event in ours] == [shape_of(e) for e in streamed_events("vllm_stream_chat.txt")]
    assert headers == streamed_headers("vllm_stream_chat.txt") - {"connection"} | {"x-sim-engine"}
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert json.loads(ours[-2])["usage"] == {"prompt_tokens": 2, "total_tokens": 8, "completion_tokens": 6}


async def test_a_stream_without_usage_is_as_captured(http: aiohttp.ClientSession) -> None:
    async with http.post(CHAT, json=chat(stream=True, max_tokens=3, ignore_eos=True)) as response:
        ours = events_of(await response.text())
    captured = streamed_events("vllm_stream_chat_queued.txt")
    assert [shape_of(event) for event in ours] == [shape_of(event) for event in captured]


async def test_the_role_comes_with_the_first_token(http: aiohttp.ClientSession) -> None:
    async with http.post(CHAT, json=chat(stream=True, max_tokens=2, ignore_eos=True)) as response:
        first = await response.content.readany()
    assert b'"role":"assistant"' in first
    assert b" " + words.key_of("hello").encode() + b".0" in first


async def test_the_header_comes_while_the_request_is_queued(start: Start) -> None:
    engine = await start(dataclasses.replace(QUICK, max_num_seqs=1))
    async with aiohttp.ClientSession(f"http://{engine.address}") as http:
        body = chat(stream=True, max_tokens=1500, ignore_eos=True)
        async with http.post(CHAT, json=body), http.post(CHAT, json=chat(stream=True)) as queued:
            assert queued.status == 200
            assert (engine.engine.running, engine.engine.waiting) == (1, 1)


ERROR_REQUESTS: dict[str, tuple[str, str, Any]] = {
    "context too long (chat)": ("POST", CHAT, chat("a" * 4 * 2049, max_tokens=5)),
    "context too long (stream)": ("POST", CHAT, chat("a" * 4 * 2049, max_tokens=5, stream=True)),
    "max_tokens too large": ("POST", CHAT, chat(max_tokens=99999)),
    "unknown model": ("POST", CHAT, chat() | {"model": "nope"}),
    "bad json": ("POST", CHAT, '{"model":'),
    "no messages": ("POST", CHAT, {"model": "tiny"}),
    "wrong content type": ("POST", CHAT, "text"),
    "wrong path": ("GET", "/v1/nope", None),
    "wrong method": ("GET", CHAT, None),
    "health": ("GET", "/health", None),
    "ping": ("GET", "/ping", None),
    "load": ("GET", "/load", None),
    "version": ("GET", "/version", None),
}


@pytest.mark.parametrize("title", ERROR_REQUESTS)
async def test_errors_are_as_captured_to_the_byte(title: str, http: aiohttp.ClientSession) -> None:
    method, path, body = ERROR_REQUESTS[title]
    kind = "text/plain" if title == "wrong content type" else "application/json"
    data = None if body is None else body if isinstance(body, str) else json.dumps(body)
    async with http.request(method, path, data=data, headers={"content-type": kind}) as response:
        ours = await response.text()
    status, headers, captured = ERRORS[title]
    assert response.status == status
    assert ours == captured
    assert {name.lower() for name in response.headers} == set(headers) | {"x-sim-engine"}
    for name in ("content-type", "content-length", "server", "vary", "allow"):
        assert response.headers.get(name) == headers.get(name)


@pytest.mark.parametrize(
    ("title", "path", "body"),
    [
        ("non-stream", CHAT, chat(max_tokens=4)),
        ("completion non-stream", "/v1/completions", {"model": "tiny", "prompt": "abc", "max_tokens": 4}),
        ("anthropic messages", "/v1/messages", chat(max_tokens=4)),
    ],
)
async def test_whole_answers_are_as_captured(
    title: str, path: str, body: dict[str, Any], http: aiohttp.ClientSession
) -> None:
    async with http.post(path, json=body) as response:
        ours = await response.text()
    _, headers, captured = ERRORS[title]
    assert shape_of(ours) == shape_of(captured)
    assert {name.lower() for name in response.headers} == set(headers) | {"x-sim-engine"}


async def test_the_list_of_models_is_as_captured(http: aiohttp.ClientSession) -> None:
    async with http.get("/v1/models") as response:
        ours = await response.text()
    captured = (DATA / "vllm_models.txt").read_text().rpartition("\n\n")[2].strip()
    assert shape_of(ours) == shape_of(captured)
    assert json.loads(ours)["data"][0]["id"] == "tiny"
    assert json.loads(ours)["data"][0]["max_model_len"] == 2048


@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/v1/messages"])
@pytest.mark.parametrize(("limit", "field"), [("max_num_queued_reqs", "busy"), ("max_num_queued_tokens", "backlog")])
async def test_refusals_are_as_captured(path: str, limit: str, field: str, start: Start) -> None:
    engine = await start(dataclasses.replace(CPU, **{limit: 1}))
    captured = answers("vllm_overload_503.txt")
    title = "10th, anthropic /v1/messages" if path == "/v1/messages" else "8th, stream"
    async with aiohttp.ClientSession(f"http://{engine.address}") as http:
        async with http.post(CHAT, json=chat("long " * 4000, stream=True)):
            body = {
                "model": "tiny",
                "prompt": "x",
                "messages": [{"role": "user", "content": "x"}],
                "stream": True,
            }
            async with http.post(path, json=body) as refused:
                text = await refused.text()
        values = await metrics(http)
    status, _, expected = captured[title]
    assert refused.status == status == 503
    if field == "busy":
        assert text == expected
    else:
        assert shape_of(text) == shape_of(expected)
        assert "prefill token backlog limit" in text
    assert values["vllm:admission_rejections_total", frozenset({("reason", limit)})] == 1
    assert engine.attempts.since(1)["attempts"][0]["how"] == "refused"


@pytest.mark.parametrize("form", ["JSON", "TEXT"])
async def test_orca_on_request_for_whole_answers_only(form: str, http: aiohttp.ClientSession) -> None:
    headers = {"endpoint-load-metrics-format": form}
    async with http.post(CHAT, json=chat(max_tokens=2), headers=headers) as response:
        ours = response.headers["endpoint-load-metrics"]
    captured = {
        "JSON": 'JSON {"named_metrics": {"num_requests_waiting": 0.0, "kv_cache_usage_perc": 0.0}}',
        "TEXT": "TEXT named_metrics.num_requests_waiting=0.0, named_metrics.kv_cache_usage_perc=0.0",
    }
    assert ours == captured[form]
    async with http.post(CHAT, json=chat(max_tokens=2, stream=True), headers=headers) as response:
        assert "endpoint-load-metrics" not in response.headers
    async with http.post(CHAT, json=chat(max_tokens=2)) as response:
        assert "endpoint-load-metrics" not in response.headers


async def test_the_text_follows_from_the_request(http: aiohttp.ClientSession) -> None:
    async def ask(content: str, **fields: Any) -> list[str]:
        async with http.post(CHAT, json=chat(content, max_tokens=5, **fields)) as response:
            return [choice["message"]["content"] for choice in (await response.json())["choices"]]

    texts = [await ask("a"), await ask("b"), await ask("a", user="u"), await ask("a", n=2)]
    assert texts[0] == [words.text(words.key_of("a"), 5)]
    assert texts[3] == [texts[0][0], words.text(words.key_of("a", choice=1), 5)]
    assert len({text for choices in texts for text in choices}) == 4
    parts = [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "data:"}}]
    async with http.post(CHAT, json=chat(parts, max_tokens=5)) as response:
        assert (await response.json())["choices"][0]["message"]["content"] == texts[0][0]


async def test_without_ignore_eos_an_answer_ends_by_itself(start: Start) -> None:
    engine = await start(dataclasses.replace(QUICK, step0_ms=0.5))
    async with aiohttp.ClientSession(f"http://{engine.address}") as http:
        await _check_natural_ends(http)


async def _check_natural_ends(http: aiohttp.ClientSession) -> None:
    async with http.post(CHAT, json=chat(max_tokens=1000)) as response:
        answer = await response.json()
    tokens = answer["usage"]["completion_tokens"]
    assert tokens == words.natural_length(words.key_of("hello"))
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["choices"][0]["message"]["content"] == words.text(words.key_of("hello"), tokens - 1)
    async with http.post(CHAT, json=chat(max_tokens=1000, stream=True)) as response:
        last = json.loads(events_of(await response.text())[-2])["choices"][0]
    assert (last["delta"]["content"], last["finish_reason"]) == ("", "stop")
    async with http.post(CHAT, json=chat(max_tokens=1000, min_tokens=300)) as response:
        assert (await response.json())["usage"]["completion_tokens"] == 300


async def test_n_choices_are_streamed_side_by_side(http: aiohttp.ClientSession) -> None:
    async with http.post(CHAT, json=chat(max_tokens=4, n=3, stream=True)) as response:
        events = [json.loads(event) for event in events_of(await response.text())[:-1]]
    texts = ["", "", ""]
    for event in events:
        (choice,) = event["choices"]
        texts[choice["index"]] += choice["delta"]["content"]
    assert texts == [words.text(words.key_of("hello", choice=index), 4) for index in range(3)]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": "7"}, "body.max_tokens"),
        ({"max_tokens": 2047}, "input_tokens"),
        ({"messages": "hello"}, "body.messages"),
        ({"messages": ["hello"]}, "body.messages"),
    ],
)
async def test_wrong_fields_are_named(fields: dict[str, Any], param: str, http: aiohttp.ClientSession) -> None:
    async with http.post(CHAT, json=chat() | fields) as response:
        assert response.status == 400
        assert (await response.json())["error"]["param"] == param
    (attempt,) = await control_log(http)
    assert (attempt["how"], attempt["status"]) == ("bad_request", 400)


@pytest.mark.parametrize("body", [b"[]", b"\xff", b"", b'{"messages":[{"role":"user","content":"\\ud800"}]}'])
async def test_odd_bodies_do_no_harm(body: bytes, http: aiohttp.ClientSession) -> None:
    headers = {"content-type": "application/json"}
    async with http.post(CHAT, data=body, headers=headers) as response:
        assert response.status == (200 if b"ud800" in body else 400)


@pytest.mark.parametrize("queued", [False, True])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_frees_its_slot(queued: bool, stream: bool, start: Start) -> None:
    engine = await start(dataclasses.replace(QUICK, max_num_seqs=1))
    body = chat(stream=stream, max_tokens=1500, ignore_eos=True)
    async with aiohttp.ClientSession(f"http://{engine.address}") as other:
        before = chat(stream=True, max_tokens=1500, ignore_eos=True)
        held = [await other.post(CHAT, json=before)] if queued else []
        expected = (1, len(held))
        async with aiohttp.ClientSession(f"http://{engine.address}") as http:
            leaving = asyncio.create_task(http.post(CHAT, json=body))
            await until(lambda: (engine.engine.running, engine.engine.waiting) == expected)
        leaving.cancel()
        await until(lambda: engine.engine.running + engine.engine.waiting == len(held), timeout_s=2)
        attempt = engine.attempts.since(len(held))["attempts"][0]
        assert attempt["how"] == "client_left"
        assert attempt["tokens"] < 1500
        if not queued:
            assert engine.engine.kv_usage == 0
        async with aiohttp.ClientSession(f"http://{engine.address}") as http:
            values = await metrics(http)
        cut = {"handler": CHAT, "method": "POST", "status": "2xx"}
        assert values["http_requests_total", frozenset(cut.items())] == 1
        assert values["vllm:request_success_total", frozenset({("finished_reason", "abort")})] == 0


async def test_metrics_follow_the_work(http: aiohttp.ClientSession) -> None:
    async with http.post(CHAT, json=chat("hello, engine" * 40, max_tokens=7, stream=True)) as response:
        await response.read()
    for path in ("/nope", CHAT):
        await http.get(path)
    values = await metrics(http)

    def value(name: str, **labels: str) -> float:
        return values[name, frozenset(labels.items())]

    assert value("vllm:prompt_tokens_total") == 130
    assert value("vllm:generation_tokens_total") == 7
    assert value("vllm:request_success_total", finished_reason="length") == 1
    assert value("vllm:num_requests_running") == value("vllm:num_requests_waiting") == 0
    assert value("vllm:inter_token_latency_seconds_count") == 6
    for histogram in ("time_to_first_token", "e2e_request_latency", "request_queue_time"):
        assert value(f"vllm:{histogram}_seconds_count") == 1
    assert 0.005 <= value("vllm:time_to_first_token_seconds_sum") < 0.1
    assert value("vllm:time_to_first_token_seconds_bucket", le="0.1") == 1
    assert value("vllm:time_to_first_token_seconds_bucket", le="0.001") == 0
    assert value("http_requests_total", handler=CHAT, method="POST", status="2xx") == 1
    assert value("http_requests_total", handler="none", method="GET", status="4xx") == 2


async def test_metrics_show_queue_and_kv_usage_under_load(start: Start) -> None:
    engine = await start(dataclasses.replace(QUICK, max_num_seqs=2))
    async with aiohttp.ClientSession(f"http://{engine.address}") as http:
        body = chat("a" * 128, stream=True, max_tokens=1500, ignore_eos=True)
        # A response that nobody holds is closed by aiohttp.
        held = [await http.post(CHAT, json=body) for _ in range(3)]
        await until(lambda: engine.engine.running == 2)
        values = await metrics(http)
        assert values["vllm:num_requests_running", frozenset()] == 2
        assert values["vllm:num_requests_waiting", frozenset()] == 1
        assert values["vllm:num_requests_waiting_by_reason", frozenset({("reason", "capacity")})] == 1
        assert values["vllm:kv_cache_usage_perc", frozenset()] == pytest.approx(engine.engine.kv_usage, abs=4 / 319)
        async with http.get("/load") as response:
            assert await response.json() == {"server_load": len(held)}


async def test_the_log_tells_the_truth(engine: EngineServer, http: aiohttp.ClientSession) -> None:
    headers = {"x-request-id": "abc", "x-envoy-attempt-count": "2"}
    async with http.post(CHAT, json=chat(stream=True, max_tokens=9, ignore_eos=True), headers=headers) as response:
        await response.read()
    await http.post(CHAT, json=chat(max_tokens=3))
    first, second = await control_log(http)
    assert (first["request_id"], first["attempt_count"], first["how"]) == ("abc", "2", "complete")
    assert (first["tokens"], first["output_tokens"], first["prompt_tokens"]) == (9, 9, 2)
    assert first["arrived_at"] <= first["header_at"] < first["first_token_at"] < first["ended_at"]
    assert (second["streamed"], second["first_token_at"], second["status"]) == (False, None, 200)
    assert [attempt["number"] for attempt in await control_log(http, since=1)] == [1]
    assert await control_log(http, since=7) == []
    async with http.get("/control/state") as response:
        state = await response.json()
    assert (state["attempts"], state["open"], state["generated_tokens"]) == (2, 0, 12)


async def test_the_openai_sdk_gets_on_with_it(engine: EngineServer) -> None:
    async with openai.AsyncOpenAI(base_url=f"http://{engine.address}/v1", api_key="none") as client:
        models = await client.models.list()
        assert [model.id for model in models.data] == ["tiny"]
        whole = await client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "hi"}], max_tokens=4
        )
        assert whole.choices[0].message.content == words.text(words.key_of("hi"), 4)
        stream = await client.chat.completions.create(
            model="tiny",
            messages=[{"role": "user", "content": "hi"}],
            max_completion_tokens=4,
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = [chunk async for chunk in stream]
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        assert text == whole.choices[0].message.content
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.completion_tokens == 4
        completion = await client.completions.create(model="tiny", prompt=[1, 2, 3], max_tokens=2)
        assert completion.usage is not None
        assert completion.usage.prompt_tokens == 3
        with pytest.raises(openai.NotFoundError):
            await client.chat.completions.create(model="nope", messages=[{"role": "user", "content": "hi"}])


async def test_messages_are_streamed_as_anthropic_events(http: aiohttp.ClientSession) -> None:
    async with http.post("/v1/messages", json=chat(max_tokens=2, stream=True)) as response:
        events = (await response.text()).split("\n\n")
    names = [event.split("\n")[0] for event in events]
    assert names == [
        "event: message_start",
        "event: content_block_start",
        "event: content_block_delta",
        "event: content_block_delta",
        "event: content_block_stop",
        "event: message_delta",
        "event: message_stop",
        "data: [DONE]",
        "",
    ]
    deltas = [json.loads(event.split("data: ")[1])["delta"]["text"] for event in events[2:4]]
    assert "".join(deltas) == words.text(words.key_of("hello"), 2)
