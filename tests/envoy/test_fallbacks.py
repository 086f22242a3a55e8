"""Who serves in place of a pool, on the real Envoy; the control plane's splits are set by hand."""

import json
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web

from tests.envoy.rig import Answer, Rig, running
from tests.harness import Body, FakeEngine, Step
from trimtab.observation.kinds import AttemptEnded
from xds_server.ads.snapshot import TypeUrl
from xds_server.config import RUNTIME_NAME, runtime_resource
from xds_server.config.fallbacks import runtime_of

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

CACHE = 2  # the engine that plays it


def script(name: str) -> Any:
    def answer(request: web.Request, body: bytes) -> Step:
        return Body(body=json.dumps({"engine": name}).encode())

    return answer


def pools(engines: list[FakeEngine]) -> list[dict[str, Any]]:
    big, small, cache = engines
    answer = {"message": 'The "big" model is 100% down.', "retry_after_s": 7}
    return [
        {
            "name": "big",
            "models": ["big"],
            "endpoints": [{"address": big.address}],
            "fallbacks": [{"pool": "small"}, {"address": cache.address}, {"answer": answer}],
        },
        {
            "name": "classed",
            "models": ["classed"],
            "classes": [{"name": "short", "up_to_tokens": 100}, {"name": "long"}],
            "endpoints": [{"address": big.address}],
            "fallbacks": [{"pool": "small"}],
        },
        {
            "name": "small",
            "classes": [{"name": "short", "up_to_tokens": 100}, {"name": "long"}],
            "endpoints": [{"address": small.address}],
        },
    ]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def rig(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Rig]:
    scripts = [script("big"), script("small"), script("cache")]
    async with running(tmp_path_factory.mktemp("fallbacks"), scripts, pools=pools) as started:
        yield started
        started.check()


async def split(rig: Rig, *parts: float, pool: int = 0) -> None:
    entries = runtime_of(rig.policy.pools[pool], parts, {pool.name: pool for pool in rig.policy.pools})
    await rig.control_plane.set({TypeUrl.RTDS: {RUNTIME_NAME: runtime_resource(100, entries)}})


def served_by(answer: Answer) -> tuple[str, str | None]:
    return json.loads(answer.body).get("engine", "nobody"), answer.headers.get("x-trimtab-fallback")


async def test_before_anything_is_said_the_pool_serves(rig: Rig) -> None:
    assert served_by(await rig.chat(model="big")) == ("big", None)


@pytest.mark.parametrize(
    ("parts", "engine"), [((0, 1, 0, 0), "small"), ((0, 0, 1, 0), "cache"), ((1, 0, 0, 0), "big")], ids=str
)
async def test_each_step_serves_and_is_named(rig: Rig, parts: Sequence[float], engine: str) -> None:
    await split(rig, *parts)
    names = {"small": "small", "cache": rig.engines[CACHE].address, "big": None}
    answer = await rig.chat(model="big")
    assert served_by(answer) == (engine, names[engine])
    assert served_by(await rig.chat(model="other")) == ("small", None), "the fallback's own work is none of it"
    if engine == "small":
        (end,) = await rig.told(AttemptEnded, answer.request_id)
        assert end.pool == "small"


@pytest.mark.parametrize("length", [10, 1000])
async def test_every_length_class_has_the_fallback(rig: Rig, length: int) -> None:
    body = {"model": "classed", "messages": [{"role": "user", "content": "x" * length}]}
    for parts, expected in (((1, 0), ("big", None)), ((0, 1), ("small", "small"))):
        await split(rig, *parts, pool=1)
        assert served_by(await rig.ask("POST", "/v1/chat/completions", json=body)) == expected


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
async def test_a_static_answer_has_the_shape_of_the_api(rig: Rig, path: str) -> None:
    await split(rig, 0, 0, 0, 1)
    answer = await rig.ask("POST", path, json={"model": "big", "stream": True})
    assert (answer.status, answer.headers["retry-after"]) == (503, "7")
    assert answer.headers["x-trimtab-fallback"] == "answer"
    assert answer.headers.getall("x-trimtab-reason") == ["fallback-answer"]
    said = json.loads(answer.body)
    assert said["error"]["message"] == 'The "big" model is 100% down.'
    anthropic = path == "/v1/messages"
    assert said.get("type") == ("error" if anthropic else None)
    assert said["error"]["type"] == ("overloaded_error" if anthropic else "ServiceUnavailableError")


async def test_a_split_is_kept(rig: Rig) -> None:
    await split(rig, 0.6, 0.25, 0.05, 0.1)
    counts = Counter([served_by(await rig.chat(model="big"))[0] for _ in range(400)])
    assert counts["big"] == pytest.approx(240, abs=45)
    assert counts["small"] == pytest.approx(100, abs=40)
    assert counts["cache"] == pytest.approx(20, abs=18)
    assert counts["nobody"] == pytest.approx(40, abs=28)
