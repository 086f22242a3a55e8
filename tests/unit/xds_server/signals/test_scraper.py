"""Scraping over real sockets: each endpoint at its own pace, whatever the others do."""

import asyncio
import contextlib
import gzip
import logging
import random
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import aiohttp
import pytest
from aiohttp import web

from tests.harness import until
from trimtab.observation.kinds import Signals, SignalsRead
from trimtab.policy.model import Pool, ScrapeTls
from trimtab.pool import EndpointSpec
from xds_server.signals import MAX_PAGE_BYTES, PageRead, Scraper, new_session, read_page
from xds_server.signals.model_card import ModelCard
from xds_server.signals.names import PageNames
from xds_server.signals.reader import Job, PoolReader

TLS = Path(__file__).parents[1] / "data" / "tls"
PAGE = b"vllm:num_requests_waiting 3\n"
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


async def good(request: web.Request) -> web.Response:
    return web.Response(body=PAGE)


def pool(name: str = "p", engine: str = "vllm", **signals: object) -> Pool:
    """Scraped often, but with a patient deadline (longer than a policy may have): the machine may be busy."""
    numbers = {"scrape_interval_ms": 100, "scrape_timeout_ms": 8000} | signals
    made = Pool.model_validate({"name": name, "engine": engine, "endpoints": [{"address": "unused:1"}]})
    return made.model_copy(update={"signals": made.signals.model_copy(update=numbers)})


@asynccontextmanager
async def engine(handler: Handler = good, tls: ssl.SSLContext | None = None) -> AsyncIterator[EndpointSpec]:
    app = web.Application()
    app.router.add_get("/{path:.*}", handler)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
    await site.start()
    address = f"127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield EndpointSpec(address, address)
    finally:
        await runner.cleanup()


@asynccontextmanager
async def black_hole() -> AsyncIterator[EndpointSpec]:
    """Takes connections and never answers."""
    server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    yield EndpointSpec(address, address)
    server.close()


class AtOnce(random.Random):
    """No jitter: the first scrape starts at once."""

    def uniform(self, a: float, b: float) -> float:
        return a


class Readings(list[SignalsRead]):
    def take(self, readings: Sequence[SignalsRead]) -> None:
        self.extend(readings)


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with new_session() as session:
        yield session


async def first_reading(session: aiohttp.ClientSession, endpoint: EndpointSpec, **signals: object) -> SignalsRead:
    readings = Readings()
    scraper = Scraper(readings.take, session, rng=AtOnce())
    scraper.update(pool(**signals), [endpoint])
    await until(lambda: readings)
    await scraper.close()
    return readings[0]


async def test_reads_signals(session: aiohttp.ClientSession) -> None:
    paths = []

    async def handler(request: web.Request) -> web.Response:
        paths.append(request.path)
        return web.Response(body=PAGE)

    async with engine(handler) as endpoint:
        readings = Readings()
        scraper = Scraper(readings.take, session, now=lambda: 42.0, rng=AtOnce())
        scraper.update(pool(scrape_path="/m/etrics"), [endpoint])
        await until(lambda: len(readings) > 2)
        await scraper.close()
    assert [path for path in paths if path != "/v1/models"] == ["/m/etrics"] * len(readings)
    assert {r.at for r in readings} == {42.0}
    assert {(r.pool, r.address, r.signals, r.error) for r in readings} == {
        ("p", endpoint.address, Signals(waiting=3), "")
    }
    assert readings[0].origins == {"waiting": "vllm:num_requests_waiting"}
    assert readings[0].unknown["running"] == "vllm:num_requests_running is not on the page"


async def test_black_holes_delay_nobody(session: aiohttp.ClientSession) -> None:
    """More of them than a client's usual pool has connections (100)."""
    readings = Readings()
    scraper = Scraper(readings.take, session)
    async with engine() as endpoint, black_hole() as hole:
        for i in range(150):
            scraper.update(pool(f"hole-{i}", scrape_interval_ms=1000, scrape_timeout_ms=1000), [hole])
        scraper.update(pool(scrape_interval_ms=1000), [endpoint])
        await until(lambda: len(readings) >= 200)
        await scraper.close()
    assert len([r for r in readings if r.pool == "p"]) >= 2
    assert {r.error for r in readings if r.pool == "p"} == {""}
    assert {r.error for r in readings if r.pool != "p"} == {"no whole answer within 1 s"}


async def test_a_flood_of_interim_answers_delays_nobody(session: aiohttp.ClientSession) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def flood() -> None:
            interim = b"HTTP/1.1 103 Early Hints\r\nlink: <a>\r\n\r\n" * 2000
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listening.accept()
                    with connection, contextlib.suppress(ConnectionError):
                        while True:
                            connection.sendall(interim)

        thread = threading.Thread(target=flood)
        thread.start()
        readings = Readings()
        scraper = Scraper(readings.take, session, rng=AtOnce())
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        async with engine() as endpoint:
            scraper.update(
                pool("flood", scrape_interval_ms=1000, scrape_timeout_ms=800), [EndpointSpec(address, address)]
            )
            scraper.update(pool(), [endpoint])
            await until(lambda: len([r for r in readings if r.pool == "flood"]) == 3)
            await scraper.close()
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()
    assert {r.error for r in readings if r.pool == "flood"} == {"no whole answer within 0.8 s"}
    assert len([r for r in readings if r.pool == "p" and not r.error]) > 15, "of some 28 in that time"


async def test_a_stop_at_the_moment_of_a_deadline_is_not_lost(session: aiohttp.ClientSession) -> None:
    async with black_hole() as hole:
        for _ in range(5):
            readings = Readings()
            scraper = Scraper(readings.take, session, rng=AtOnce())
            for i in range(20):
                scraper.update(pool(f"hole-{i}", scrape_timeout_ms=100), [hole])
            await until(lambda readings=readings: readings)
            async with asyncio.timeout(5):
                await scraper.close()


async def test_refused_connection_is_one_line(session: aiohttp.ClientSession) -> None:
    async with engine() as endpoint:
        pass
    reading = await first_reading(session, endpoint)
    assert reading.signals == Signals()
    assert reading.error and "\n" not in reading.error and len(reading.error) <= 200


async def test_redirects_are_not_followed(session: aiohttp.ClientSession) -> None:
    async with engine() as elsewhere:

        async def handler(request: web.Request) -> web.Response:
            raise web.HTTPFound(f"http://{elsewhere.address}/metrics")

        async with engine(handler) as endpoint:
            reading = await first_reading(session, endpoint)
    where = f"http://{elsewhere.address}/metrics"
    assert reading.signals == Signals()
    assert reading.error == f"HTTP 302 from /metrics, which leads to {where}: redirects are not followed"


async def test_another_page_is_an_error(session: aiohttp.ClientSession) -> None:
    async def handler(request: web.Request) -> web.Response:
        return web.Response(text="<html>hello</html>", content_type="text/html")

    async with engine(handler) as endpoint:
        reading = await first_reading(session, endpoint)
    assert (reading.signals, reading.error) == (Signals(), "/metrics has none of the metrics of vllm")


async def test_gzip_is_read_although_not_asked_for(session: aiohttp.ClientSession) -> None:
    async def handler(request: web.Request) -> web.Response:
        assert request.headers["Accept-Encoding"] == "identity"
        return web.Response(body=gzip.compress(PAGE), headers={"Content-Encoding": "gzip"})

    async with engine(handler) as endpoint:
        reading = await first_reading(session, endpoint)
    assert reading.signals.waiting == 3


@pytest.mark.parametrize("encoding", ["identity", "gzip"])
async def test_a_page_without_end_is_refused(session: aiohttp.ClientSession, encoding: str) -> None:
    left = asyncio.Event()
    block = b"x 1\n" * 2**18

    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        if encoding == "gzip":
            response.enable_compression(web.ContentCoding.gzip)
        await response.prepare(request)
        try:
            while True:
                await response.write(block)
        except (OSError, asyncio.CancelledError):
            left.set()
            raise
        return response

    async with engine(handler) as endpoint:
        reading = await first_reading(session, endpoint, scrape_interval_ms=60_000)
        await until(left.is_set)
    assert (reading.signals, reading.error) == (Signals(), f"/metrics is above {MAX_PAGE_BYTES} bytes")


async def test_a_slow_page_meets_its_deadline(session: aiohttp.ClientSession) -> None:
    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b"# drip\n")
            await asyncio.sleep(0.01)

    async with engine(handler) as endpoint:
        reading = await first_reading(session, endpoint, scrape_timeout_ms=100)
    assert reading.error == "no whole answer within 0.1 s"


async def test_a_cut_page_is_an_error(session: aiohttp.ClientSession) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n" + PAGE)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    reading = await first_reading(session, EndpointSpec(address, address))
    server.close()
    assert reading.signals == Signals() and reading.error


async def test_endpoints_are_replaced_at_run_time(session: aiohttp.ClientSession) -> None:
    readings = Readings()
    scraper = Scraper(readings.take, session, rng=AtOnce())
    async with engine() as first, engine() as second:
        scraper.update(pool(), [first])
        await until(lambda: readings)
        scraper.update(pool(), [second])
        readings.clear()
        await until(lambda: len(readings) >= 3)
        assert {r.address for r in readings} == {second.address}
        scraper.update(pool(), [second, first])
        await until(lambda: {r.address for r in readings} == {first.address, second.address})
        scraper.update(pool(scrape=False), [second, first])
        readings.clear()
        await asyncio.sleep(0.25)
        assert not readings
        await scraper.close()


async def test_a_new_policy_holds_for_the_known_endpoints(session: aiohttp.ClientSession) -> None:
    paths = []

    async def handler(request: web.Request) -> web.Response:
        paths.append(request.path)
        return web.Response(body=PAGE)

    readings = Readings()
    scraper = Scraper(readings.take, session, rng=AtOnce())
    async with engine(handler) as first, engine() as second:
        scraper.update(pool(), [first])
        scraper.update(pool("q"), [second])
        await until(lambda: {r.pool for r in readings} == {"p", "q"})
        scraper.reconfigure([pool(scrape_path="/elsewhere")])
        readings.clear()
        await until(lambda: paths[-1] == "/elsewhere" and len(readings) >= 3)
        await scraper.close()
    assert {r.pool for r in readings} == {"p"}


async def test_an_answer_after_the_endpoint_was_taken_out_is_dropped(session: aiohttp.ClientSession) -> None:
    asked, answer = asyncio.Event(), asyncio.Event()

    async def handler(request: web.Request) -> web.Response:
        asked.set()
        await answer.wait()
        return web.Response(body=PAGE)

    readings = Readings()
    scraper = Scraper(readings.take, session, rng=AtOnce())
    async with engine(handler) as endpoint:
        scraper.update(pool(), [endpoint])
        await until(asked.is_set)
        scraper.update(pool(), [])
        answer.set()
        await asyncio.sleep(0.1)
        await scraper.close()
    assert not readings


async def test_says_once_that_it_fails_and_once_that_it_is_back(
    session: aiohttp.ClientSession, caplog: pytest.LogCaptureFixture
) -> None:
    status = 500

    async def handler(request: web.Request) -> web.Response:
        return web.Response(status=status, body=PAGE)

    caplog.set_level(logging.INFO, "xds_server")
    readings = Readings()
    scraper = Scraper(readings.take, session, rng=AtOnce())
    async with engine(handler) as endpoint:
        scraper.update(pool(), [endpoint])
        await until(lambda: len(readings) >= 4)
        status = 200
        await until(lambda: len([r for r in readings if not r.error]) >= 3)
        await scraper.close()
    assert [record.getMessage() for record in caplog.records] == [
        f"pool p: no signals from {endpoint.address}: HTTP 500 from /metrics",
        f"pool p: signals from {endpoint.address} again",
    ]


async def test_a_fault_of_ours_is_told_once_and_the_next_page_is_read(
    session: aiohttp.ClientSession, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages = 0

    def fails_at_first(names: PageNames, page: bytes) -> PageRead:
        nonlocal pages
        pages += 1
        return read_page(names, page) if pages > 3 else cast("PageRead", pages // 0)

    def fails(body: bytes) -> ModelCard:
        raise RecursionError("too deep")

    caplog.set_level(logging.INFO, "xds_server")
    monkeypatch.setattr("xds_server.signals.scraper.read_page", fails_at_first)
    monkeypatch.setattr("xds_server.signals.scraper.read_card", fails)
    monkeypatch.setattr("xds_server.signals.scraper._CARD_PERIOD_S", 0.0)
    readings = Readings()
    scraper = Scraper(readings.take, session, rng=AtOnce())
    async with engine() as endpoint:
        scraper.update(pool(), [endpoint])
        await until(lambda: len([r for r in readings if not r.error]) >= 3)
        await scraper.close()
    assert [r.error for r in readings[:3]] == [
        "a fault of Trimtab: ZeroDivisionError: integer division or modulo by zero"
    ] * 3
    assert readings[-1].unknown["max_model_len"] == "a fault of Trimtab: RecursionError: too deep"
    shown = [(record.getMessage().partition(": ")[2][:16], bool(record.exc_info)) for record in caplog.records]
    assert shown == [("no signals from ", True), ("signals from 127", False), ("/v1/models of 12", True)]


@dataclass(frozen=True)
class _Named:
    pool: str


async def test_a_task_that_ends_is_begun_anew(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("xds_server.signals.reader._BEGIN_ANEW_S", 0.001)
    begun = 0

    class Failing(PoolReader[Job]):
        def _jobs(self, pool: Pool, endpoints: Sequence[EndpointSpec]) -> set[Job]:
            return {_Named(pool.name)}

        async def _run(self, job: Job) -> None:
            nonlocal begun
            begun += 1
            raise ZeroDivisionError

    reader = Failing()
    reader.update(pool(), [])
    await until(lambda: begun >= 3)
    await reader.close()
    assert caplog.text.count("Traceback") == 1


async def test_a_reader_that_fails_stops_nothing(
    session: aiohttp.ClientSession, caplog: pytest.LogCaptureFixture
) -> None:
    calls = 0

    def fail(readings: Sequence[SignalsRead]) -> None:
        nonlocal calls
        calls += 1
        raise ZeroDivisionError

    scraper = Scraper(fail, session)
    async with engine() as endpoint:
        scraper.update(pool(), [endpoint])
        await until(lambda: calls >= 3)
        await scraper.close()
    assert "ZeroDivisionError" in caplog.text


async def test_close_leaves_no_task(session: aiohttp.ClientSession) -> None:
    before = asyncio.all_tasks()
    scraper = Scraper(lambda readings: None, session)
    async with black_hole() as hole:
        scraper.update(pool(), [hole])
        await asyncio.sleep(0.15)
        await scraper.close()
    assert asyncio.all_tasks() - before == set()


async def guarded(request: web.Request) -> web.Response:
    if request.headers.get("Authorization") != "Bearer s3cret":
        return web.Response(status=401)
    return web.Response(body=PAGE)


async def test_a_token_comes_from_a_file_and_is_read_again_when_it_changes(
    session: aiohttp.ClientSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    token = tmp_path / "token"
    readings = Readings()
    scraper = Scraper(readings.take, session, rng=AtOnce())
    async with engine(guarded) as endpoint:
        scraper.update(pool(scrape_token_file=str(token)), [endpoint])
        await until(lambda: readings)
        token.write_text("stale\n")
        await until(lambda: "401" in readings[-1].error)
        token.write_text("s3cret\n")
        await until(lambda: readings[-1].signals.waiting == 3)
        await scraper.close()
    assert readings[0].error == f"{token}: No such file or directory"
    assert "HTTP 401 from /metrics: is scrape_token_file right?" in {r.error for r in readings}
    assert "s3cret" not in caplog.text


@pytest.mark.parametrize("content", ["", "\n", "two words", "one\ntwo", "caf\u00e9", "\x00"])
async def test_a_file_without_a_token_is_an_error(session: aiohttp.ClientSession, tmp_path: Path, content: str) -> None:
    token = tmp_path / "token"
    token.write_text(content)
    async with engine(guarded) as endpoint:
        reading = await first_reading(session, endpoint, scrape_token_file=str(token))
    assert reading.error == f"{token} must hold one token and nothing else"


async def test_a_page_that_wants_a_token_says_so(session: aiohttp.ClientSession) -> None:
    async with engine(guarded) as endpoint:
        reading = await first_reading(session, endpoint)
    assert reading.error == "HTTP 401 from /metrics: it may want a scrape_token_file"


async def test_a_token_does_not_follow_a_redirect(session: aiohttp.ClientSession, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("s3cret")
    asked = []

    async def other(request: web.Request) -> web.Response:
        asked.append(request)
        return web.Response(body=PAGE)

    async with engine(other) as elsewhere:

        async def handler(request: web.Request) -> web.Response:
            raise web.HTTPFound(f"http://{elsewhere.address}/metrics")

        async with engine(handler) as endpoint:
            await first_reading(session, endpoint, scrape_token_file=str(token))
    assert not asked


def certificate() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(TLS / "engine.pem", TLS / "engine.key")
    return context


@pytest.mark.parametrize(
    ("tls", "name", "why"),
    [
        (ScrapeTls(ca_file=str(TLS / "ca.pem")), "engine.internal:8000", ""),
        (ScrapeTls(skip_verify=True), "10.0.0.1:8000", ""),
        (ScrapeTls(ca_file=str(TLS / "ca.pem")), "another.internal:8000", "certificate is not valid for"),
        (ScrapeTls(), "engine.internal:8000", "certificate verify failed"),
        (ScrapeTls(ca_file=str(TLS / "README.md")), "engine.internal:8000", "has no certificates in PEM"),
        (ScrapeTls(ca_file="/nowhere/ca.pem"), "engine.internal:8000", "No such file"),
        (None, "engine.internal:8000", ""),
    ],
    ids=["good", "unchecked", "another name", "unknown authority", "no certificate", "no file", "plain HTTP to TLS"],
)
async def test_tls(session: aiohttp.ClientSession, tls: ScrapeTls | None, name: str, why: str) -> None:
    """The name in the certificate is the one in the policy, although the address is an IP."""
    async with engine(tls=certificate()) as endpoint:
        reading = await first_reading(session, replace(endpoint, name=name), scrape_tls=tls)
    if tls is not None and not why:
        assert (reading.error, reading.signals.waiting) == ("", 3)
    else:
        assert reading.signals == Signals()
        assert reading.error and why.lower() in reading.error.lower() and "\n" not in reading.error


async def test_tls_to_an_engine_without(session: aiohttp.ClientSession) -> None:
    async with engine() as endpoint:
        reading = await first_reading(session, endpoint, scrape_tls=ScrapeTls())
    assert reading.error.startswith("no TLS: ") and "\n" not in reading.error


async def test_an_endpoint_without_a_host_name_is_trusted_by_its_address(session: aiohttp.ClientSession) -> None:
    async with engine(tls=certificate()) as endpoint:
        tls = ScrapeTls(ca_file=str(TLS / "ca.pem"))
        reading = await first_reading(session, replace(endpoint, name="namespace/pod-7"), scrape_tls=tls)
    assert "127.0.0.1" in reading.error


@pytest.mark.parametrize(
    ("kind", "policy", "asked"),
    [
        ("trtllm-serve", {}, ("/prometheus/metrics", False)),
        ("trtllm-serve", {"scrape_path": "/m"}, ("/m", False)),
        ("tgi", {}, ("/metrics", False)),
        ("tgi", {"scrape_port": True}, ("/metrics", True)),
    ],
)
async def test_path_and_port_of_the_page(
    session: aiohttp.ClientSession, kind: str, policy: dict[str, object], asked: tuple[str, bool]
) -> None:
    seen: list[tuple[str, bool]] = []

    async def here(request: web.Request) -> web.Response:
        seen.append((request.path, False))
        return web.Response(body=b"tgi_queue_size 1\ntrtllm_num_requests_waiting 1\n")

    async def there(request: web.Request) -> web.Response:
        seen.append((request.path, True))
        return web.Response(body=b"tgi_queue_size 1\n")

    readings = Readings()
    scraper = Scraper(readings.take, session, rng=AtOnce())
    async with engine(here) as endpoint, engine(there) as metrics:
        if "scrape_port" in policy:
            policy = {"scrape_port": int(metrics.address.rpartition(":")[2])}
        scraper.update(pool(engine=kind, **policy), [endpoint])
        await until(lambda: readings)
        await scraper.close()
    assert set(seen) == {asked}
    assert (readings[0].address, readings[0].signals.waiting) == (endpoint.address, 1)


async def test_an_engine_without_metrics_is_not_asked(session: aiohttp.ClientSession) -> None:
    scraper = Scraper(lambda readings: None, session)
    before = asyncio.all_tasks()
    scraper.update(pool(engine="ollama"), [EndpointSpec("10.0.0.1:11434", "ollama:11434")])
    assert asyncio.all_tasks() == before
    await scraper.close()


async def test_ten_megabytes_are_read(session: aiohttp.ClientSession) -> None:
    async def handler(request: web.Request) -> web.Response:
        return web.Response(body=b"# something else\n" * 590_000 + PAGE)

    async with engine(handler) as endpoint:
        reading = await first_reading(session, endpoint)
    assert reading.signals.waiting == 3
