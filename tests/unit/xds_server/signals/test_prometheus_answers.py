"""Answers that no Prometheus server should give, and some that others give."""

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
from aiohttp import web

from tests.harness import free_port, until
from trimtab.observation.kinds import PrometheusSample
from trimtab.policy import PolicyFile
from trimtab.policy.model import Pool
from trimtab.policy.prometheus import Prometheus
from trimtab.pool import EndpointSpec
from xds_server.control_plane import ControlPlane
from xds_server.signals import prometheus_query, troubles
from xds_server.signals.prometheus import PrometheusSource
from xds_server.signals.prometheus_query import Answer, Asker, QueryFailed, Series

A = EndpointSpec("10.0.0.1:8000", "10.0.0.1:8000")
HERE = {"instance": A.address}
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def found(*series: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"status": "success", "data": {"resultType": "vector", "result": list(series)}, **more}


def of_type(kind: str, result: list[Any]) -> dict[str, Any]:
    return {"status": "success", "data": {"resultType": kind, "result": result}}


def one(value: str = "7", at: float = 1000.0, **labels: str) -> dict[str, Any]:
    return {"metric": HERE | labels, "value": [at, value]}


@asynccontextmanager
async def server(handler: Handler) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_get("/{path:.*}", handler)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def always(body: str | dict[str, Any], status: int = 200, **headers: str) -> Handler:
    async def handler(request: web.Request) -> web.Response:
        text = body if isinstance(body, str) else json.dumps(body)
        return web.Response(text=text, status=status, headers=headers, content_type="application/json")

    return handler


def section(url: str, **changes: Any) -> Prometheus:
    """Without bundled queries, and with a patient deadline: the machine may be busy."""
    made = Prometheus(url=url, bundled=False, **{"timeout_ms": 250, "interval_ms": 250} | changes)
    return made.model_copy(update={"timeout_ms": changes.get("timeout_ms", 8000)})


async def ask(url: str, **changes: Any) -> Answer:
    return await asyncio.to_thread(Asker(section(url, **changes), "up", ["instance"]).ask)


@pytest.mark.parametrize(
    ("handler", "message"),
    [
        (always("<html>", 200), "what answers is no Prometheus: JSONDecodeError"),
        (always('{"status": "success"}'), "what answers is no Prometheus: KeyError"),
        (always("[]"), "what answers is no Prometheus: TypeError"),
        (always(found({"metric": {}, "value": [1, "many"]})), "what answers is no Prometheus: ValueError"),
        (always(found({"metric": {}, "value": "7"})), "what answers is no Prometheus"),
        (
            always("", 302, Location="http://example.invalid/"),
            "HTTP 302: Found: it leads to http://example.invalid/, and redirects are not followed: fix url",
        ),
        (always("no\nway", 403), "HTTP 403: Forbidden: give token_file, or username and password_file"),
        (always({"status": "error", "error": "too many samples"}), "the server says: too many samples"),
        (always(of_type("scalar", [1, "7"])), "it gives a scalar, which has no labels"),
        (always(of_type("string", [1, "up"])), "it gives a string, which has no labels"),
        (always(of_type("matrix", [{"metric": {}, "values": [[1, "7"]]}])), "it gives ranges; take a number"),
        (always("[" * 100_000), "what answers is no Prometheus: "),
        (always('{"warnings": ' + "[" * 100_000), "what answers is no Prometheus: "),
        (
            always(found({"metric": {"instance": 5}, "value": [1, "7"]})),
            "what answers is no Prometheus: ValueError: a time",
        ),
        (
            always(found({"metric": {}, "value": [float("nan"), "7"]})),
            "what answers is no Prometheus: ValueError: a time",
        ),
        (always(found(one(), warnings="a store is down")), "the answer is not whole: a store is down"),
        (always({"status": "error", "error": "too\nmany samples"}, 422), "HTTP 422: too many samples"),
        (always(found(one(), warnings=["store a is down"])), "the answer is not whole: store a is down"),
        (always(found({"metric": {}, "histogram": [1, {}]})), "it gives histograms"),
    ],
)
async def test_is_told_in_one_line(handler: Handler, message: str) -> None:
    async with server(handler) as url:
        with pytest.raises(QueryFailed) as raised:
            await ask(url)
    assert str(raised.value).startswith(message)
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) <= 300


async def test_remarks_on_the_query_are_no_missing_parts() -> None:
    warnings = ["PromQL warning: metric might not be a counter", "PromQL info: so"]
    async with server(always(found(one(), warnings=warnings, infos=["PromQL info: what"]))) as url:
        assert (await ask(url)).values == [Series(HERE, 7)]


async def test_an_answer_without_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async def endless(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b" " * 2**16)

    monkeypatch.setattr(prometheus_query, "MAX_ANSWER_BYTES", 2**20)
    async with server(endless) as url:
        with pytest.raises(QueryFailed, match="the answer is above 1 MiB"):
            await ask(url)


async def test_an_answer_that_trickles_is_given_up_in_time() -> None:
    async def trickle(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b" ")
            await asyncio.sleep(0.05)

    async with server(trickle) as url:
        began = time.monotonic()
        with pytest.raises(QueryFailed, match=r"no whole answer within 0\.25 s"):
            await ask(url, timeout_ms=250)
        assert time.monotonic() - began < 5


async def test_a_compressed_answer_is_read() -> None:
    async def handler(request: web.Request) -> web.Response:
        response = web.json_response(found(one()))
        response.enable_compression(web.ContentCoding.gzip)
        return response

    async with server(handler) as url:
        assert (await ask(url)).values == [Series(HERE, 7)]


async def test_each_question_has_its_deadline_and_headers_and_the_newest_token(tmp_path: Path) -> None:
    heard: list[tuple[str, dict[str, str]]] = []

    async def handler(request: web.Request) -> web.Response:
        heard.append((str(request.rel_url.path), dict(request.headers) | dict(request.query)))
        return web.json_response(found(one()))

    token = tmp_path / "token"
    token.write_text("first\n")
    async with server(handler) as url:
        asker = Asker(
            section(f"{url}/tenant/", token_file=str(token), headers={"X-Scope-OrgID": "a"}), "up", ["instance", "pod"]
        )
        await asyncio.to_thread(asker.ask)
        token.write_text("second\n")
        await asyncio.to_thread(asker.ask)
    assert {path for path, _ in heard} == {"/tenant/api/v1/query"}
    assert [request["Authorization"] for _, request in heard] == ["Bearer first"] * 2 + ["Bearer second"] * 2
    assert {(request["X-Scope-OrgID"], request["timeout"], request["User-Agent"]) for _, request in heard} == {
        ("a", "8000ms", "trimtab")
    }
    # The samples' times are those of the moment at which the value was true.
    assert [request.get("time") for _, request in heard[:2]] == [None, "1000.0"]
    assert heard[1][1]["query"] == "max by (instance, pod) (timestamp(up))"


@pytest.mark.parametrize("content", ["", "two words", "a\nb", "schlüssel"])
async def test_a_token_that_is_none_is_not_shown(tmp_path: Path, content: str) -> None:
    token = tmp_path / "token"
    token.write_text(content, "utf-8")
    async with server(always(found(one()))) as url:
        with pytest.raises(QueryFailed) as raised:
            await ask(url, token_file=str(token))
    assert str(raised.value) == f"{token} must hold one token and nothing else"


async def test_a_connection_is_used_again() -> None:
    peers = set()

    async def handler(request: web.Request) -> web.Response:
        peers.add(request.transport.get_extra_info("peername") if request.transport else None)
        return web.json_response(found(one()))

    async with server(handler) as url:
        asker = Asker(section(url), "up", ["instance"])
        for _ in range(3):
            await asyncio.to_thread(asker.ask)
    assert len(peers) == 1


async def test_neither_proxies_nor_passwords_come_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login me password secret\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    seen = []

    async def handler(request: web.Request) -> web.Response:
        seen.append(request.headers.get("Authorization"))
        return web.json_response(found(one()))

    async with server(handler) as url:
        await ask(url)
    assert seen == [None, None]


def pool(server: Prometheus) -> Pool:
    made = Pool.model_validate({"name": "chat", "endpoints": [{"address": A.address}]})
    return made.model_copy(update={"signals": made.signals.model_copy(update={"prometheus": server})})


@asynccontextmanager
async def source(server: Prometheus, *endpoints: EndpointSpec) -> AsyncIterator[tuple[PrometheusSource, Any]]:
    reads: list[PrometheusSample] = []
    asking = PrometheusSource(reads.extend, rng=Random(1))
    asking.update(pool(server), endpoints or (A,))
    try:
        yield asking, reads
    finally:
        await asking.close()


async def test_a_query_that_hangs_delays_no_other_and_is_not_asked_twice_at_once() -> None:
    hanging = 0

    async def handler(request: web.Request) -> web.Response:
        nonlocal hanging
        if request.query["query"] == "slow":
            hanging += 1
            await asyncio.Event().wait()
        return web.json_response(found(one()))

    queries = {"waiting": "slow", "running": "up"}
    async with server(handler) as url:
        hangs = section(url, queries=queries).model_copy(update={"timeout_ms": 60_000})
        async with source(hangs) as (_, reads):
            # Its own thread waits for a minute, its task for the same: the others go on.
            await until(lambda: len([read for read in reads if read.signal == "running"]) > 3)
            assert hanging == 1
            assert {read.signal for read in reads} == {"running"}


async def test_given_up_in_time_though_its_thread_waits() -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        await asyncio.Event().wait()
        raise AssertionError

    async with server(handler) as url, source(section(url, timeout_ms=100, queries={"waiting": "up"})) as (_, reads):
        await until(lambda: len(reads) > 1)
    assert {(read.value, read.error, read.answered) for read in reads} == {
        (None, "no whole answer within 0.1 s", False)
    }


async def test_a_new_policy_changes_what_is_asked() -> None:
    queries = []

    async def handler(request: web.Request) -> web.Response:
        queries.append(request.query["query"])
        return web.json_response(found(one()))

    async with server(handler) as url, source(section(url, queries={"waiting": "old"})) as (asking, reads):
        await until(lambda: "old" in queries)
        asking.reconfigure([pool(section(url, queries={"running": "new"}))])
        await until(lambda: "new" in queries)
        reads.clear()
        await until(lambda: len(reads) > 1)
        assert {read.signal for read in reads} == {"running"}
        asking.reconfigure([])
        reads.clear()
        count = len(queries)
        await asyncio.sleep(0.6)
        assert (reads, len(queries)) == ([], count)


async def test_endpoints_that_come_and_go_are_told_of_at_the_next_answer() -> None:
    other = EndpointSpec("10.0.0.2:8000", "10.0.0.2:8000")

    async with server(always(found(one()))) as url:
        server_section = section(url, queries={"waiting": "up"})
        async with source(server_section) as (asking, reads):
            await until(lambda: reads)
            asking.update(pool(server_section), [other])
            reads.clear()
            await until(lambda: reads)
            assert {(read.address, read.error) for read in reads} == {
                (other.address, "no series whose instance is the endpoint's address")
            }


async def test_a_reader_that_fails_does_not_end_the_asking() -> None:
    calls = 0

    def fail(reads: object) -> None:
        nonlocal calls
        calls += 1
        raise RuntimeError

    async with server(always(found(one()))) as url:
        asking = PrometheusSource(fail, rng=Random(1))
        asking.update(pool(section(url, queries={"waiting": "up"})), [A])
        await until(lambda: calls > 1)
        await asking.close()


async def test_a_fault_of_ours_is_told_once(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Asker) -> Answer:
        raise ZeroDivisionError

    monkeypatch.setattr(Asker, "ask", fail)
    async with source(section("http://127.0.0.1:9", queries={"waiting": "up"})) as (_, reads):
        await until(lambda: caplog.records)
        reads.clear()
        await until(lambda: len(reads) > 2)
    assert {read.error for read in reads} == {"a fault of Trimtab: ZeroDivisionError"}
    assert caplog.text.count("Traceback") == 1


async def test_each_trouble_is_one_line_for_all_signals_and_so_is_its_end(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(troubles, "_GATHER_S", 0.6)  # more than two rounds
    caplog.set_level(logging.INFO, "xds_server")
    answer = found()
    status = 200

    async def handler(request: web.Request) -> web.Response:
        return web.json_response(answer, status=status)

    queries = {"waiting": "a", "running": "b", "kv_usage": "c"}
    async with server(handler) as url, source(section(url, queries=queries)) as (_, reads):

        async def said_next() -> str:
            await until(lambda: caplog.records)
            reads.clear()
            await until(lambda: all(len([read for read in reads if read.signal == name]) > 2 for name in queries))
            (record,) = caplog.records
            caplog.clear()
            return record.getMessage()

        every = "kv_usage, running, waiting from Prometheus"
        why = "no series whose instance is the endpoint's address"
        assert await said_next() == f"pool chat: no {every}: {why}"
        answer = found(one())
        assert await said_next() == f"pool chat: {every} again"
        status = 422  # a trouble of queries
        assert await said_next() == f"pool chat: no {every}: HTTP 422: Unprocessable Entity"
        status = 200
        assert await said_next() == f"pool chat: {every} again"
        status = 401  # a trouble of the server
        why = "HTTP 401: Unauthorized: give token_file, or username and password_file"
        assert await said_next() == f"pool chat: no answer of Prometheus at {url}: {why}"
        status = 200
        assert await said_next() == f"pool chat: answer of Prometheus at {url} again"


async def test_the_control_plane_asks_and_drains_and_counts(tmp_path: Path) -> None:
    ports = [free_port() for _ in range(2)]

    async def handler(request: web.Request) -> web.Response:
        return web.json_response(found(one("999" if "timestamp" in request.query["query"] else "91")))

    async with server(handler) as url:
        custom = [{"name": "heat", "query": "heat", "action": "drain", "above": 88}]
        section = {"url": url, "bundled": False, "interval_ms": 300, "timeout_ms": 300, "custom": custom}
        content: dict[str, Any] = {
            "version": 1,
            "state_file": None,
            "services": {"xds": f"127.0.0.1:{ports[0]}", "admin": f"127.0.0.1:{ports[1]}"},
            "pools": [
                {
                    "name": "chat",
                    "endpoints": [{"address": A.address}, {"address": "10.0.0.2:8000"}],
                    "signals": {"scrape": False, "prometheus": section},
                }
            ],
        }
        path = tmp_path / "policy.yaml"
        path.write_text(json.dumps(content))
        file = PolicyFile(path)
        async with ControlPlane(file, file.load()) as plane:
            await until(lambda: "chat" in plane.decisions and not plane.decisions["chat"].endpoints[0].takes_work)
            reason = plane.decisions["chat"].endpoints[0].reason
            page, _ = await plane.metrics.render("")
            del content["pools"][0]["signals"]["prometheus"]
            path.write_text(json.dumps(content))
            await until(lambda: plane.decisions["chat"].endpoints[0].takes_work)
    assert reason == "draining: heat is 91, the limit is above 88"
    assert 'trimtab_prometheus_query_errors_total{pool="chat",signal="heat"} 0.0' in page.decode()
