"""Length classes on the real Envoy: the length of a body chooses the cluster, and all reports name the pool."""

import json
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web

from tests.envoy.control_plane import assignment
from tests.envoy.rig import Answer, Rig, resources, running
from tests.harness import FakeEngine, Step, error, tokens
from trimtab.observation.kinds import AttemptEnded, AttemptStarted, FirstToken, LoadReported, Rejected, Verdict
from xds_server.ads.snapshot import TypeUrl

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

LIMIT = 400  # bytes: 100 tokens


def script(request: web.Request, body: bytes) -> Step:
    return error(503, "engine is full") if request.headers.get("x-do") == "full" else tokens(2)


def pools(engines: list[FakeEngine]) -> list[dict[str, Any]]:
    endpoints = [{"address": engine.address} for engine in engines]
    classes = [
        {"name": "short", "up_to_tokens": LIMIT // 4},
        {"name": "medium", "up_to_tokens": 5000},
        {"name": "long"},
    ]
    return [
        {
            "name": "p",
            "endpoints": endpoints,
            "classes": classes,
            "balancing": {"policy": "round_robin"},
            "retries": {"attempts": 0},
        }
    ]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def rig(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Rig]:
    async with running(tmp_path_factory.mktemp("classes"), [script, script], pools=pools) as started:
        yield started
        started.check()


def chat(size: int, model: str = "m") -> bytes:
    """A chat whose body has so many bytes."""
    whole = {"model": model, "stream": True, "messages": [{"role": "user", "content": ""}]}
    whole["messages"] = [{"role": "user", "content": "x" * (size - len(json.dumps(whole)))}]
    body = json.dumps(whole).encode()
    assert len(body) == size
    return body


async def in_chunks(body: bytes) -> AsyncIterator[bytes]:
    for begin in range(0, len(body), 4096):
        yield body[begin : begin + 4096]


async def send(rig: Rig, body: Any, content_type: str = "application/json", **headers: str) -> Answer:
    return await rig.ask("POST", "/v1/chat/completions", data=body, headers={"content-type": content_type, **headers})


async def weigh(rig: Rig, **weights: tuple[int, int]) -> None:
    """Put weights of the two engines in force, by class."""
    addresses = [engine.address for engine in rig.engines]
    of_class = {
        f"p/{name}": assignment(f"p/{name}", dict(zip(addresses, pair, strict=True))) for name, pair in weights.items()
    }
    await rig.control_plane.set({TypeUrl.EDS: resources(rig.policy)[TypeUrl.EDS] | of_class})


def served(rig: Rig, answer: Answer) -> int:
    """The number of the engine that answered."""
    assert answer.status == 200
    (number,) = [
        number
        for number, engine in enumerate(rig.engines)
        if any(call.request_id == answer.request_id for call in engine.calls)
    ]
    return number


ONLY = 10**6  # beside 1: the other is not picked in a test


async def test_each_class_goes_by_its_own_weights(rig: Rig) -> None:
    await weigh(rig, short=(300, 100), medium=(100, 100), long=(100, 300))
    for size, share in ((LIMIT, 0.75), (LIMIT + 1, 0.5), (30_000, 0.25)):
        counts = Counter([served(rig, await send(rig, chat(size))) for _ in range(40)])
        assert counts[0] / 40 == pytest.approx(share, abs=0.051)


@pytest.mark.parametrize("chunked", [False, True], ids=["with-a-length", "chunked"])
async def test_the_border_is_the_bodys_length_also_of_what_comes_in_chunks(rig: Rig, chunked: bool) -> None:
    await weigh(rig, short=(ONLY, 1), medium=(1, ONLY), long=(ONLY, 1))
    for size, engine in ((LIMIT, 0), (LIMIT + 1, 1), (20_000, 1), (20_001, 0), (300_000, 0)):
        body = chat(size)
        for _ in range(3):
            assert served(rig, await send(rig, in_chunks(body) if chunked else body)) == engine


async def test_a_body_that_is_no_json_has_a_length_too(rig: Rig) -> None:
    await weigh(rig, short=(ONLY, 1), medium=(1, ONLY), long=(1, ONLY))
    form, torn = b"--x\r\n" + b"y" * 3000, b'{"model": "m"' + b" " * 3000
    for body, content_type in ((form, "multipart/form-data; boundary=x"), (torn, "application/json")):
        for data in (body, in_chunks(body)):
            assert served(rig, await send(rig, data, content_type)) == 1


async def test_what_has_no_body_is_short(rig: Rig) -> None:
    await weigh(rig, short=(ONLY, 1), medium=(1, ONLY), long=(1, ONLY))
    assert served(rig, await rig.ask("GET", "/v1/models")) == 0


async def test_all_that_is_seen_is_of_the_pool(rig: Rig) -> None:
    await weigh(rig, short=(ONLY, 1), medium=(ONLY, 1), long=(ONLY, 1))
    for size in (LIMIT, 1000, 30_000):
        good, bad = await send(rig, chat(size)), await send(rig, chat(size), **{"x-do": "full"})
        assert bad.status == 503
        (rejected,) = await rig.told(Rejected, bad.request_id)
        assert rejected.verdict is Verdict.SATURATED
        seen: list[Any] = [rejected, *await rig.told(FirstToken, good.request_id)]
        for kind in (AttemptStarted, AttemptEnded):
            seen += [*await rig.told(kind, good.request_id), *await rig.told(kind, bad.request_id)]
        assert {one.pool for one in seen} == {"p"}
        assert {one.prompt_bytes for one in rig.seen(AttemptStarted, good.request_id)} == {size}
    loads = [load for load in rig.control_plane.loads if isinstance(load, LoadReported)]
    assert {load.pool for load in loads if load.pool.startswith("p")} == {"p"}
