"""What engines tell of their load in headers, through a real Envoy."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web

from tests.envoy.rig import Rig, running
from tests.harness import Body, FakeEngine, Step, tokens, until
from trimtab.observation.kinds import Signals, SignalsRead

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

# As vLLM 0.32 writes them.
TEXT = "TEXT named_metrics.num_requests_waiting=4.0, named_metrics.kv_cache_usage_perc=0.25"
JSON = 'JSON {"named_metrics": {"num_requests_waiting": 2.0, "kv_cache_usage_perc": 0.75}}'


def tells(header: str) -> Any:
    def script(request: web.Request, body: bytes) -> Step:
        asked = request.headers.getall("endpoint-load-metrics-format", [])
        if json.loads(body or b"{}").get("stream"):
            return tokens(3) if not asked else Body(status=400, body=b"a stream was asked for its load")
        headers = {"content-type": "application/json"}
        if asked:
            headers["endpoint-load-metrics"] = header
        return Body(body=json.dumps(asked).encode(), headers=headers)

    return script


def pools(engines: list[FakeEngine]) -> list[dict[str, Any]]:
    names = ("text", "json", "percent", "never")
    return [
        {
            "name": name,
            "models": [name],
            "endpoints": [{"address": engine.address}],
            "signals": {"orca": name != "never"},
        }
        for name, engine in zip(names, engines, strict=True)
    ]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def rig(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Rig]:
    percent = TEXT.replace("0.25", "25.0")
    scripts = [tells(TEXT), tells(JSON), tells(percent), tells(TEXT)]
    async with running(tmp_path_factory.mktemp("orca"), scripts, pools=pools) as started:
        yield started
        started.check()


async def reading(rig: Rig, pool: str) -> SignalsRead:
    def found() -> list[SignalsRead]:
        return [load for load in rig.control_plane.loads if isinstance(load, SignalsRead) and load.pool == pool]

    await until(found, what=f"what {pool} says of itself")
    return found()[-1]


@pytest.mark.parametrize(
    ("pool", "signals"),
    [("text", Signals(waiting=4, kv_usage=0.25)), ("json", Signals(waiting=2, kv_usage=0.75))],
)
async def test_an_engine_is_asked_and_what_it_tells_stays_here(rig: Rig, pool: str, signals: Signals) -> None:
    for _ in range(3):
        answer = await rig.chat(model=pool)
        assert json.loads(answer.body) == ["TEXT"]
        assert "endpoint-load-metrics" not in answer.headers
    seen = await reading(rig, pool)
    assert (seen.source, seen.signals, seen.error) == ("orca", signals, "")
    assert seen.origins["waiting"] == "named_metrics.num_requests_waiting"


async def test_a_clients_own_wish_is_overruled(rig: Rig) -> None:
    answer = await rig.chat(model="text", **{"endpoint-load-metrics-format": "JSON"})
    assert json.loads(answer.body) == ["TEXT"]
    assert "endpoint-load-metrics" not in answer.headers


async def test_what_cannot_be_true_is_unknown(rig: Rig) -> None:
    await rig.chat(model="percent")
    seen = await reading(rig, "percent")
    assert seen.signals == Signals(waiting=4)
    assert "25 is no share" in seen.unknown["kv_usage"]


async def test_streams_are_not_asked(rig: Rig) -> None:
    answer = await rig.chat(model="text", stream=True)
    assert answer.status == 200 and b"[DONE]" in answer.body


async def test_a_pool_that_does_not_want_it_leaves_headers_alone(rig: Rig) -> None:
    answer = await rig.chat(model="never")
    assert json.loads(answer.body) == []
    answer = await rig.chat(model="never", **{"endpoint-load-metrics-format": "TEXT"})
    assert answer.headers["endpoint-load-metrics"] == TEXT
