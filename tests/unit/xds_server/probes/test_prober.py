"""Probes over real sockets, with the states that follow from them."""

import asyncio
import json
import logging
import random
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from tests.harness import until
from tests.unit.xds_server.signals.test_scraper import TLS, black_hole, certificate
from trimtab.health.state import State
from trimtab.llmapi.probe_answer import ProbeAnswer
from trimtab.llmapi.rejections import RejectionReader
from trimtab.observation.kinds import Probed, ProbeResult, Signals, SignalsRead
from trimtab.policy.model import Pool, Rejections
from trimtab.policy.probe import Probe
from trimtab.pool import EndpointDecision, EndpointSpec, PoolController
from trimtab.sim.faults import Fault
from trimtab.sim.http import EngineServer
from trimtab.sim.kinds import KINDS
from xds_server.probes.prober import PROBE_HEADER, Prober
from xds_server.signals import new_session

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
READ_ANSWER = partial(ProbeAnswer, RejectionReader.from_policy(Rejections()))


def make_pool(probe: dict[str, Any] | None = None, **policy: Any) -> Pool:
    """Probed faster than a policy may ask for, with a deadline that is patient all the same: the machine is busy."""
    made = Pool.model_validate({"name": "p", "models": ["sim"], "endpoints": [{"address": "unused:1"}], **policy})
    numbers = {"interval_s": 0.4, "deadline_ms": 3000, "max_per_s": 1000} | (probe or {})
    return made.model_copy(update={"probe": Probe().model_copy(update=numbers)})


class Rig:
    """A prober with the controller that it serves."""

    def __init__(self, session: aiohttp.ClientSession, pool: Pool) -> None:
        self.pool = pool
        self.controller = PoolController(pool, random.Random(1))
        self.seen: list[Probed] = []
        self._stepped_at = 0.0
        self._decisions: dict[str, EndpointDecision] = {}
        self.prober = Prober(self.take, session, READ_ANSWER, self.decision_of, spread=0)

    def update(self, *endpoints: EndpointSpec) -> None:
        self.controller.set_endpoints(time.time(), endpoints)
        self.prober.update(self.pool, endpoints)

    def take(self, probes: Sequence[Probed]) -> None:
        self.seen.extend(probes)
        self.controller.observe(time.time(), probes)

    def decision_of(self, pool: str, address: str) -> EndpointDecision | None:
        if time.time() - self._stepped_at > 0.05:
            self._stepped_at = time.time()
            decision = self.controller.step(self._stepped_at)
            self._decisions = {endpoint.id.address: endpoint for endpoint in decision.endpoints}
        return self._decisions.get(address)

    def state(self, endpoint: EndpointSpec) -> State:
        decision = self.decision_of("p", endpoint.address)
        assert decision is not None
        return decision.state

    def results(self, endpoint: EndpointSpec) -> list[ProbeResult]:
        return [probe.result for probe in self.seen if probe.address == endpoint.address]


@asynccontextmanager
async def rig(*endpoints: EndpointSpec, probe: dict[str, Any] | None = None, **policy: Any) -> AsyncIterator[Rig]:
    async with new_session() as session:
        made = Rig(session, make_pool(probe, **policy))
        made.update(*endpoints)
        try:
            yield made
        finally:
            await made.prober.close()


async def first(*endpoints: EndpointSpec, probe: dict[str, Any] | None = None, **policy: Any) -> Probed:
    async with rig(*endpoints, probe=probe, **policy) as made:
        await until(lambda: made.seen)
    return made.seen[0]


@asynccontextmanager
async def fake(
    handler: Handler, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1"
) -> AsyncIterator[EndpointSpec]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(app, shutdown_timeout=0, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, host, 0, ssl_context=tls, backlog=512).start()
    address = f"127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield EndpointSpec(address, address)
    finally:
        await runner.cleanup()


@asynccontextmanager
async def simulated(model: str = "sim") -> AsyncIterator[tuple[EngineServer, EndpointSpec]]:
    server = EngineServer(KINDS["a100"], model=model)
    await server.start()
    try:
        yield server, EndpointSpec(server.address, server.address)
    finally:
        await server.stop()


def event(content: str = "x", model: str = "sim", **fields: Any) -> bytes:
    chunk = {"model": model, "choices": [{"index": 0, "delta": {"content": content}}], **fields}
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


def streaming(*chunks: bytes, after_s: float = 0, endless: bytes = b"") -> Handler:
    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        await asyncio.sleep(after_s)
        for chunk in chunks:
            await response.write(chunk)
        while endless:
            await response.write(endless)
            await asyncio.sleep(0)
        return response

    return answer


@pytest.mark.parametrize("api", ["chat", "completions"])
async def test_asks_for_one_token(api: str) -> None:
    requests: list[tuple[str, str, dict[str, Any]]] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        requests.append((request.path, request.headers[PROBE_HEADER], await request.json()))
        return await streaming(event(), b"data: [DONE]\n\n")(request)

    async with fake(answer) as endpoint:
        probe = await first(endpoint, probe={"api": api})
    assert probe.result is ProbeResult.TOKEN
    assert probe.ttft_s is not None and 0 < probe.ttft_s < 3
    path, marked, body = requests[0]
    assert path == {"chat": "/v1/chat/completions", "completions": "/v1/completions"}[api]
    assert marked == "1"
    assert (body["model"], body["max_tokens"], body["stream"]) == ("sim", 1, True)


async def test_a_stopped_worker_is_out_within_two_intervals_and_comes_back() -> None:
    """Its health and metrics answer as ever."""
    interval_s = 1.0
    async with (
        simulated() as (engine, hung),
        simulated() as (_, well),
        rig(hung, well, probe={"interval_s": interval_s, "deadline_ms": 250}) as made,
    ):
        await until(lambda: made.results(hung) and made.results(well))
        engine.set_fault(Fault(kind="mute"))
        since = time.monotonic()
        await until(lambda: made.state(hung) is State.DOWN)
        assert time.monotonic() - since < 2 * interval_s + 1, "the second is for a busy machine"
        decision = made.decision_of("p", hung.address)
        assert decision and decision.reason == "down: a probe: HTTP 200, but no token within 0.25 s"
        engine.set_fault(None)
        await until(lambda: made.state(hung) is State.UP)
    assert made.results(well).count(ProbeResult.TOKEN) > 2


@pytest.mark.parametrize(
    ("kind", "result"),
    [
        ("hang_before_headers", ProbeResult.SILENT),
        ("hang_after_headers", ProbeResult.SILENT),
        ("reset_before_headers", ProbeResult.SILENT),
        ("error_event", ProbeResult.WRONG),
        ("error_500", ProbeResult.WRONG),
        ("saturate_429", ProbeResult.UNDECIDED),
        ("saturate_503", ProbeResult.UNDECIDED),
        ("quota_429", ProbeResult.UNDECIDED),
        ("ping_first", ProbeResult.SILENT),
    ],
)
async def test_faults(kind: Any, result: ProbeResult) -> None:
    async with simulated() as (engine, endpoint):
        engine.set_fault(Fault(kind=kind))
        probe = await first(endpoint, probe={"deadline_ms": 300})
    assert probe.result is result, probe.reason
    assert probe.ttft_s is None


async def test_a_slow_token_is_silence() -> None:
    async with fake(streaming(event(), after_s=5)) as endpoint:
        probe = await first(endpoint, probe={"deadline_ms": 200})
    assert (probe.result, probe.reason) == (ProbeResult.SILENT, "HTTP 200, but no token within 0.2 s")


async def test_no_connection_is_silence() -> None:
    async with fake(streaming()) as endpoint:
        pass
    probe = await first(endpoint)
    assert probe.result is ProbeResult.SILENT and "no connection" in probe.reason


async def test_a_busy_endpoint_is_not_probed() -> None:
    async with simulated() as (_, busy), simulated() as (_, idle), rig(busy, idle) as made:
        made.seen.clear()
        made.controller.observe(time.time(), [SignalsRead(time.time(), "p", busy.address, Signals(running=2))])
        before = len(made.results(busy))
        await until(lambda: len(made.results(idle)) > 3)
    assert len(made.results(busy)) == before


class TestModels:
    """Which model is asked for, and whether the right one answers."""

    async def test_an_engine_that_does_not_know_the_model(self) -> None:
        async with simulated("another") as (_, endpoint):
            probe = await first(endpoint)
        assert probe.result is ProbeResult.WRONG and "The model `sim` does not exist" in probe.reason

    async def test_what_the_engine_lists(self) -> None:
        async with simulated("llama-8b") as (_, endpoint):
            assert (await first(endpoint, models=["llama-*"])).result is ProbeResult.TOKEN
            probe = await first(endpoint, models=["qwen-*"])
        assert (probe.result, probe.reason) == (
            ProbeResult.WRONG,
            "none of llama-8b is a model of the pool",
        )

    async def test_one_that_is_named(self) -> None:
        async with simulated("its-own-name") as (_, endpoint):
            assert (await first(endpoint, probe={"model": "its-own-name"})).result is ProbeResult.TOKEN

    @pytest.mark.parametrize(
        ("listed", "result"), [(["sim", "full/name"], ProbeResult.TOKEN), (["full/name"], ProbeResult.WRONG)]
    )
    async def test_another_name_of_the_same_model(self, listed: list[str], result: ProbeResult) -> None:
        async def answer(request: web.Request) -> web.StreamResponse:
            if request.method == "GET":
                return web.json_response({"data": [{"id": name} for name in listed]})
            return await streaming(event(model="full/name"), b"data: [DONE]\n\n")(request)

        async with fake(answer) as endpoint:
            probe = await first(endpoint)
        assert probe.result is result
        assert result is ProbeResult.TOKEN or probe.reason == "model 'full/name' answered, not 'sim'"

    async def test_an_engine_that_lists_nothing(self) -> None:
        async def answer(request: web.Request) -> web.StreamResponse:
            return web.Response(status=404)

        async with fake(answer) as endpoint:
            probe = await first(endpoint, models=["*"])
        assert probe.result is ProbeResult.UNDECIDED
        assert probe.reason == "HTTP 404 from /v1/models: name the model in probe.model"

    @pytest.mark.parametrize("body", [b"[]", b"{}", b'{"data": 1}', b"[" * 100_000])
    async def test_what_is_no_list(self, body: bytes) -> None:
        async def answer(request: web.Request) -> web.StreamResponse:
            return web.Response(body=body)

        async with fake(answer) as endpoint:
            probe = await first(endpoint, models=["*"])
        assert probe.result is ProbeResult.UNDECIDED
        assert probe.reason == "/v1/models is no list of models: name the model in probe.model"


async def test_a_token_from_a_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        if request.headers.get("Authorization") != "Bearer secret":
            return web.json_response({"error": "Unauthorized"}, status=401)
        return await streaming(event())(request)

    (tmp_path / "token").write_text("secret\n")
    (tmp_path / "old").write_text("stale\n")
    async with fake(answer) as endpoint:
        for probe, signals in (({"token_file": str(tmp_path / "token")}, {}), ({}, {"scrape_token_file": "token"})):
            signals = {name: str(tmp_path / file) for name, file in signals.items()}
            assert (await first(endpoint, probe=probe, signals=signals)).result is ProbeResult.TOKEN
        elsewhere = {"scrape_token_file": str(tmp_path / "token"), "scrape_port": 9}
        assert (await first(endpoint, signals=elsewhere)).result is ProbeResult.UNDECIDED, "a token for that port"
        caplog.set_level(logging.WARNING, "xds_server")
        async with rig(endpoint, probe={"token_file": str(tmp_path / "old"), "interval_s": 0.1}) as made:
            await until(lambda: len(made.seen) > 2)
            assert made.state(endpoint) is State.UP, "a wrong token takes out nobody"
        missing = await first(endpoint, probe={"token_file": str(tmp_path / "none")})
    assert missing.result is ProbeResult.UNDECIDED and "No such file" in missing.reason
    said = [record.message for record in caplog.records if "its token file right" in record.message]
    assert len(said) == 1, "once"


async def test_tls() -> None:
    async with fake(streaming(event()), certificate()) as endpoint:
        named = replace(endpoint, name="engine.internal:8000")
        trusted = {"scrape_tls": {"ca_file": str(TLS / "ca.pem")}}
        assert (await first(named, signals=trusted)).result is ProbeResult.TOKEN
        probe = await first(named, signals={"scrape_tls": {}})
    assert probe.result is ProbeResult.UNDECIDED and "no trust" in probe.reason


async def test_redirects_are_not_followed() -> None:
    followed = []

    async def elsewhere(request: web.Request) -> web.StreamResponse:
        followed.append(request.path)
        return await streaming(event())(request)

    async with fake(elsewhere) as other:

        async def answer(request: web.Request) -> web.StreamResponse:
            raise web.HTTPTemporaryRedirect(f"http://{other.address}{request.path}")

        async with fake(answer) as endpoint:
            probe = await first(endpoint)
    assert probe.result is ProbeResult.UNDECIDED and "redirects are not followed" in probe.reason
    assert not followed


@pytest.mark.parametrize(
    ("chunks", "endless", "result"),
    [([event()], event() * 50, ProbeResult.TOKEN), ([], b": ping\n\n" * 500, ProbeResult.WRONG)],
    ids=["tokens", "comments"],
)
async def test_an_answer_without_end_is_cut(chunks: list[bytes], endless: bytes, result: ProbeResult) -> None:
    async with fake(streaming(*chunks, endless=endless)) as endpoint:
        assert (await first(endpoint)).result is result


async def test_black_holes_delay_nobody() -> None:
    """As many of them as may be probed at one time, less one."""
    numbers = {"interval_s": 0.5, "deadline_ms": 1000, "max_concurrent": 4}
    async with (
        simulated() as (_, well),
        black_hole() as one,
        black_hole() as two,
        black_hole() as three,
        rig(one, two, three, well, probe=numbers) as made,
    ):
        await until(lambda: len(made.results(three)) >= 2)
    assert {*made.results(one), *made.results(three)} == {ProbeResult.SILENT}
    assert len(made.results(well)) >= 3


async def test_the_budget_holds_for_a_large_fleet() -> None:
    at_once = most = 0
    starts: list[float] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        nonlocal at_once, most
        starts.append(time.monotonic())
        at_once += 1
        most = max(most, at_once)
        try:
            return await streaming(event(), b"data: [DONE]\n\n", after_s=0.01)(request)
        finally:
            at_once -= 1

    # One socket answers for all of 127.0.0.0/8.
    async with fake(answer, host="0.0.0.0") as engine:
        port = engine.address.rpartition(":")[2]
        fleet = [EndpointSpec(f"127.0.0.{n}:{port}", f"engine-{n}:1") for n in range(1, 201)]
        async with rig(
            *fleet, probe={"interval_s": 60, "max_concurrent": 5, "max_per_s": 200, "deadline_ms": 10_000}
        ) as made:
            await until(lambda: len(made.seen) == 200, 30)
    assert {probe.result for probe in made.seen} == {ProbeResult.TOKEN}
    assert most <= 5
    assert starts[-1] - starts[0] >= 199 / 200 * 0.95


async def test_nothing_is_heard_of_an_endpoint_that_was_taken_out() -> None:
    asked, left = asyncio.Event(), asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        asked.set()
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            left.set()
            raise
        return web.Response()

    async with fake(answer) as endpoint, rig(endpoint) as made:
        await until(asked.is_set)
        made.update()
        await until(left.is_set)
        assert not made.seen
        made.update(endpoint)
        asked.clear()
        await until(asked.is_set)


async def test_off_by_default() -> None:
    async with simulated() as (engine, endpoint), rig(endpoint, probe={"interval_s": 0}):
        await asyncio.sleep(0.1)
        assert engine.attempts.count == 0
