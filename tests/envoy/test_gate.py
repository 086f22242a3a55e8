"""The first-token gate and retries by verdict, on real Envoy: what clients get, and what it costs in attempts."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any, ClassVar

import pytest
import pytest_asyncio
from aiohttp import web

from tests.envoy.h2_client import H2Client, leave_and_free
from tests.envoy.rig import Answer, Rig, running
from tests.harness import DONE, Body, Chunks, FakeEngine, Hang, Step, error, event, tokens, until
from trimtab.datapath import REASON_HEADER, RETRY_HEADER
from trimtab.observation.kinds import AttemptEnded, FirstToken, Rejected, Verdict
from trimtab.v1 import observation_stream_pb2 as pb
from xds_server.ads.snapshot import TypeUrl
from xds_server.config import RUNTIME_NAME, runtime_resource
from xds_server.config.local_replies import ANTHROPIC_PATH

pytestmark = [pytest.mark.integration, pytest.mark.alone, pytest.mark.asyncio(loop_scope="module")]

DEADLINE_S = 1.0
ROLE = event("", role="assistant")
DEAD = b'data: {"error":{"message":"EngineCore encountered an issue.","type":"InternalServerError","code":500}}\n\n'
FULL = b'data: {"error":{"message":"The request queue is full.","type":"SERVICE_UNAVAILABLE","code":503}}\n\n'
OVERLOADED = (
    b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error","message":"100 %","code":529}}\n\n'
)
LIMIT = b'{"error":{"message":"Rate limit reached","type":"tokens","code":"rate_limit_exceeded"}}'
FOREIGN = b'data: {"type":"transcript.text.delta","delta":"hello"}\n\n'


class Script:
    """Each request carries the steps of its attempts, in order, by name; the last is repeated."""

    steps: ClassVar[dict[str, Step]] = {
        "tokens": tokens(4, 0.05, 0.01),
        "silent": Chunks([(0, b": ping\n\n"), (0, ROLE), *[(0.2, b": ping\n\n")] * 100]),
        "hang": Hang(),
        "reset": Chunks([], cut=True),
        "dead": Chunks([(0, ROLE), (0.02, DEAD), (0, DONE)]),
        "full": Chunks([(0, FULL), (0, DONE)]),
        "full-open": Chunks([(0, FULL), (60, DONE)]),
        "overloaded-open": Chunks([(0, OVERLOADED), *[(0.2, b": ping\n\n")] * 300]),
        "deep-error": Chunks([(0, b"event: error\ndata: " + b"[" * 100_000 + b"\n\n")]),
        "empty": Chunks([]),
        "cut": Chunks([(0, ROLE)], cut=True),
        "limit-event": Chunks([(0, b"data: " + LIMIT + b"\n\n"), (0, DONE)]),
        "limit-open": Chunks([(0, b"data: " + LIMIT + b"\n\n"), (60, DONE)]),
        "odd-coding": Chunks(
            [(0, b"\x01\x02"), (1, b"\x03")], headers={"content-type": "text/event-stream", "content-encoding": "x-odd"}
        ),
        "foreign": Chunks([(0, FOREIGN), (1, FOREIGN)]),
        "json": Body(),
        "slow-json": Body(after_s=DEADLINE_S + 0.5),
        "busy": error(503, "The engine is currently busy and cannot accept new requests."),
        "long-busy": Body(503, b" " * 200_000),
        "saturated": error(429, "KV cache exhausted", "engine_saturated"),
        "quota": Body(429, LIMIT),
        "not-found": error(404, "The model `m` does not exist.", "NotFoundError"),
        "moved": Body(307, b"", {"location": "/elsewhere"}),
        "nothing": Body(204, b"", {}),
        "page": Body(200, b"<html></html>", {"content-type": "text/html"}),
        "json-error": Body(200, b'{"error": {"message": "Internal error", "code": 500}}'),
        "cut-json": Body(200, b'{"choices": [{"message"'),
        "other-json": Body(200, b'{"status": "ok"}'),
        "done-alone": Chunks([(0, DONE)]),
        "ndjson": Chunks(
            [(0, b'{"response": "a"}\n'), (1, b'{"response": "b"}\n')], headers={"content-type": "application/x-ndjson"}
        ),
        "sound": Chunks([(0, b"\x00\x01"), (1, b"\x02")], headers={"content-type": "audio/mpeg"}),
        "whole-json": Body(200, b'{"choices": [{"message": {"content": "hi"}}]}'),
        "unsaid-429": Body(429, b"?"),
        "unsaid-500": Body(500, b"?"),
        "dead-500": error(500, "EngineCore encountered an issue."),
    }

    def __init__(self) -> None:
        self.attempts: Counter[str] = Counter()

    def __call__(self, request: web.Request, body: bytes) -> Step:
        request_id = request.headers["x-request-id"]
        names = request.headers["x-do"].split(",")
        self.attempts[request_id] += 1
        return self.steps[names[min(self.attempts[request_id], len(names)) - 1]]


SCRIPT = Script()


def gated_pools(engines: list[FakeEngine]) -> list[dict[str, Any]]:
    endpoints = [{"address": engine.address} for engine in engines]
    gate = {"enabled": True, "first_token_deadline_ms": round(DEADLINE_S * 1000)}
    return [{"name": "gated", "models": ["gated"], "endpoints": endpoints, "gate": gate}]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def rig(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Rig]:
    async with running(tmp_path_factory.mktemp("gate"), [SCRIPT] * 3, pools=gated_pools) as started:
        yield started
        started.check()


async def do(rig: Rig, *steps: str, stream: bool = True, model: str = "gated") -> tuple[Answer, int]:
    """The client's answer, and how many attempts it took."""
    answer = await rig.chat(stream=stream, model=model, **{"x-do": ",".join(steps)})
    assert RETRY_HEADER not in answer.headers
    return answer, SCRIPT.attempts[answer.request_id]


def is_whole(answer: Answer) -> bool:
    step = Script.steps["tokens"]
    assert isinstance(step, Chunks)
    return answer.status == 200 and answer.body == b"".join(chunk for _, chunk in step.chunks)


async def test_a_good_answer_is_held_for_its_token_only(rig: Rig) -> None:
    answer, attempts = await do(rig, "tokens")
    assert is_whole(answer)
    assert attempts == 1
    assert answer.headers["content-type"] == "text/event-stream"


@pytest.mark.parametrize("step", ["silent", "hang"])
async def test_silence_costs_the_deadline(rig: Rig, step: str) -> None:
    """Also when it keeps the connection busy with comments and a role."""
    usual, _ = await do(rig, "tokens")
    answer, attempts = await do(rig, step, "tokens")
    assert is_whole(answer)
    assert attempts == 2
    added_s = answer.first_byte_at - answer.sent_at - (usual.first_byte_at - usual.sent_at)
    assert DEADLINE_S - 0.05 < added_s < DEADLINE_S + 0.1


@pytest.mark.parametrize("reset", [True, False], ids=["stream reset", "connection closed"])
async def test_a_client_that_leaves_while_it_is_held_frees_its_engine(rig: Rig, reset: bool) -> None:
    before = [call for engine in rig.engines for call in engine.calls]
    async with H2Client.connected(rig.policy.listen.port) as client:
        stream = client.post("/v1/chat/completions", {"model": "gated", "stream": True}, **{"x-do": "silent"})
        new = lambda: [call for engine in rig.engines for call in engine.calls if call not in before]  # noqa: E731
        await until(lambda: new() and len(new()[0].sent_at) > 2, what="a held stream")
        (call,) = new()
        await leave_and_free(client, stream, rig, call, reset=reset)
    assert SCRIPT.attempts[call.request_id] == 1


@pytest.mark.parametrize(
    "step", ["dead", "full", "full-open", "empty", "cut", "busy", "long-busy", "saturated", "dead-500"]
)
async def test_the_engines_trouble_is_another_engines_work(rig: Rig, step: str) -> None:
    answer, attempts = await do(rig, step, "tokens")
    assert is_whole(answer)
    assert attempts == 2
    ends = await rig.told(AttemptEnded, answer.request_id, 2)
    assert len({end.address for end in ends}) == 2
    await rig.told(Rejected, answer.request_id, int(step != "cut"))
    await rig.told(FirstToken, answer.request_id)


@pytest.mark.parametrize(
    ("step", "status"),
    [("dead", 500), ("full", 503), ("full-open", 503), ("overloaded-open", 529), ("deep-error", 503), ("empty", 503)],
)
async def test_an_answer_that_is_an_error_everywhere_is_told_as_one(rig: Rig, step: str, status: int) -> None:
    """At once, also by an engine that does not end its answer: it is free then."""
    answer, attempts = await do(rig, step)
    assert (answer.status, attempts) == (status, 3)
    assert time.time() - answer.sent_at < 5
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers.get(REASON_HEADER) == ("empty-answer" if step == "empty" else None)
    await rig.told(AttemptEnded, answer.request_id, 3)
    await rig.told(Rejected, answer.request_id, 3)
    told = json.loads(answer.body)["error"]
    assert told["message"]
    assert told["code"] == status


async def test_an_answer_without_a_word_is_told_in_the_shape_of_the_api(rig: Rig) -> None:
    body = {"model": "gated", "stream": True, "messages": [{"role": "user", "content": "hi"}]}
    answer = await rig.ask("POST", ANTHROPIC_PATH, json=body, headers={"x-do": "empty"})
    assert (answer.status, answer.headers[REASON_HEADER]) == (503, "empty-answer")
    told = json.loads(answer.body)
    assert (told["type"], told["error"]["type"]) == ("error", "overloaded_error")


@pytest.mark.parametrize(
    ("step", "stream"), [("quota", True), ("quota", False), ("limit-event", True), ("limit-open", True)]
)
async def test_a_quota_is_never_spent_twice(rig: Rig, step: str, stream: bool) -> None:
    answer, attempts = await do(rig, step, "tokens", stream=stream)
    assert (answer.status, attempts) == (429, 1)
    assert answer.body == LIMIT
    assert [seen.verdict for seen in await rig.told(Rejected, answer.request_id)] == [Verdict.QUOTA]


@pytest.mark.parametrize(("step", "attempts"), [("unsaid-429", 3), ("unsaid-500", 1)])
async def test_what_does_not_say_why_is_retried_by_its_status(rig: Rig, step: str, attempts: int) -> None:
    assert (await do(rig, step))[1] == attempts


WITHOUT_OUTPUT = ["not-found", "moved", "nothing", "page", "json-error", "cut-json", "other-json", "done-alone"]


@pytest.mark.parametrize("step", WITHOUT_OUTPUT)
async def test_an_answer_without_output_is_tried_elsewhere(rig: Rig, step: str) -> None:
    answer, attempts = await do(rig, step, "tokens")
    assert is_whole(answer)
    assert attempts == 2


@pytest.mark.parametrize("step", [step for step in WITHOUT_OUTPUT if step != "moved"])  # which the client follows
async def test_one_that_every_endpoint_gives_reaches_the_client_as_it_is(rig: Rig, step: str) -> None:
    answer, attempts = await do(rig, step)
    given = Script.steps[step]
    assert answer.status == given.status
    assert answer.body == (given.body if isinstance(given, Body) else DONE)
    assert attempts <= 3
    again, attempts = await do(rig, "tokens")
    assert is_whole(again)


async def test_a_whole_answer_in_the_place_of_a_stream_passes(rig: Rig) -> None:
    answer, attempts = await do(rig, "whole-json")
    assert (answer.status, attempts) == (200, 1)


@pytest.mark.parametrize("step", ["odd-coding", "foreign", "ndjson", "sound"])
async def test_what_cannot_be_read_passes_at_once(rig: Rig, step: str) -> None:
    answer, attempts = await do(rig, step)
    assert (answer.status, attempts) == (200, 1)
    assert answer.first_byte_at - answer.sent_at < 0.5


@pytest.mark.parametrize("step", ["json", "slow-json"])
async def test_a_unary_answer_passes_unheld_and_without_a_deadline(rig: Rig, step: str) -> None:
    held = r"ext_proc\.(gate|reject).*streams_started"
    before = await rig.envoy.stats(held)
    answer, attempts = await do(rig, step, stream=False)
    assert (answer.status, attempts) == (200, 1)
    assert await rig.envoy.stats(held) == before
    assert before


async def test_a_refusal_is_not_retried_when_all_refuse(rig: Rig) -> None:
    def states(*given_work: str) -> pb.PoolStates:
        addresses = (engine.address for engine in rig.engines)
        endpoints = [pb.EndpointState(address=a, state="up" if a in given_work else "cooling") for a in addresses]
        return pb.PoolStates(pools=[pb.PoolState(pool="gated", endpoints=endpoints)])

    try:
        rig.ext_proc.retries.take_states(states())
        for step in ("busy", "saturated", "dead", "long-busy"):
            assert (await do(rig, step, "tokens"))[1] == 1
        rig.ext_proc.retries.take_states(states(*(engine.address for engine in rig.engines[:2])))
        assert (await do(rig, "busy", "tokens"))[1] == 2
    finally:
        rig.ext_proc.retries.take_states(pb.PoolStates())


async def test_the_only_endpoint_is_not_asked_again_by_all_that_wait_for_it(rig: Rig) -> None:
    limit = {"circuit_breakers.gated.default.max_retries": 1}
    await rig.control_plane.set({TypeUrl.RTDS: {RUNTIME_NAME: runtime_resource(100, limit)}})
    try:
        answers = await asyncio.gather(*(do(rig, "silent") for _ in range(6)))
        told = [(answer.status, answer.headers[REASON_HEADER]) for answer, _ in answers]
        assert told == [(504, "timeout")] * 6, "the retry that is not made is no reason of its own"
        assert sorted(attempts for _, attempts in answers) == [1, 1, 1, 1, 1, 3]
        answer, attempts = await do(rig, "reset", "tokens")
        assert (is_whole(answer), attempts) == (True, 2)
    finally:
        await rig.control_plane.set({TypeUrl.RTDS: {RUNTIME_NAME: runtime_resource(100)}})
    answers = await asyncio.gather(*(do(rig, "silent", "tokens") for _ in range(6)))
    assert [(is_whole(answer), attempts) for answer, attempts in answers] == [(True, 2)] * 6, "no limit is left"


async def test_what_was_held_is_counted(rig: Rig) -> None:
    counted = rig.ext_proc.counters.gated
    before = Counter(counted)
    await asyncio.gather(*(do(rig, "tokens") for _ in range(20)), do(rig, "dead", "tokens"), do(rig, "empty", "tokens"))
    await do(rig, "silent", "tokens")
    await until(lambda: counted["gone"] > before["gone"])
    assert counted - before == {"token": 23, "error": 1, "empty": 1, "gone": 1}


async def test_many_at_once_of_every_kind(rig: Rig) -> None:
    """Attempts of one request meet their own watchers, whatever order the streams come in."""
    kinds = ["tokens", "dead,tokens", "full,tokens", "empty,tokens", "cut,tokens", "busy,tokens", "silent,tokens"]
    begun = time.monotonic()
    answers = await asyncio.gather(*(do(rig, kinds[number % len(kinds)]) for number in range(140)))
    assert all(is_whole(answer) for answer, _ in answers)
    assert time.monotonic() - begun < DEADLINE_S + 4
    assert rig.ext_proc.counters.faults == 0
