"""Routing between pools, time-outs and Envoy's own answers, on the real Envoy."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from aiohttp import web

from tests.envoy.control_plane import assignment
from tests.envoy.rig import Answer, Rig, resources, running
from tests.harness import Body, FakeEngine, Hang, Step, event, free_port, tokens, until
from trimtab.observation.kinds import AttemptEnded, Outcome
from trimtab.policy.model import Policy
from xds_server.ads.snapshot import TypeUrl

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]


def script(name: str) -> Any:
    def answer(request: web.Request, body: bytes) -> Step:
        match request.headers.get("x-do"):
            case "hang":
                return Hang()
            case "silent":
                return tokens(3, first_s=30)
            case "long":
                return tokens(40, 0.0, 0.1)
        return Body(body=json.dumps({"engine": name, "path": request.path}).encode())

    return answer


def pools(engines: list[FakeEngine]) -> list[dict[str, Any]]:
    llama, qwen = engines
    return [
        {
            "name": "llama",
            "models": ["meta-llama/Llama-3.1-8B", "meta-llama/Llama-3.1-70B*"],
            "endpoints": [{"address": llama.address}],
            "retries": {"attempts": 1},
        },
        {
            "name": "qwen",
            "models": ["qwen", "*/Qwen[23]*", "a?c"],
            "endpoints": [{"address": qwen.address}],
            "retries": {"attempts": 1},
        },
    ]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def rig(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Rig]:
    listen = {"stream_idle_timeout_s": 1.2, "max_stream_s": 2.4, "cors_allow_origins": []}
    scripts = [script("llama"), script("qwen")]
    async with running(tmp_path_factory.mktemp("pools"), scripts, pools=pools, listen=listen) as started:
        yield started
        started.check()


JSON = {"content-type": "application/json; charset=utf-8"}

UNREAD = [
    b'{"model": "qwen", "stream"',
    b'{"model": "qwen", "seed": 9223372036854775808}',
    b'{"model": "qwen", "temperature": 1e999}',
    b'{"model": "qwen", "prompt": "\\ud83d"}',
    b'{"model": "qwen", "x": ' + b"[" * 1000 + b"]" * 1000 + b"}",
]


def served_by(answer: Answer) -> str:
    assert answer.status == 200
    return json.loads(answer.body)["engine"]


@pytest.mark.parametrize(
    ("model", "pool"),
    [
        ("meta-llama/Llama-3.1-8B", "llama"),
        ("meta-llama/Llama-3.1-70B", "llama"),
        ("meta-llama/Llama-3.1-70B-Instruct:lora", "llama"),
        ("qwen", "qwen"),
        ("Qwen/Qwen2.5", "qwen"),
        ("x/y/Qwen3-Coder", "qwen"),
        ("abc", "qwen"),
        ("a\nc", "qwen"),
    ],
)
async def test_a_model_goes_to_its_pool(rig: Rig, model: str, pool: str) -> None:
    assert next(p.name for p in rig.policy.pools if p.serves(model)) == pool
    assert served_by(await rig.chat(model=model)) == pool


@pytest.mark.parametrize(
    "model",
    [
        "meta-llama/Llama-3.1-8B-Instruct",
        "meta-llama/Llama-3x1-8B",
        "Meta-Llama/Llama-3.1-8B",
        "Qwen/Qwen4",
        "abbc",
        'a "quoted" \\ one',
        "%DOWNSTREAM_REMOTE_ADDRESS%",
        "é",
        "x" * 200,
    ],
)
async def test_a_model_that_nobody_serves_is_not_found(rig: Rig, model: str) -> None:
    assert not any(pool.serves(model) for pool in rig.policy.pools)
    answer = await rig.chat(model=model)
    assert answer.status == 404
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-trimtab-reason"] == "unknown-model"
    assert json.loads(answer.body) == {
        "error": {
            "message": f"The model `{model}` does not exist. GET /v1/models lists what there is.",
            "type": "NotFoundError",
            "param": "model",
            "code": 404,
        }
    }


@pytest.mark.parametrize(
    ("body", "status", "kind"),
    [
        ({"model": "gpt-x"}, 404, "not_found_error"),
        ({"max_tokens": 5}, 400, "invalid_request_error"),
        ({"model": "qwen", "seed": 2**63}, 400, "invalid_request_error"),
    ],
    ids=["unknown model", "no model", "unread"],
)
async def test_who_speaks_anthropics_protocol_is_refused_in_it(
    rig: Rig, body: dict[str, Any], status: int, kind: str
) -> None:
    answer = await rig.ask("POST", "/v1/messages?beta=true", json=body)
    assert (answer.status, answer.headers["content-type"]) == (status, "application/json")
    said = json.loads(answer.body)
    assert (said["type"], said["error"]["type"]) == ("error", kind)
    assert "model" in said["error"]["message"]


@pytest.mark.parametrize(
    "request_",
    [
        {"method": "GET", "path": "/health"},
        {"method": "GET", "path": "/health", "headers": JSON},
        {"method": "POST", "path": "/v1/chat/completions", "data": b"{"},
        {"method": "POST", "path": "/v1/chat/completions", "data": b"{}"},
        {"method": "POST", "path": "/v1/x", "data": b""},
        {"method": "DELETE", "path": "/v1/x", "json": {}},
        {"method": "POST", "path": "/v1/audio/transcriptions", "data": aiohttp.FormData({"model": "qwen"})},
    ],
    ids=["health", "health, as the openai library asks", "half", "not said to be JSON", "no body", "DELETE", "form"],
)
async def test_a_request_without_a_readable_model_goes_to_the_first_pool(rig: Rig, request_: dict[str, Any]) -> None:
    assert served_by(await rig.ask(**request_)) == "llama"


@pytest.mark.parametrize("body", UNREAD, ids=["cut", "integer", "float", "surrogate", "levels"])
async def test_json_that_cannot_be_read_is_given_to_no_pool_by_chance(rig: Rig, body: bytes) -> None:
    answer = await rig.ask("POST", "/v1/chat/completions", data=body, headers=JSON)
    assert (answer.status, answer.headers["x-trimtab-reason"]) == (400, "unread-body")
    assert answer.headers["content-type"] == "application/json"
    error = json.loads(answer.body)["error"]
    assert (error["type"], error["code"], error["param"]) == ("BadRequestError", 400, None)
    assert "an integer from 2^63" in error["message"]


@pytest.mark.parametrize(
    "body", [b'{"prompt": "x"}', b'{"model": null}', b"[1]", b""], ids=["prompt", "null", "list", "nothing"]
)
async def test_json_without_a_model_is_given_to_no_pool_by_chance(rig: Rig, body: bytes) -> None:
    answer = await rig.ask("POST", "/v1/completions", data=body, headers=JSON)
    assert (answer.status, answer.headers["x-trimtab-reason"]) == (400, "model-missing")
    assert json.loads(answer.body) == {
        "error": {
            "message": "`model` is missing: say which one the request is for. GET /v1/models lists what there is.",
            "type": "BadRequestError",
            "param": "model",
            "code": 400,
        }
    }


async def test_the_models_of_all_pools_are_listed_here(rig: Rig) -> None:
    answer = await rig.ask("GET", "/v1/models")
    assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
    listing = json.loads(answer.body)
    assert listing["object"] == "list"
    assert [model["id"] for model in listing["data"]] == ["meta-llama/Llama-3.1-8B", "qwen"]
    for path in ("meta-llama/Llama-3.1-8B", "meta-llama%2FLlama-3.1-8B"):
        one = await rig.ask("GET", f"/v1/models/{path}")
        assert json.loads(one.body) == listing["data"][0]


async def test_the_openai_library_understands_it(rig: Rig) -> None:
    import openai

    async with openai.AsyncOpenAI(base_url=f"{rig.url}/v1", api_key="x", max_retries=0) as client:
        assert [model.id async for model in client.models.list()] == ["meta-llama/Llama-3.1-8B", "qwen"]
        with pytest.raises(openai.NotFoundError) as refused:
            await client.chat.completions.create(model="gpt", messages=[{"role": "user", "content": "x"}])
        assert refused.value.param == "model"
        assert refused.value.request_id


async def test_browsers_stay_out_where_cors_is_off(rig: Rig) -> None:
    for engine in rig.engines:
        engine.script, old = (
            (lambda request, body: Body(headers={"access-control-allow-origin": "*"})),
            engine.script,
        )
        answer = await rig.ask("POST", "/v1/x", json={}, headers={"origin": "https://chat.example.com"})
        engine.script = old
        assert not [name for name in answer.headers if name.lower().startswith("access-control")]


async def test_an_engine_that_never_answers_is_a_time_out_and_no_fault_of_its_connection(rig: Rig) -> None:
    answer = await rig.chat(model="qwen", **{"x-do": "hang"})
    assert (answer.status, answer.headers["x-trimtab-reason"]) == (504, "timeout")
    (end,) = await rig.told(AttemptEnded, answer.request_id)
    assert (end.outcome, end.status) == (Outcome.ABORTED, 0)
    assert 1 < end.at - end.started_at < 5


@pytest.mark.parametrize("do", ["silent", "long"])
async def test_a_stream_that_is_silent_or_lasts_too_long_is_cut(rig: Rig, do: str) -> None:
    begun, before = time.monotonic(), len(rig.seen(AttemptEnded))
    with pytest.raises(aiohttp.ClientPayloadError):
        await rig.chat(stream=True, model="qwen", **{"x-do": do})
    assert time.monotonic() - begun < 5
    await until(lambda: len(rig.seen(AttemptEnded)) > before)
    end = rig.seen(AttemptEnded)[-1]
    assert (end.outcome, end.status, end.streamed) == (Outcome.ABORTED, 200, True)


async def test_a_pool_without_endpoints_and_one_that_cannot_be_reached_say_so(rig: Rig) -> None:
    dead = f"127.0.0.1:{free_port()}"
    usual = resources(rig.policy)[TypeUrl.EDS]
    await rig.control_plane.set(
        {TypeUrl.EDS: {"llama": assignment("llama", {}), "qwen": assignment("qwen", {dead: 100})}}
    )

    empty = await rig.chat(model="meta-llama/Llama-3.1-8B")
    unreachable = await rig.chat(model="qwen")
    assert empty.headers["x-trimtab-reason"] == "no-healthy-endpoint"
    assert unreachable.headers["x-trimtab-reason"] == "connect-failure"
    for answer in (empty, unreachable):
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")
        assert json.loads(answer.body)["error"]["code"] == 503
    for end in await rig.told(AttemptEnded, unreachable.request_id, 2):
        assert (end.pool, end.address, end.outcome) == ("qwen", dead, Outcome.UNREACHABLE)
    assert rig.seen(AttemptEnded, empty.request_id) == []
    await rig.control_plane.set({TypeUrl.EDS: usual})
    assert (await rig.chat(model="qwen")).status == 200


async def test_an_endpoint_that_all_depends_on_is_back_as_soon_as_it_can_be_reached(rig: Rig) -> None:
    """Envoy passes over one that three connections were not made to, for 5 s, but not where nobody better is in."""
    llama = "meta-llama/Llama-3.1-8B"
    back = FakeEngine(script("back"))
    port, (spare, other) = free_port(), [engine.address for engine in rig.engines]
    address = f"127.0.0.1:{port}"
    usual = resources(rig.policy)[TypeUrl.EDS]

    async def pushed(weights: dict[str, int], *draining: str) -> None:
        await rig.control_plane.set({TypeUrl.EDS: {**usual, "llama": assignment("llama", weights, draining)}})

    async def is_passed_over() -> bool:
        return (await rig.envoy.stats(r"cluster\.llama\.outlier_detection\.ejections_active"))[
            "cluster.llama.outlier_detection.ejections_active"
        ] == 1

    alone = {address: 10_000, spare: 1, other: 1}
    await pushed(alone, spare, other)
    async with asyncio.timeout(4):
        while not await is_passed_over():
            await rig.chat(model=llama)
    await back.start(port)
    try:
        assert [served_by(await rig.chat(model=llama)) for _ in range(20)].count("back") >= 18
        panic = {address: 5_000, spare: 5_000, other: 1}
        await pushed(panic, *panic)
        served = {served_by(await rig.chat(model=llama)) for _ in range(20)}
        assert served == {"back", "llama"}
        assert await is_passed_over(), "nothing was shown"
    finally:
        await rig.control_plane.set({TypeUrl.EDS: usual})
        await back.stop()


async def test_streams_go_on_through_every_change_of_the_policy(rig: Rig) -> None:
    long = json.loads(rig.policy.model_dump_json())
    long["listen"] |= {"stream_idle_timeout_s": 100, "max_stream_s": 100}
    await rig.control_plane.set(resources(Policy.model_validate(long)))
    stream = asyncio.create_task(rig.chat(stream=True, model="qwen", **{"x-do": "long"}))
    await until(lambda: rig.engines[1].calls and rig.engines[1].calls[-1].sent_at)
    other = json.loads(json.dumps(long))
    other["ext_proc"] |= {"sample_percent": 10, "reject_timeout_ms": 50}
    other["listen"] |= {"max_body_mib": 20, "cors_allow_origins": ["*"]}
    other["pools"][1] |= {
        "models": ["other"],
        "balancing": {"policy": "round_robin"},
        "retries": {"attempts": 3},
    }
    before, after = resources(Policy.model_validate(long)), resources(Policy.model_validate(other))
    assert {url for url in before if before[url] != after[url]} == {TypeUrl.CDS, TypeUrl.RDS, TypeUrl.RTDS}
    assert before[TypeUrl.LDS] == after[TypeUrl.LDS]
    for step in (after, before, after):
        await rig.control_plane.set(step)
    assert (await rig.chat(model="other")).status == 200
    assert (await rig.chat(model="qwen")).status == 404
    body = (await stream).body
    assert body == b"".join(chunk for _, chunk in tokens(40).chunks)
    assert body.count(event("token 39")) == 1
    await rig.control_plane.set(resources(rig.policy))


async def test_a_pool_has_time_outs_of_its_own_and_streams_keep_theirs(rig: Rig) -> None:
    """`long` takes 4 s. Before its body is here, a request has the limits of the first pool."""
    llama, qwen = "meta-llama/Llama-3.1-8B", "qwen"
    usual = resources(rig.policy)
    patient = json.loads(rig.policy.model_dump_json())
    patient["pools"][1]["timeouts"] = {"stream_idle_s": 2.6, "max_stream_s": 100}
    longer = resources(Policy.model_validate(patient))
    assert {url for url in usual if usual[url] != longer[url]} == {TypeUrl.RDS}

    async def is_whole(model: str) -> bool:
        try:
            return b"[DONE]" in (await rig.chat(stream=True, model=model, **{"x-do": "long"})).body
        except aiohttp.ClientPayloadError:
            return False

    async def silence_s(model: str) -> float:
        begun = time.monotonic()
        assert (await rig.chat(model=model, **{"x-do": "hang"})).status == 504
        return time.monotonic() - begun

    await rig.control_plane.set(longer)
    calls = len(rig.engines[1].calls)
    under_way = asyncio.gather(is_whole(llama), is_whole(qwen), silence_s(llama), silence_s(qwen))
    await until(lambda: len(rig.engines[1].calls) == calls + 2)
    await rig.control_plane.set(usual)
    assert not await is_whole(qwen)
    *whole, llama_s, qwen_s = await under_way
    assert whole == [False, True]
    assert llama_s == pytest.approx(1.2, abs=0.9)
    assert qwen_s == pytest.approx(2.6, abs=0.9)
    assert llama_s < qwen_s - 0.7


async def test_a_pool_is_drilled_without_its_engines_and_the_other_pool(rig: Rig) -> None:
    drilled = json.loads(rig.policy.model_dump_json())
    drilled["pools"][1]["fault_injection"] = {
        "abort_percent": 100,
        "abort_status": 529,
        "delay_percent": 100,
        "delay_ms": 300,
    }
    before, after = resources(rig.policy), resources(Policy.model_validate(drilled))
    assert {url for url in before if before[url] != after[url]} == {TypeUrl.RDS}
    calls = len(rig.engines[1].calls)
    await rig.control_plane.set(after)
    refused, other = await rig.chat(model="qwen"), await rig.chat(model="meta-llama/Llama-3.1-8B")
    await rig.control_plane.set(before)
    assert (refused.status, refused.headers["x-trimtab-reason"], other.status) == (529, "drill", 200)
    assert json.loads(refused.body)["error"]["message"].startswith("The gateway is being drilled")
    assert refused.first_byte_at - refused.sent_at >= 0.29
    assert len(rig.engines[1].calls) == calls
    assert (await rig.chat(model="qwen")).status == 200
