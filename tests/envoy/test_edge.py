"""What a client meets: the real Envoy before one pool of two engines."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio
from aiohttp import web

from tests.envoy.h2_client import H2Client, leave_and_free
from tests.envoy.rig import Rig, running
from tests.harness import Body, Chunks, Reset, Step, error, event, tokens
from trimtab.observation.kinds import AttemptEnded, AttemptStarted, Outcome

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

MIB = 1 << 20
JSON = {"content-type": "application/json"}


class Script:
    """Answers as the `x-do` header says; after `once-` only the first attempt of a request does so."""

    def __init__(self) -> None:
        self._attempts: Counter[str] = Counter()

    def __call__(self, request: web.Request, body: bytes) -> Step:
        request_id = request.headers["x-request-id"]
        self._attempts[request_id] += 1
        do = request.headers.get("x-do", "")
        if do.startswith("once-"):
            do = do.removeprefix("once-") if self._attempts[request_id] == 1 else ""
        match do:
            case "503":
                return error(503, "currently busy")
            case "reset":
                return Reset()
            case "headers":
                return Body(body=json.dumps({key.lower(): value for key, value in request.headers.items()}).encode())
            case "cors":
                own = {"access-control-allow-origin": "*", "access-control-allow-credentials": "true"}
                return Body(headers=JSON | own)
            case "stream":
                return tokens(5, 0.01, 0.01)
            case "dies":
                return Chunks([(0, event("a")), (0.01, event("b"))], cut=True)
            case "long":
                return tokens(600, 0.01, 0.05)
        return Body(body=json.dumps({"path": request.path_qs, "bytes": len(body)}).encode())


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def rig(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Rig]:
    script = Script()
    async with running(tmp_path_factory.mktemp("edge"), [script, script]) as started:
        yield started
        started.check()


async def test_a_clients_request_id_is_never_taken_over(rig: Rig) -> None:
    answers = [await rig.chat(**{"x-request-id": "mine", "x-do": "headers"}) for _ in range(2)]
    ids = {answer.request_id for answer in answers}
    assert len(ids) == 2
    assert "mine" not in ids
    assert {json.loads(answer.body)["x-request-id"] for answer in answers} == ids


async def test_a_client_cannot_steer_envoy_by_headers(rig: Rig) -> None:
    answer = await rig.chat(
        **{
            "x-do": "503",
            "x-envoy-max-retries": "9",
            "x-envoy-retry-on": "5xx",
            "x-envoy-upstream-rq-timeout-ms": "1",
        }
    )
    assert answer.status == 503
    await rig.told(AttemptEnded, answer.request_id, 3)


async def test_engines_are_asked_for_answers_that_are_not_encoded(rig: Rig) -> None:
    """Whatever the client takes: an encoded one could not be read as it passes."""
    answer = await rig.chat(**{"accept-encoding": "gzip, br, zstd", "x-do": "headers"})
    assert {name.lower(): value for name, value in json.loads(answer.body).items()}["accept-encoding"] == "identity"


async def test_what_a_client_says_in_envoys_name_reaches_no_engine(rig: Rig) -> None:
    names = [f"x-envoy-{name}" for name in ("attempt-count", "original-path", "external-address", "made-up")]
    answer = await rig.chat(**{"x-do": "headers", "x-mine": "1", **dict.fromkeys(names, "9")})
    seen = json.loads(answer.body)
    assert seen["x-mine"] == "1"
    assert {name: value for name, value in seen.items() if name.startswith("x-envoy-") and value == "9"} == {}


async def test_an_answer_passes_unchanged_under_our_name(rig: Rig) -> None:
    answer = await rig.chat()
    assert json.loads(answer.body)["path"] == "/v1/chat/completions"
    assert answer.headers["server"] == "trimtab"
    assert not [name for name in answer.headers if name.lower().startswith("x-envoy")]


@pytest.mark.parametrize("path", ["/metrics", "/sleep", "/", "/v1", "/v1/../metrics", "//metrics", "/V1/models"])
async def test_an_engines_own_paths_are_not_for_clients(rig: Rig, path: str) -> None:
    answer = await rig.ask("POST", path, json={"model": "m"})
    assert answer.status == 404
    assert answer.headers["x-trimtab-reason"] == "no-such-path"
    assert json.loads(answer.body)["error"]["type"] == "NotFoundError"


async def test_sloppy_paths_are_put_right(rig: Rig) -> None:
    answer = await rig.ask("POST", "//v1//chat/../chat/completions?a=b%2Fc", json={})
    assert json.loads(answer.body)["path"] == "/v1/chat/completions?a=b/c"


@pytest.mark.parametrize(
    ("body", "content_type", "streamed"),
    [
        (b'{"model": "m", "stream": true}', "application/json", True),
        (b'{"model": "m", "stream": true}', "Application/JSON; charset=utf-8", True),
        (b'{"model": "m", "stream": true}', "application/vnd.api+json", True),
        (b'{"model": "m", "stream": true}', "application/x-www-form-urlencoded", True),
        (b'{"model": "m", "stream": true}', "", True),
        (b'{"stream": true}', "application/json", True),
        (b'{"model": "m", "stream": false}', "application/json", False),
        (b'{"model": "m", "stream": null}', "application/json", False),
        (b'{"model": "m"}', "application/json", False),
        (b"[1]", "application/json", False),
        (b"", "application/json", False),
        (b'{"model": "m", "stream": "yes"}', "application/json", None),
        (b'{"model": "m", "stream"', "application/json", None),
        (b'{"model": "m", "seed": 9223372036854775808, "stream": true}', "application/json", None),
        (b'{"model": "m", "stream": true}', "multipart/form-data; boundary=x", None),
        (b"\x1f\x8b\x00", "application/octet-stream", None),
    ],
)
async def test_what_was_asked_for_is_read_from_the_body(
    rig: Rig, body: bytes, content_type: str, streamed: bool | None
) -> None:
    answer = await rig.ask("POST", "/v1/x", data=body, headers={"content-type": content_type})
    assert answer.status == 200
    assert json.loads(answer.body)["bytes"] == len(body)
    (start,) = await rig.told(AttemptStarted, answer.request_id)
    assert start.streamed is streamed


async def test_a_get_is_no_stream(rig: Rig) -> None:
    answer = await rig.ask("GET", "/v1/models")
    assert json.loads(answer.body)["path"] == "/v1/models"
    (start,) = await rig.told(AttemptStarted, answer.request_id)
    assert (start.streamed, start.prompt_bytes) == (False, None)


async def chunked(size: int) -> AsyncIterator[bytes]:
    for at in range(0, size, MIB):
        yield b"a" * min(MIB, size - at)


@pytest.mark.parametrize("size", [32_767, 32_768, 32_769, MIB + 1, 12 * MIB, 16 * MIB])
@pytest.mark.parametrize("do", ["", "once-503", "once-reset"])
async def test_a_long_prompt_arrives_whole_and_can_be_sent_again(rig: Rig, size: int, do: str) -> None:
    prompt = b'{"model":"m","prompt":"' + b"a" * (size - 25) + b'"}'
    answer = await rig.ask("POST", "/v1/x", data=prompt, headers={**JSON, "x-do": do})
    assert (answer.status, json.loads(answer.body)["bytes"]) == (200, size)
    seen = await rig.told(AttemptStarted, answer.request_id, 2 if do else 1)
    assert {start.prompt_bytes for start in seen} == {size}
    assert len({start.address for start in seen}) == len(seen)


async def test_the_length_of_a_prompt_in_chunks_is_known_too(rig: Rig) -> None:
    answer = await rig.ask("POST", "/v1/x", data=chunked(12 * MIB), headers={"x-do": "once-503"})
    assert (answer.status, json.loads(answer.body)["bytes"]) == (200, 12 * MIB)
    assert [start.prompt_bytes for start in await rig.told(AttemptStarted, answer.request_id, 2)] == [12 * MIB] * 2


@pytest.mark.parametrize("content_type", ["application/json", "application/octet-stream"])
async def test_a_longer_one_is_refused_as_an_api_would(rig: Rig, content_type: str) -> None:
    answer = await rig.ask("POST", "/v1/x", data=chunked(16 * MIB + 1), headers={"content-type": content_type})
    assert answer.status == 413
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["x-trimtab-reason"] == "request-too-large"
    assert json.loads(answer.body)["error"]["type"] == "BadRequestError"


async def test_an_engines_error_passes_as_it_is_when_retries_are_used_up(rig: Rig) -> None:
    answer = await rig.chat(**{"x-do": "503"})
    assert (answer.status, json.loads(answer.body)["error"]["message"]) == (503, "currently busy")
    assert "x-trimtab-reason" not in answer.headers


async def test_a_broken_connection_is_explained(rig: Rig) -> None:
    answer = await rig.chat(**{"x-do": "reset"})
    assert (answer.status, answer.headers["x-trimtab-reason"]) == (503, "endpoint-reset")
    assert json.loads(answer.body)["error"] == {
        "message": "The endpoint broke the connection.",
        "type": "ServiceUnavailableError",
        "param": None,
        "code": 503,
    }


async def test_it_is_explained_in_anthropics_protocol_where_that_was_asked(rig: Rig) -> None:
    answer = await rig.ask("POST", "/v1/messages", json={"model": "m"}, headers={"x-do": "reset"})
    assert (answer.status, answer.headers["x-trimtab-reason"]) == (503, "endpoint-reset")
    assert json.loads(answer.body) == {
        "type": "error",
        "error": {"type": "api_error", "message": "The endpoint broke the connection."},
    }
    too_large = await rig.ask("POST", "/v1/messages", data=chunked(16 * MIB + 1))
    assert (too_large.status, json.loads(too_large.body)["error"]["type"]) == (413, "request_too_large")


@pytest.mark.parametrize("line", [b"content-length: many", b"bad header: x", b"x: " + b"a" * 100_000])
async def test_a_malformed_request_is_explained_too(rig: Rig, line: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", rig.policy.listen.port)
    writer.write(b"\r\n".join((b"GET /v1/models HTTP/1.1", b"host: x", line, b"", b"")))
    head, body = (await asyncio.wait_for(reader.read(), 5)).split(b"\r\n\r\n")
    writer.close()
    assert head.startswith(b"HTTP/1.1 4")
    assert b"x-trimtab-reason: bad-request" in head.lower()
    assert json.loads(body)["error"]["type"] == "BadRequestError"


@pytest.mark.parametrize(
    ("lines", "status", "cause"),
    [
        ((b"host: x", b"connection: upgrade", b"upgrade: websocket"), 403, "upgrade_failed"),
        ((b"accept: */*",), 400, "missing_host_header"),
    ],
    ids=["websocket", "without a host"],
)
async def test_what_envoy_never_passes_on_is_explained(
    rig: Rig, lines: tuple[bytes, ...], status: int, cause: str
) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", rig.policy.listen.port)
    writer.write(b"\r\n".join((b"GET /v1/realtime HTTP/1.1", *lines, b"", b"")))
    head = (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)).lower()
    (length,) = (int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.startswith(b"content-length:"))
    body = await asyncio.wait_for(reader.readexactly(length), 5)
    writer.close()
    assert head.startswith(b"http/1.1 %d " % status)
    assert b"x-trimtab-reason: bad-request" in head
    error = json.loads(body)["error"]
    assert (error["type"], error["code"]) == ("BadRequestError", status)
    assert error["message"] == f"The gateway refuses the request: {cause}"


ORIGIN = {"origin": "https://chat.example.com"}


async def test_a_browsers_preflight_is_answered_here(rig: Rig) -> None:
    before = sum(len(engine.calls) for engine in rig.engines)
    asks = {
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization,content-type",
    }
    answer = await rig.ask("OPTIONS", "/v1/chat/completions", headers={**ORIGIN, **asks})
    assert answer.status == 200
    assert answer.headers["access-control-allow-origin"] == ORIGIN["origin"]
    assert "POST" in answer.headers["access-control-allow-methods"]
    assert "authorization" in answer.headers["access-control-allow-headers"]
    assert sum(len(engine.calls) for engine in rig.engines) == before


@pytest.mark.parametrize("do", ["", "cors", "stream", "503", "reset"])
async def test_a_browser_may_read_every_answer_and_an_engine_adds_nothing(rig: Rig, do: str) -> None:
    answer = await rig.chat(**ORIGIN, **{"x-do": do})
    assert answer.headers.getall("access-control-allow-origin") == [ORIGIN["origin"]]
    assert "x-request-id" in answer.headers["access-control-expose-headers"]
    assert "access-control-allow-credentials" not in answer.headers


async def test_a_client_that_waits_for_a_hundred_gets_it(rig: Rig) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", rig.policy.listen.port)
    headers = (b"host: x", b"connection: close", b"content-length: 20000", b"expect: 100-continue")
    writer.write(b"\r\n".join((b"POST /v1/x HTTP/1.1", *headers, b"", b"")))
    assert await asyncio.wait_for(reader.readline(), 5) == b"HTTP/1.1 100 Continue\r\n"
    writer.write(b"a" * 20_000)
    assert b'"bytes": 20000' in await asyncio.wait_for(reader.read(), 5)
    writer.close()


async def test_http_2_without_tls_is_understood(rig: Rig) -> None:
    async with httpx.AsyncClient(http1=False, http2=True) as client:
        answer = await client.post(f"{rig.url}/v1/x", json={})
    assert (answer.http_version, answer.status_code) == ("HTTP/2", 200)


@pytest.mark.parametrize("http2", [False, True], ids=["HTTP/1.1", "HTTP/2"])
async def test_an_answer_that_dies_half_way_is_never_passed_off_as_a_whole_one(rig: Rig, http2: bool) -> None:
    """The connection breaks, or the stream is reset; what came until then is there, once."""
    body = bytearray()
    async with httpx.AsyncClient(http1=not http2, http2=http2) as client:
        with pytest.raises(httpx.RemoteProtocolError):
            async with client.stream("POST", f"{rig.url}/v1/x", json={}, headers={"x-do": "dies"}) as answer:
                assert answer.status_code == 200
                async for piece in answer.aiter_bytes():
                    body += piece
    assert bytes(body) == event("a") + event("b")
    (end,) = await rig.told(AttemptEnded, answer.headers["x-request-id"])
    assert (end.outcome, end.status) == (Outcome.RESET, 200)


@pytest.mark.parametrize("http2", [False, True], ids=["HTTP/1.1", "HTTP/2"])
async def test_a_client_that_leaves_frees_its_engine_within_a_second(rig: Rig, http2: bool) -> None:
    async with (
        httpx.AsyncClient(http1=not http2, http2=http2) as client,
        client.stream("POST", f"{rig.url}/v1/x", json={}, headers={"x-do": "long"}) as answer,
    ):
        await anext(answer.aiter_bytes())
        request_id = answer.headers["x-request-id"]
    left_at = time.time()
    (end,) = await rig.told(AttemptEnded, request_id)
    (call,) = (call for engine in rig.engines for call in engine.calls if call.request_id == request_id)
    assert end.outcome is Outcome.ABORTED
    assert end.at < left_at + 1
    assert call.sent_at[-1] < left_at + 1


@pytest.mark.parametrize("reset", [True, False], ids=["stream reset", "connection closed"])
async def test_an_http_2_client_frees_its_engine_within_a_second(rig: Rig, reset: bool) -> None:
    """By RST_STREAM on a connection that stays, or by closing it."""
    before = sum(len(engine.calls) for engine in rig.engines)
    async with H2Client.connected(rig.policy.listen.port) as client:
        stream = client.post("/v1/x", {}, **{"x-do": "long"})
        await client.first_data(stream)
        calls = [call for engine in rig.engines for call in engine.calls]
        assert len(calls) == before + 1
        call = max(calls, key=lambda call: call.arrived_at)
        await leave_and_free(client, stream, rig, call, reset=reset)


async def test_200_streams_at_once_are_not_mixed(rig: Rig) -> None:
    def script(request: web.Request, body: bytes) -> Step:
        return tokens(20, 0.05, 0.005, text=f"{json.loads(body)['model']} ")

    before = [engine.script for engine in rig.engines]
    for engine in rig.engines:
        engine.script = script
    try:
        answers: list[Any] = await asyncio.gather(*(rig.chat(stream=True, model=f"m{n}") for n in range(200)))
    finally:
        for engine, old in zip(rig.engines, before, strict=True):
            engine.script = old
    for number, answer in enumerate(answers):
        assert answer.body == b"".join(chunk for _, chunk in tokens(20, text=f"m{number} ").chunks)
