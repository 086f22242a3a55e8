"""What is particular to the sources of endpoints that are asked again and again: file, DNS, HTTP."""

import asyncio
import json
import shutil
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import dns.rcode
import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest

from tests.harness import until
from tests.unit.xds_server.discovery.dns_server import DnsServer, dns_server
from tests.unit.xds_server.discovery.test_contract import Pool
from xds_server.discovery import DiscoveryCollector, SourceStatus

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
GOOD = json.dumps([{"targets": ["10.0.0.1:8000"], "labels": {}}])


@asynccontextmanager
async def http_server(handler: Handler, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_get("/engines", handler)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
    yield f"http{'s' if tls else ''}://127.0.0.1:{runner.addresses[0][1]}/engines"
    await runner.cleanup()


def says(text: str, status: int = 200, **headers: str) -> Handler:
    async def handler(request: web.Request) -> web.Response:
        return web.Response(text=text, status=status, headers=headers)

    return handler


async def why_not(section: dict[str, Any]) -> str:
    """What is said of a source that fails."""
    async with aclosing(Pool(section)) as pool:
        await until(lambda: pool.why)
        assert pool.told == [()]
        return pool.why


# ---- file


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("- address: 10.0.0.1\n", '1:12: [0].address: "10.0.0.1" must be host:port, with a port of 1 to 65535'),
        ("- addres: a:1\n- {}\n", '1:3: [0].addres: unknown key; did you mean "address"? (and 1 more)'),
        (
            "- address: a:1\n- address: A:1\n",
            '2:12: [1].address: "A:1" is already endpoints[0] of this pool; remove one',
        ),
        (
            "- address: a:1\n  capacity:\n",
            "2:3: [0].capacity: has no value: write null, or leave the key out for the default",
        ),
        ("", "1:1: the file is empty: it must be a list of endpoints (- address: 10.0.0.11:8000), or [] for none"),
        (
            "version: 1\n",
            "1:1: it must be a list of endpoints (- address: 10.0.0.11:8000), or [] for none, and this is a mapping",
        ),
        ('[{"address": "a:1"},', "1:21: the file ends in the middle: is it whole?"),
    ],
)
async def test_a_bad_file_is_explained_with_line_and_fix(tmp_path: Path, content: str, why: str) -> None:
    path = tmp_path / "endpoints.yaml"
    path.write_text(content)
    said = await why_not({"file": {"path": str(path)}})
    assert said.startswith(f"{path}:")
    assert said.removeprefix(f"{path}:") == why


async def test_what_a_file_says(tmp_path: Path) -> None:
    path = tmp_path / "endpoints.yaml"
    path.write_text("- address: 10.0.0.1:80\n  capacity: 4\n  labels: {gpu: a100}\n- address: localhost:81\n")
    async with aclosing(Pool({"file": {"path": str(path)}})) as pool:
        await until(lambda: pool.addresses and len(pool.addresses) == 2)
        one, two = pool.told[-1]
        assert (one.name, one.capacity, one.labels) == ("10.0.0.1:80", 4, {"gpu": "a100"})
        assert two.name == "localhost:81" and two.address in {"127.0.0.1:81", "[::1]:81"}


async def test_a_file_behind_a_symlink_that_is_swapped(tmp_path: Path) -> None:
    """As a ConfigMap is updated."""
    for name, ip in (("one", "10.0.0.1"), ("two", "10.0.0.2")):
        (tmp_path / name).write_text(json.dumps([{"address": f"{ip}:80"}]))
    link, other = tmp_path / "endpoints.json", tmp_path / "other"
    link.symlink_to("one")
    async with aclosing(Pool({"file": {"path": str(link)}})) as pool:
        await until(lambda: pool.addresses == ["10.0.0.1:80"])
        other.symlink_to("two")
        other.replace(link)
        await until(lambda: pool.addresses == ["10.0.0.2:80"], 1.5)


# ---- DNS


@pytest.fixture
async def server() -> AsyncIterator[DnsServer]:
    async with dns_server() as server:
        yield server


def dns_section(server: DnsServer, **fields: Any) -> dict[str, Any]:
    return {"dns": {"name": "vllm.test", "server": server.address, **fields}}


async def test_ipv6_addresses(server: DnsServer) -> None:
    server.records = {("vllm.test.", "AAAA"): ["fd00::2", "fd00::1"], ("vllm.test.", "A"): ["10.0.0.1"]}
    async with aclosing(Pool(dns_section(server, record="aaaa", port=8000))) as pool:
        await until(lambda: pool.addresses == ["[fd00::1]:8000", "[fd00::2]:8000"])


async def test_srv_records_have_ports_weights_and_priorities(server: DnsServer) -> None:
    server.records = {
        ("vllm.test.", "SRV"): [
            "1 10 8000 10-0-0-1.test.",
            "1 0 8001 localhost.",
            "2 50 8002 localhost.",
            "0 0 0 .",
        ]
    }
    async with aclosing(Pool(dns_section(server, record="srv"))) as pool:
        await until(lambda: pool.told)
        (one,) = pool.told[-1]
        assert (one.name, one.capacity, one.address.rpartition(":")[2]) == ("localhost:8001", None, "8001")
        assert pool.discovery.unresolved("p") == ["10-0-0-1.test:8000"]


async def test_the_ttl_is_kept(server: DnsServer) -> None:
    server.records, server.ttl_s = {("vllm.test.", "A"): ["10.0.0.1"]}, 3600
    async with aclosing(Pool(dns_section(server, port=8000))) as pool:
        await until(lambda: pool.addresses == ["10.0.0.1:8000"])
        await asyncio.sleep(0.1)
        assert server.asked == ["vllm.test. A"]


async def test_a_short_ttl_is_asked_again_after_a_second_at_the_earliest(server: DnsServer) -> None:
    server.records = {("vllm.test.", "A"): ["10.0.0.1"]}
    async with aclosing(Pool(dns_section(server, port=8000))) as pool:
        await until(lambda: pool.addresses == ["10.0.0.1:8000"])
        server.records = {("vllm.test.", "A"): ["10.0.0.2"]}
        await asyncio.sleep(0.1)
        assert len(server.asked) == 1
        await until(lambda: pool.addresses == ["10.0.0.2:8000"], 2)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"records": {}}, "vllm.test does not exist in the DNS"),
        ({"rcode": dns.rcode.SERVFAIL}, "vllm.test: All nameservers failed to answer the query"),
        ({"rcode": dns.rcode.REFUSED}, "vllm.test: All nameservers failed to answer the query"),
    ],
)
async def test_what_goes_wrong_in_the_dns(server: DnsServer, change: dict[str, Any], why: str) -> None:
    for name, value in change.items():
        setattr(server, name, value)
    assert (await why_not(dns_section(server, port=8000))).startswith(why)


async def test_a_dns_server_that_is_silent_or_talks_garbage(server: DnsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("xds_server.discovery.from_dns._DEADLINE_S", 0.3)
    server.garbage = True
    assert "vllm.test: The resolution lifetime expired" in await why_not(dns_section(server, port=8000))


# ---- HTTP


@pytest.mark.parametrize(
    ("handler", "why"),
    [
        (says("", 404), "HTTP 404 from http://127.0.0.1:"),
        (
            says(GOOD, 302, Location="http://127.0.0.1:1/"),
            "/engines: it leads to http://127.0.0.1:1/, and redirects are not",
        ),
        (says("", 401), "/engines: give token_file"),
        (says("[" * 9_000), "not in the http_sd format: "),
        (says('{"targets": []}'), "not in the http_sd format: Input should be a valid array"),
        (says('[{"targets": ["10.0.0.1"]}]'), 'not in the http_sd format: "10.0.0.1" must be host:port'),
        (says('[{"targets": ["0.0.0.0:80"]}]'), "0.0.0.0:80 is of no machine: it is what one listens on"),
        (says('[{"targets": ["[ff02::1]:80"]}]'), "[ff02::1]:80 is of many machines: name the engine's own address"),
        (says('[{"targets": ["http://a:1"]}]'), "must be host:port, without a scheme"),
        (says('[{"targets": ["a:1"], "labels": {"a": 1}}]'), "not in the http_sd format: [0].labels.a Input should be"),
        (says(" " * 9 * 2**20), "the answer is larger than 8 MiB"),
    ],
)
async def test_what_goes_wrong_over_http(handler: Handler, why: str) -> None:
    async with http_server(handler) as url:
        said = await why_not({"http": {"url": url}})
    assert why in said and len(said) < 300 and said.isprintable()


async def test_a_server_that_is_silent_or_not_there(tmp_path: Path) -> None:
    async def silent(request: web.Request) -> web.Response:
        await asyncio.sleep(30)
        return web.Response()

    async with http_server(silent) as url:
        assert await why_not({"http": {"url": url, "timeout_s": 0.1}}) == "no whole answer within 0.1 s"
    assert await why_not({"http": {"url": url}}) == f"{url}: no connection: Connection refused"
    lost = "http://engines.invalid/sd"
    assert (await why_not({"http": {"url": lost}})).startswith(f"{lost}: engines.invalid does not resolve: ")


async def test_what_targets_say(caplog: pytest.LogCaptureFixture) -> None:
    groups = [
        {"targets": ["10.0.0.1:80", "[fd00::1]:80", "localhost:81"], "labels": {"capacity": "4", "gpu": "a100"}},
        {"targets": ["10.0.0.1:80", "10.0.0.2:80"], "labels": {"capacity": "a lot"}},
        {"targets": []},
        {"targets": None, "labels": None},
    ]
    asked: list[web.Request] = []

    async def handler(request: web.Request) -> web.Response:
        asked.append(request)
        return web.json_response(groups)

    async with http_server(handler) as url, aclosing(Pool({"http": {"url": url, "refresh_s": 30}})) as pool:
        await until(lambda: pool.told)
        known = {endpoint.name: endpoint for endpoint in pool.told[-1]}
        assert list(known) == ["10.0.0.1:80", "[fd00::1]:80", "localhost:81", "10.0.0.2:80"]
        assert known["10.0.0.2:80"].capacity is None
        assert caplog.text.count('the label capacity is "a lot", which is no number above 0') == 1
        assert known["[fd00::1]:80"].capacity == 4
        assert known["[fd00::1]:80"].labels == {"capacity": "4", "gpu": "a100"}
        assert asked[0].headers["X-Prometheus-Refresh-Interval-Seconds"] == "30"


async def test_of_a_target_that_is_there_twice_the_first_counts(caplog: pytest.LogCaptureFixture) -> None:
    groups = [
        {"targets": ["10.0.0.1:80", "10.0.0.1:80"], "labels": {"capacity": "4"}},
        {"targets": ["10.0.0.1:80"], "labels": {"capacity": "9"}},
    ]
    async with (
        http_server(says(json.dumps(groups))) as url,
        aclosing(Pool({"http": {"url": url, "refresh_s": 30}})) as pool,
    ):
        await until(lambda: pool.told)
        assert [endpoint.capacity for endpoint in pool.told[-1]] == [4]
    assert caplog.text.count("10.0.0.1:80 is there twice, with different labels: the first is used") == 1


async def test_a_list_that_no_step_could_get_through_is_a_bad_answer() -> None:
    targets = [f"10.0.{number // 250}.{number % 250}:80" for number in range(10_001)]
    async with http_server(says(json.dumps([{"targets": targets}]))) as url:
        assert await why_not({"http": {"url": url}}) == "it lists 10,001 endpoints, and 10,000 is the most"


async def test_the_token_is_sent_and_read_again(tmp_path: Path) -> None:
    token, wanted = tmp_path / "token", ["one"]

    async def handler(request: web.Request) -> web.Response:
        if request.headers.get("Authorization") != f"Bearer {wanted[0]}":
            return web.Response(status=401)
        return web.Response(text=GOOD)

    async with http_server(handler) as url:
        section = {"http": {"url": url, "token_file": str(token)}}
        assert await why_not(section) == f"{token}: No such file or directory"
        token.write_text("two words")
        assert await why_not(section) == f"{token} must hold one token and nothing else"
        token.write_text("one\n")
        async with aclosing(Pool(section)) as pool:
            await until(lambda: pool.addresses == ["10.0.0.1:8000"])
            wanted[0] = "two"
            await until(lambda: f"is the token in {token} the right one?" in pool.why)
            token.write_text("two\n")
            await until(lambda: not pool.why)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes its certificate with openssl")
async def test_tls(tmp_path: Path) -> None:
    key, certificate, nothing = tmp_path / "key.pem", tmp_path / "cert.pem", tmp_path / "nothing.pem"
    nothing.write_text("nothing")
    made = await asyncio.create_subprocess_exec(
        *(
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
            "-days",
            "2",
        ),
        *("-subj", "/CN=test", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)),
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert await made.wait() == 0
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate, key)
    async with http_server(says(GOOD), tls) as url:
        assert "CERTIFICATE_VERIFY_FAILED" in await why_not({"http": {"url": url}})
        assert await why_not({"http": {"url": url, "ca_file": str(nothing)}}) == f"{nothing} has no certificates in PEM"
        for trusted in ({"ca_file": str(certificate)}, {"skip_verify": True}):
            async with aclosing(Pool({"http": {"url": url, **trusted}})) as pool:
                await until(lambda pool=pool: pool.addresses == ["10.0.0.1:8000"])


# ---- what is seen


def test_metrics() -> None:
    registry = CollectorRegistry()
    statuses = {
        "a": SourceStatus("http", 3, 1000.0, 1005.0, "HTTP 503", 7),
        "b": SourceStatus("file", 0, None, 1000.0, "gone", 1),
    }
    registry.register(DiscoveryCollector(lambda: statuses, now=lambda: 1010.0))
    shown = [line for line in generate_latest(registry).decode().splitlines() if not line.startswith("#")]
    assert shown == [
        'trimtab_discovery_errors_total{pool="a",source="http"} 7.0',
        'trimtab_discovery_errors_total{pool="b",source="file"} 1.0',
        'trimtab_discovery_age_seconds{pool="a",source="http"} 10.0',
        'trimtab_discovery_stale{pool="a",source="http"} 1.0',
        'trimtab_discovery_stale{pool="b",source="file"} 1.0',
        'trimtab_discovery_endpoints{pool="a",source="http"} 3.0',
        'trimtab_discovery_endpoints{pool="b",source="file"} 0.0',
    ]
