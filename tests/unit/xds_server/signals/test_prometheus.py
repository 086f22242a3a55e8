"""A real Prometheus server that scrapes simulated engines and captured pages."""

import asyncio
import logging
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, fields
from math import isnan
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.harness import until
from tests.unit.xds_server.signals.prometheus_rig import (
    SCRAPE_INTERVAL_S,
    Page,
    PrometheusServer,
    simulated_engines,
    wait_for,
)
from trimtab.endpoint.snapshot import EndpointView
from trimtab.observation.kinds import Observation, PrometheusSample
from trimtab.policy.model import Pool
from trimtab.policy.prometheus import bundled_queries
from trimtab.pool import EndpointSpec, PoolController
from xds_server.signals.names import page_names
from xds_server.signals.page import read_page
from xds_server.signals.prometheus import PrometheusSource
from xds_server.signals.prometheus_query import Asker, QueryFailed

CAPTURED = (Path(__file__).parents[1] / "data" / "vllm_metrics_loaded.txt").read_text()
_FIRST, _SECOND = (f'gpu="{gpu}",Hostname="127.0.0.1",pod="llama-0"' for gpu in (0, 1))
EXPORTED = f"""\
DCGM_FI_DEV_GPU_UTIL{{{_FIRST}}} 98
DCGM_FI_DEV_GPU_UTIL{{{_SECOND}}} 12
DCGM_FI_DEV_FB_USED{{{_FIRST}}} 60000
DCGM_FI_DEV_FB_FREE{{{_FIRST}}} 20000
DCGM_FI_DEV_FB_USED{{{_SECOND}}} 20000
DCGM_FI_DEV_FB_FREE{{{_SECOND}}} 60000
DCGM_FI_DEV_MEM_COPY_UTIL{{{_FIRST}}} 40
DCGM_FI_PROF_DRAM_ACTIVE{{{_FIRST}}} 0.35
DCGM_FI_DEV_GPU_TEMP{{{_FIRST}}} 71
DCGM_FI_DEV_GPU_TEMP{{{_SECOND}}} 68
DCGM_FI_DEV_POWER_VIOLATION{{{_FIRST}}} 5000000
DCGM_FI_DEV_THERMAL_VIOLATION{{{_FIRST}}} 0
DCGM_FI_DEV_XID_ERRORS{{{_FIRST}}} 0
DCGM_FI_DEV_XID_ERRORS{{{_SECOND}}} 79
nvidia_smi_utilization_gpu_ratio{{{_FIRST}}} 0.97
nvidia_smi_memory_used_bytes{{{_FIRST}}} 6e10
nvidia_smi_memory_total_bytes{{{_FIRST}}} 8e10
nvidia_smi_memory_free_bytes{{{_FIRST}}} 2e10
nvidia_smi_utilization_memory_ratio{{{_FIRST}}} 0.4
nvidia_smi_temperature_gpu{{{_FIRST}}} 72
nvidia_smi_clocks_throttle_reasons_sw_power_cap{{{_FIRST}}} 1
nvidia_smi_clocks_event_reasons_hw_thermal_slowdown{{{_FIRST}}} 0
kube_pod_status_ready{{condition="true",Hostname="127.0.0.1"}} 1
kube_pod_status_ready{{condition="false",Hostname="127.0.0.1"}} 0
kube_pod_container_status_restarts_total{{container="vllm",Hostname="127.0.0.1"}} 3
kube_pod_container_status_restarts_total{{container="proxy",Hostname="127.0.0.1"}} 1
kube_node_spec_unschedulable{{Hostname="127.0.0.1"}} 0
kube_node_status_condition{{condition="MemoryPressure",status="true",Hostname="127.0.0.1"}} 1
kube_node_status_condition{{condition="Ready",status="true",Hostname="127.0.0.1"}} 1
"""
OF_PRESETS = {
    "dcgm_gpu_utilisation": 0.98,
    "dcgm_memory_usage": 0.75,
    "dcgm_memory_used": 60000,
    "dcgm_memory_free": 20000,
    "dcgm_memory_copy_utilisation": 0.4,
    "dcgm_memory_bandwidth": 0.35,
    "dcgm_temperature": 71,
    "dcgm_power_throttle": 0,  # the counter stands still
    "dcgm_thermal_throttle": 0,
    "dcgm_xid": 79,
    "smi_gpu_utilisation": 0.97,
    "smi_memory_usage": 0.75,
    "smi_memory_used": 6e10,
    "smi_memory_free": 2e10,
    "smi_memory_copy_utilisation": 0.4,
    "smi_temperature": 72,
    "smi_power_throttle": 1,
    "smi_thermal_throttle": 0,
    "pod_ready": 1,
    "pod_restarts": 4,
    "node_cordoned": 0,
    "node_pressure": 1,
}


@dataclass
class Fleet:
    """What the server of these tests scrapes."""

    server: PrometheusServer
    simulated: str
    captured: Page
    doomed: subprocess.Popen[bytes]  # a test may end it
    doomed_address: str


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with simulated_engines("engine") as (_, [simulated]), simulated_engines("doomed") as (doomed, [doomed_address]):
        captured, gpus = Page(CAPTURED), Page(EXPORTED)
        jobs = {"vllm": [simulated, captured.address, doomed_address], "gpu": [gpus.address]}
        server = PrometheusServer(tmp_path_factory.mktemp("prometheus"), jobs)
        server.start()
        try:
            wait_for(lambda: server.has("rate(DCGM_FI_DEV_POWER_VIOLATION[1m])"))
            for address in jobs["vllm"]:
                wait_for(lambda a=address: server.has(f'rate(vllm:generation_tokens_total{{instance="{a}"}}[1m])'))
            yield Fleet(server, simulated, captured, doomed, doomed_address)
        finally:
            server.kill()
            captured.close()
            gpus.close()


def pool(url: str, *addresses: str, scrape: bool = False, **section: Any) -> Pool:
    numbers = {"url": url, "interval_ms": 250, "timeout_ms": 250, "stale_after_s": 30} | section
    endpoints = [{"address": address} for address in addresses]
    made = Pool.model_validate(
        {"name": "chat", "endpoints": endpoints, "signals": {"scrape": scrape, "prometheus": numbers}}
    )
    # A patient deadline, longer than a policy may have: the machine may be busy.
    assert made.signals.prometheus is not None
    server = made.signals.prometheus.model_copy(update={"timeout_ms": section.get("timeout_ms", 8000)})
    return made.model_copy(update={"signals": made.signals.model_copy(update={"prometheus": server})})


@dataclass
class Watched:
    """A pool that is told what Prometheus says."""

    controller: PoolController
    source: PrometheusSource
    errors: list[tuple[str, str, str]] = field(default_factory=list)
    seen: list[PrometheusSample] = field(default_factory=list)

    def take(self, observations: Sequence[PrometheusSample]) -> None:
        self.seen.extend(observations)
        taken: Sequence[Observation] = observations
        self.controller.observe(time.time(), taken)

    def view(self, address: str) -> EndpointView:
        return next(e.view for e in self.controller.step(time.time()).endpoints if e.id.address == address)


@asynccontextmanager
async def watched(policy: Pool) -> AsyncIterator[Watched]:
    """What is known of the endpoints of a pool while it is asked about."""
    it: Watched
    source = PrometheusSource(lambda seen: it.take(seen), lambda *heard: it.errors.append(heard), rng=Random(1))
    it = Watched(PoolController(policy, Random(1)), source)
    specs = [EndpointSpec(endpoint.address, endpoint.address) for endpoint in policy.endpoints]
    it.controller.set_endpoints(time.time(), specs)
    source.update(policy, specs)
    try:
        yield it
    finally:
        await source.close()


async def test_bundled_queries_say_what_the_page_says(fleet: Fleet) -> None:
    address = fleet.captured.address
    policy = pool(fleet.server.url, address)
    async with watched(policy) as it:
        asked = bundled_queries().engines["vllm"].keys()
        await until(
            lambda: it.view(address).signals.waiting is not None and len({s.signal for s in it.seen}) == len(asked)
        )
        view = it.view(address)
    page = read_page(page_names(policy), CAPTURED.encode()).signals
    for signal in fields(page):
        if signal.name in asked:
            assert getattr(view.signals, signal.name) == pytest.approx(getattr(page, signal.name)), signal.name
    assert view.signals.waiting
    assert view.tokens_per_s == 0  # the captured page stands still


async def test_the_age_is_that_of_the_sample_and_not_of_the_question(fleet: Fleet) -> None:
    asker = Asker(_section(fleet.server.url), "vllm:num_requests_waiting", ["instance"])
    answer = await asyncio.to_thread(asker.ask)
    sampled_at = [one.value for one in answer.sampled_at[0]]
    assert time.time() - answer.evaluated_at < 1
    assert len(sampled_at) == 3
    assert all(0 < answer.evaluated_at - at < 10 * SCRAPE_INTERVAL_S for at in sampled_at)
    await asyncio.to_thread(wait_for, lambda: fleet.server.has("up offset 3s"))
    old = await asyncio.to_thread(Asker(_section(fleet.server.url), "up offset 3s", ["instance"]).ask)
    assert all(one.value <= old.evaluated_at - 3 for one in old.sampled_at[0])


async def test_custom_signals_of_a_host_and_two_series_and_none(fleet: Fleet, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "xds_server")
    host = {"Hostname": "host"}
    custom = [
        {"name": "heat", "preset": "dcgm_temperature", "join": host},
        {"name": "each", "query": "DCGM_FI_DEV_GPU_TEMP", "join": host},
        {"name": "none", "query": "no_such_metric"},
        {"name": "wrong", "query": "up * on(job) up"},
    ]
    async with watched(pool(fleet.server.url, fleet.simulated, bundled=False, custom=custom)) as it:
        await until(lambda: {s.signal for s in it.seen} == {one["name"] for one in custom})
        await until(lambda: len(it.errors) > 12)
        await until(lambda: caplog.records)
        heard = it.view(fleet.simulated).custom
    assert (heard["heat"].value, heard["heat"].why) == (71, "")
    assert heard["each"].why == "2 series; let the query make one of them, as in max by (Hostname) (...)"
    assert heard["none"].why == "no series whose instance is the endpoint's address"
    assert heard["wrong"].why.startswith("HTTP 422: found duplicate series")
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == len(set(lines))
    assert "pool chat: no wrong from Prometheus: HTTP 422: found duplicate series" in "\n".join(lines)


@pytest.mark.parametrize("preset", sorted(bundled_queries().presets))
def test_presets(fleet: Fleet, preset: str) -> None:
    custom = [{"name": "it", "preset": preset, "select": 'job="gpu"', "join": {"Hostname": "host"}}]
    section = _section(fleet.server.url, custom=custom)
    answer = Asker(section, section.texts("vllm")["it"], ["Hostname"]).ask()
    assert [series.value for series in answer.values] == pytest.approx(
        [OF_PRESETS[preset]] if preset in OF_PRESETS else []
    )
    assert preset in OF_PRESETS or preset.startswith("vllm_")


@pytest.mark.parametrize("preset", ["vllm_ttft_p95", "vllm_latency_p95", "vllm_latency_mean"])
def test_presets_of_histograms(fleet: Fleet, preset: str) -> None:
    section = _section(fleet.server.url, custom=[{"name": "it", "preset": preset}])
    answer = Asker(section, section.texts("vllm")["it"], ["instance"]).ask()
    assert fleet.captured.address in [series.labels["instance"] for series in answer.values]
    assert all(isnan(series.value) for series in answer.values)  # the pages stand still: no requests, no latency


@pytest.mark.parametrize("engine", sorted(bundled_queries().engines))
def test_every_bundled_query_is_understood(fleet: Fleet, engine: str) -> None:
    section = _section(fleet.server.url, select='job="x"', join={"pod": "labels.pod", "namespace": "labels.ns"})
    for query in section.texts(engine).values():
        assert Asker(section, query, section.join).ask().values == ()


async def test_an_engine_that_vanishes_is_unknown_though_its_rates_live_on(fleet: Fleet) -> None:
    address = fleet.doomed_address
    async with watched(pool(fleet.server.url, address)) as it:
        await until(lambda: it.view(address).signals.waiting is not None)
        await until(lambda: it.view(address).tokens_per_s is not None)
        fleet.doomed.kill()
        fleet.doomed.wait()
        await until(lambda: it.view(address).signals.waiting is None, 30)
        await until(lambda: it.view(address).tokens_per_s is None, 30)
        assert fleet.server.has(f'rate(vllm:generation_tokens_total{{instance="{address}"}}[1m])')
        await until(lambda: "prometheus: no series" in it.view(address).signals_unknown["waiting"])


async def test_a_black_hole_never_blocks_the_event_loop(fleet: Fleet) -> None:
    async with watched(pool(fleet.server.url, fleet.simulated, timeout_ms=250)) as it:
        await until(lambda: len(it.errors) > 9)
        with fleet.server.stopped():
            stalls = []
            for _ in range(100):
                began = time.perf_counter()
                await asyncio.sleep(0.01)
                stalls.append(time.perf_counter() - began)
            assert any(error for _, _, error in it.errors)
    # A blocking client would hold it up for the whole deadline, again and again.
    assert sorted(stalls)[len(stalls) // 2] < 0.1


@pytest.mark.alone  # it looks between two scrapes
async def test_a_server_that_hangs_dies_and_comes_back(fleet: Fleet, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "xds_server")
    server, address = fleet.server, fleet.captured.address
    queries = {"bundled": False, "queries": {"waiting": "vllm:num_requests_waiting"}}
    async with watched(pool(server.url, address, timeout_ms=250, stale_after_s=3, **queries)) as it:
        await until(lambda: it.view(address).signals.waiting is not None)
        with server.stopped():
            await until(lambda: it.errors[-1][2] == "no whole answer within 0.25 s")
            assert it.view(address).signals.waiting is not None  # what was known holds for its time
            await until(lambda: it.view(address).signals.waiting is None)
            why = it.view(address).signals_unknown["waiting"]
            assert why.endswith("its newest sample is too old: no whole answer within 0.25 s")
        await until(lambda: it.view(address).signals.waiting is not None, 30)

        server.kill()
        await until(lambda: it.errors[-1][2] == "Connection refused")
        await until(lambda: it.view(address).signals.waiting is None)
        server.start()
        # Until it scrapes again, it gives the samples of before its end as if they were of now.
        await until(lambda: it.errors[-1][2] == "", 30)
        assert it.view(address).signals.waiting is None
        await until(lambda: it.view(address).signals.waiting is not None, 30)
    lines = [record.getMessage() for record in caplog.records if server.url in record.getMessage()]
    assert len([line for line in lines if line.startswith("pool chat: no answer of Prometheus at")]) == 1
    assert lines[-1] == f"pool chat: answer of Prometheus at {server.url} again"


# Of the password "s3cret ü".
_HASH = "$2b$04$glycyLiaAleGCIiDTx86/.n6rJCEIaFSRoLO8JTSvxivCvVX4c2uq"


def test_basic_authentication(tmp_path: Path) -> None:
    server = PrometheusServer(tmp_path, {}, f'basic_auth_users: {{trimtab: "{_HASH}"}}')
    server.start()
    password = tmp_path / "password"
    try:
        with pytest.raises(QueryFailed, match=r"^HTTP 401: Unauthorized: give token_file"):
            Asker(_section(server.url), "up", ["instance"]).ask()
        asker = Asker(_section(server.url, username="trimtab", password_file=str(password)), "up", ["instance"])
        with pytest.raises(QueryFailed, match=f"^{password}: No such file or directory$"):
            asker.ask()
        password.write_text("wrong\n", "utf-8")
        with pytest.raises(QueryFailed, match=r"^HTTP 401"):
            asker.ask()
        password.write_text("s3cret ü\n", "utf-8")
        assert asker.ask().values == ()
    finally:
        server.kill()


def test_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certificates = Path(__file__).parents[1] / "data" / "tls"
    web_config = f"tls_server_config: {{cert_file: {certificates}/engine.pem, key_file: {certificates}/engine.key}}"
    server = PrometheusServer(tmp_path, {}, web_config)
    server.start()
    url, named = f"https://127.0.0.1:{server.port}", f"https://engine.internal:{server.port}"
    ca = str(certificates / "ca.pem")
    _resolve(monkeypatch, "engine.internal")
    try:
        for section, message in (
            (_section(named), "^TLS: .*unable to get local issuer certificate"),
            (_section(url, ca_file=ca), "^TLS: .*IP address mismatch"),
            (_section(url, ca_file=str(tmp_path / "none.pem")), "none.pem"),
            (_section(url.replace("https", "http")), "^HTTP 400"),
        ):
            with pytest.raises(QueryFailed, match=message):
                Asker(section, "up", ["instance"]).ask()
        assert Asker(_section(named, ca_file=ca), "up", ["instance"]).ask().values == ()
        assert Asker(_section(url, skip_verify=True), "up", ["instance"]).ask().values == ()
    finally:
        server.kill()


def _section(url: str, **section: Any) -> Any:
    return pool(url, "10.0.0.1:8000", **section).signals.prometheus


def _resolve(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    real = socket.getaddrinfo
    monkeypatch.setattr(
        socket, "getaddrinfo", lambda host, *rest, **more: real("127.0.0.1" if host == name else host, *rest, **more)
    )
