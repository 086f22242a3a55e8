"""How long a context is, by the engine's list of models."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from tests.harness import until
from tests.unit.xds_server.signals.test_scraper import AtOnce, Readings, engine, pool
from trimtab.observation.kinds import SignalsRead
from xds_server.signals import Scraper, new_session
from xds_server.signals.model_card import read_card

RECORDED = (Path(__file__).parents[1] / "data" / "vllm_models.txt").read_bytes().splitlines()[-1]


# As llama.cpp's server lists its model, cut to what matters: two slots of 2048 tokens, of a model for 4096.
LLAMACPP = b'{"object": "list", "data": [{"id": "m", "object": "model", "meta": {"n_ctx": 2048, "n_ctx_train": 4096}}]}'


def listing(*lengths: object) -> bytes:
    return json.dumps({"data": [{"id": "m", "max_model_len": length} for length in lengths]}).encode()


def test_recorded() -> None:
    assert read_card(RECORDED).max_model_len == 2048


@pytest.mark.parametrize(
    ("body", "length", "why"),
    [
        (listing(8192), 8192, ""),
        (listing(8192, 4096, None), 4096, ""),
        (listing(), None, "/v1/models does not say it"),
        (listing(None), None, "/v1/models does not say it"),
        (listing(-1), None, "/v1/models: -1 is no length"),
        (listing("8192"), None, "/v1/models: '8192' is no length"),
        (listing(True), None, "/v1/models: True is no length"),
        (listing(float("nan")), None, "/v1/models: nan is no length"),
        (LLAMACPP, 2048, ""),
        (b'{"data": [{"meta": null}]}', None, "/v1/models does not say it"),
        (b'{"data": [{"meta": {"n_ctx": "2048"}}]}', None, "/v1/models: '2048' is no length"),
        (b'{"data": [{"meta": [2048]}]}', None, "/v1/models is no list of models"),
        (b"", None, "/v1/models is no list of models"),
        (b"<html>", None, "/v1/models is no list of models"),
        (b"[]", None, "/v1/models is no list of models"),
        (b'{"data": [{"max_model_len": %b}]}' % (b"9" * 400), None, "/v1/models: inf is no length"),
        (b'{"data": [{"max_model_len": %b}]}' % (b"9" * 5000), None, "/v1/models: inf is no length"),
        (b"[" * 100_000, None, "/v1/models is no list of models"),
        (b'{"data": [1]}', None, "/v1/models is no list of models"),
        (b"\xff", None, "/v1/models is no list of models"),
    ],
)
def test_list_of_models(body: bytes, length: float | None, why: str) -> None:
    card = read_card(body)
    assert (card.max_model_len, card.why) == (length, why)


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)
    )
)
def test_no_answer_is_fatal(data: Any) -> None:
    assert read_card(json.dumps({"data": data}).encode()).max_model_len is None


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with new_session() as session:
        yield session


async def readings_of(
    session: aiohttp.ClientSession, models: web.Response | None, kind: str = "vllm", **signals: object
) -> tuple[list[SignalsRead], list[str]]:
    """Some readings of an engine that answers `/v1/models` so (None: not at all), and the paths that were asked for."""
    asked = []

    async def handler(request: web.Request) -> web.StreamResponse:
        asked.append(request.path)
        if request.path != "/v1/models":
            return web.Response(text="vllm:num_requests_waiting 3\ntgi_queue_size 3\n")
        if models is None:
            request.transport.close()  # type: ignore[union-attr]
            return web.Response()
        return models

    readings = Readings()
    scraper = Scraper(readings.take, session, rng=AtOnce())
    async with engine(handler) as endpoint:
        scraper.update(pool(engine=kind, **signals), [endpoint])
        await until(lambda: len(readings) >= 3)
        await scraper.close()
    return readings, asked


async def test_it_is_asked_once_in_a_while_and_stays_in_the_readings(session: aiohttp.ClientSession) -> None:
    readings, asked = await readings_of(session, web.Response(body=listing(4096)))
    assert asked.count("/v1/models") == 1
    assert readings[0].unknown["max_model_len"] == "/v1/models was not read yet"
    assert {(r.signals.waiting, r.signals.max_model_len) for r in readings[1:]} == {(3, 4096)}
    assert readings[1].origins["max_model_len"] == "/v1/models"
    assert "max_model_len" not in readings[1].unknown


@pytest.mark.parametrize(
    ("models", "why"),
    [
        (web.Response(status=401), "HTTP 401 from /v1/models: it may want a scrape_token_file"),
        (web.Response(text="{}"), "/v1/models is no list of models"),
        (None, "Server disconnected"),
    ],
)
async def test_a_list_that_fails_costs_only_itself(
    session: aiohttp.ClientSession, models: web.Response | None, why: str
) -> None:
    readings, _ = await readings_of(session, models)
    assert {(r.error, r.signals.waiting) for r in readings} == {("", 3)}
    assert readings[-1].unknown["max_model_len"] == why


async def test_an_engine_whose_list_does_not_say_it_is_not_asked(session: aiohttp.ClientSession) -> None:
    _, asked = await readings_of(session, None, kind="tgi")
    assert set(asked) == {"/metrics"}


async def test_the_token_of_a_page_on_another_port_is_not_sent_here(session: aiohttp.ClientSession) -> None:
    async def metrics(request: web.Request) -> web.Response:
        return web.Response(text="vllm:num_requests_waiting 3\n")

    async with engine(metrics) as other:
        readings, asked = await readings_of(session, None, scrape_port=int(other.address.rpartition(":")[2]))
    assert asked == []
    assert readings[-1].signals.waiting == 3
