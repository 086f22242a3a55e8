"""The metrics page, as Prometheus and people read it."""

import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from tests.unit.xds_server.made import decision, endpoint
from trimtab.decision import ClassDecision
from trimtab.endpoint.engine_rates import Spread
from trimtab.endpoint.failure_signals import FailureSignal
from trimtab.endpoint.snapshot import EndpointId
from trimtab.health.state import State
from trimtab.observation.kinds import (
    AnswerRead,
    AttemptEnded,
    AttemptStarted,
    FirstToken,
    LoadReported,
    Observation,
    Outcome,
    Output,
    Probed,
    ProbeResult,
    Rejected,
    Signals,
    SignalsRead,
    Verdict,
)
from trimtab.policy.model import Policy
from trimtab.pool import PoolDecision
from xds_server.admin.metrics import Metrics
from xds_server.admin.state import AdminState
from xds_server.ads.snapshot import TypeUrl
from xds_server.discovery import DiscoveryCollector, SourceStatus

GOLDEN = Path(__file__).parents[1] / "data" / "metrics.golden"


class Clock:
    at = 1000.0

    def __call__(self) -> float:
        return self.at


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def state() -> AdminState:
    policy = {"version": 1, "pools": [{"name": "chat", "endpoints": [{"address": "gpu-1:8000"}]}]}
    return AdminState(policy=Policy.model_validate(policy))


@pytest.fixture
def metrics(state: AdminState, clock: Clock) -> Metrics:
    return Metrics(state, now=clock)


async def page(metrics: Metrics) -> str:
    body, content_type = await metrics.render("")
    assert content_type.startswith("text/plain; version=")
    return body.decode()


async def values(metrics: Metrics) -> dict[str, float]:
    """Sample -> value, each spelled `name{label="value"}` with the labels in order."""
    samples = {}
    for family in text_string_to_metric_families(await page(metrics)):
        for sample in family.samples:
            labels = ",".join(f'{k}="{v}"' for k, v in sorted(sample.labels.items()))
            key = sample.name + (f"{{{labels}}}" if labels else "")
            assert key not in samples, f"{key} is there twice"
            samples[key] = sample.value
    return samples


def attempt(
    address: str = "10.0.0.1:80", at: float = 999.0, request_id: str = "r", *, pool: str = "chat"
) -> Iterable[Observation]:
    where = (pool, address, request_id)
    yield AttemptStarted(at, *where, prompt_bytes=100, streamed=True)
    yield FirstToken(at + 0.3, *where)
    yield AttemptEnded(at + 2, *where, at, 200, Outcome.COMPLETE, True, 0.2, 100, 1000)


def busy(state: AdminState, metrics: Metrics, clock: Clock) -> None:
    """One of everything."""
    full = Signals(
        waiting=7,
        running=16,
        kv_usage=0.91,
        generated_tokens=1e6,
        preemptions=2,
        process_start=5,
        max_model_len=8192,
    )
    state.decisions["chat"] = PoolDecision(
        "chat",
        999.9,
        (
            endpoint(
                "10.0.0.1:8000",
                "gpu-1:8000",
                weight=930,
                share=0.75,
                score=93.0,
                effective_score=93.0,
                breakdown={"ttft": 5.0, "errors": 2.0, "load": 0.0},
                in_flight=12,
                in_flight_reported=11,
                lease_difference=1,
                awaiting_token=3,
                outstanding_prompt_bytes=40_960,
                oldest_wait_s=0.8,
                ttft_s=0.41,
                ttft_p99_s=1.9,
                inter_token_p99_s=0.06,
                tokens_per_s=820.0,
                tokens_per_s_best=1900.0,
                prediction_error=0.18,
                ttft_samples=500,
                error_share=0.02,
                signals=full,
                signals_age_s=0.3,
                prompt_tokens_per_s=4096.0,
                preemptions_per_s=0.0,
                prefix_hit_rate=0.25,
                engine_ttft_s=Spread(40, 0.4, 0.3, 1.9),
                engine_inter_token_s=Spread(8000, 0.02, 0.018, 0.075),
                frozen_s=0.0,
            ),
            endpoint(
                "[2001:db8::1]:8000",
                'gpu-2 "spare"\\:8000',
                weight=1,
                share=0.0,
                score=10.0,
                takes_work=False,
                state=State.COOLING,
                until=1003.5,
                reason="saturated",
            ),
        ),
        changed=True,
        bytes_per_token=3.8,
        failure_signals=((EndpointId("[2001:db8::1]:8000"), FailureSignal.SILENT),),
    )
    state.splits["chat"] = {"chat": 0.7, "small": 0.25, "answer": 0.05}
    metrics.observe([*attempt("10.0.0.1:8000")])
    elsewhere = ("chat", "[2001:db8::1]:8000", "r2")
    metrics.observe(
        [
            AttemptStarted(999.5, *elsewhere, prompt_bytes=None, streamed=None),
            Rejected(999.6, *elsewhere, 429, Verdict.SATURATED, 3.0, reason="kv"),
            AnswerRead(999.6, *elsewhere, Output.NONE, "an end mark alone"),
            AttemptEnded(999.6, *elsewhere, 999.5, 429, Outcome.COMPLETE, False, 0.1),
            AttemptEnded(999.7, *elsewhere, 999.7, 0, Outcome.UNREACHABLE, False, None),
            SignalsRead(999.8, *elsewhere[:2], Signals(), error="refused"),
            SignalsRead(999.8, "chat", "10.0.0.1:8000", full),
            LoadReported(999.9, "chat", "envoy-1", {"10.0.0.1:8000": 11}),
            Probed(999.8, "chat", "10.0.0.1:8000", 999.76, ProbeResult.TOKEN, 0.04),
            Probed(999.9, *elsewhere[:2], 998.7, ProbeResult.SILENT, None, "no token within 1.2 s"),
        ]
    )
    metrics.policy_accepted()
    metrics.connected("envoy-1", "delta")
    metrics.acked("envoy-1", TypeUrl.EDS, "v0", 0.01)
    metrics.decided(state.decisions["chat"], 0.0004)
    metrics.pushed("envoy-1", TypeUrl.CDS, "v1", 2, 4096)
    metrics.pushed("envoy-1", TypeUrl.EDS, "v1", 1, 120)
    clock.at += 0.02
    metrics.acked("envoy-1", TypeUrl.EDS, "v1", 0.02)
    metrics.nacked("envoy-1", TypeUrl.CDS, "v1", "no such filter")
    metrics.pushed("envoy-1", "type.googleapis.com/somewhere.Else", "v1", 1, 1)
    metrics.worker("ext-proc-1", 1.5, 40, 3, 2, {"token": 30, "error": 1})
    metrics.watch_share(25)
    metrics.fault("step")
    source = SourceStatus("http", 2, clock.at - 10, clock.at - 5, "HTTP 503", 3)
    metrics.registry.register(DiscoveryCollector(lambda: {"chat": source}, now=clock))


async def test_golden_page(state: AdminState, metrics: Metrics, clock: Clock) -> None:
    """To renew the file, delete it and run this test twice."""
    busy(state, metrics, clock)
    text = await page(metrics)
    if not GOLDEN.exists():
        GOLDEN.write_text(text)
        pytest.fail(f"{GOLDEN} was written: look at it")
    assert text == GOLDEN.read_text()


async def test_the_page_is_well_formed(state: AdminState, metrics: Metrics, clock: Clock) -> None:
    busy(state, metrics, clock)
    await values(metrics)
    for family in text_string_to_metric_families(await page(metrics)):
        assert family.documentation.endswith("."), family.name
        assert re.fullmatch(r"(trimtab|lb)_[a-z0-9_]+", family.name)
        assert not re.search(r"_(ms|milliseconds|percent|kb|mb)$", family.name), "base units only"
        assert not any(sample.name.endswith("_created") for sample in family.samples)
    body, content_type = await metrics.render("application/openmetrics-text; version=1.0.0")
    assert content_type.startswith("application/openmetrics-text")
    assert {family.name for family in parse_openmetrics(body.decode())} >= {"trimtab_ttft_seconds"}


async def test_unknown_has_no_sample(state: AdminState, metrics: Metrics) -> None:
    state.decisions["chat"] = decision("chat", 1.0, "a:80")
    seen = await values(metrics)
    where = '{endpoint="a:80",pool="chat"}'
    assert seen[f"trimtab_endpoint_in_flight{where}"] == 0
    for unknown in (
        "waiting",
        "kv_usage_ratio",
        "ttft_average_seconds",
        "in_flight_reported",
        "signals_age_seconds",
    ):
        assert f"trimtab_endpoint_{unknown}{where}" not in seen


async def test_series_of_a_gone_endpoint_vanish_at_once(state: AdminState, metrics: Metrics) -> None:
    both = decision("chat", 1.0, "a:80", "b:80")
    state.decisions["chat"] = both
    for address in ("10.0.0.1:80", "10.0.0.2:80"):
        read = AnswerRead(1.0, "chat", address, "r", Output.OUTPUT)
        metrics.observe([*attempt(address), read, Rejected(1.0, "chat", address, "r", 503, Verdict.UNKNOWN, None)])
        metrics.observe([SignalsRead(1.0, "chat", address, Signals(), error="refused")])
    metrics.decided(both, 0.001)
    assert 'trimtab_step_seconds_count{pool="chat"}' in await values(metrics)
    assert any('"b:80"' in key for key in await values(metrics))

    state.decisions["chat"] = replace(both, endpoints=both.endpoints[:1])
    metrics.observe(attempt("10.0.0.2:80"))
    seen = await values(metrics)
    assert not any('"b:80"' in key for key in seen)
    assert seen['trimtab_attempts_total{code="200",endpoint="a:80",outcome="complete",pool="chat"}'] == 1

    state.decisions["chat"] = both
    metrics.observe(attempt("10.0.0.2:80"))
    seen = await values(metrics)
    assert seen['trimtab_attempts_total{code="200",endpoint="b:80",outcome="complete",pool="chat"}'] == 1

    del state.decisions["chat"]
    assert not any('pool="chat"' in key for key in await values(metrics))


async def test_ttft_is_from_the_start_to_the_token(state: AdminState, metrics: Metrics) -> None:
    state.decisions["chat"] = decision("chat", 1.0, "a:80")
    metrics.observe([*attempt()])
    seen = await values(metrics)
    where = 'endpoint="a:80"'
    assert seen[f'trimtab_ttft_seconds_count{{{where},pool="chat"}}'] == 1
    assert seen[f'trimtab_ttft_seconds_sum{{{where},pool="chat"}}'] == pytest.approx(0.3)
    assert seen[f'trimtab_ttft_seconds_bucket{{{where},le="0.2",pool="chat"}}'] == 0
    assert seen[f'trimtab_ttft_seconds_bucket{{{where},le="0.35",pool="chat"}}'] == 1


async def test_length_classes_have_weights_of_their_own(state: AdminState, metrics: Metrics) -> None:
    classes = (ClassDecision("short", 0.75, 7500, takes_work=True), ClassDecision("long", 0.0, 1, takes_work=False))
    state.decisions["chat"] = PoolDecision(
        "chat", 1.0, (endpoint("10.0.0.1:80", "a:80", classes=classes),), changed=True, classes=("short", "long")
    )
    seen = await values(metrics)
    for name, short, long in (("weight", 7500, 1), ("share_ratio", 0.75, 0), ("takes_work", 1, 0)):
        series = {key: value for key, value in seen.items() if key.startswith(f"trimtab_endpoint_{name}{{")}
        where = 'endpoint="a:80",pool="chat"}'
        assert series == {
            f'trimtab_endpoint_{name}{{class="short",{where}': short,
            f'trimtab_endpoint_{name}{{class="long",{where}': long,
        }


async def test_every_attempt_is_one_decision(state: AdminState, metrics: Metrics) -> None:
    """A connection that failed has no start, but was decided on all the same."""
    state.decisions["chat"] = PoolDecision(
        "chat", 1.0, (endpoint("10.0.0.1:80", "a:80", state=State.SLOW_START),), changed=True
    )
    refused = AttemptEnded(1.0, "chat", "10.0.0.1:80", "r", 1.0, 0, Outcome.UNREACHABLE, False, None)
    metrics.observe([*attempt(), refused, refused])
    seen = await values(metrics)
    assert seen['lb_route_decision_total{backend="a:80",method="predicted_ttft",pool="chat",reason="slow-start"}'] == 3
    assert seen['lb_upstream_latency_seconds_count{backend="a:80",pool="chat"}'] == 1


async def test_what_is_heard_of_unknown_pools_and_endpoints_is_not_counted(state: AdminState, metrics: Metrics) -> None:
    metrics.observe([*attempt(), *attempt(pool="other")])
    assert not any("pool=" in key for key in await values(metrics))


async def test_counters_of_observers_add_up_over_restarts(metrics: Metrics) -> None:
    for counters in ((1.0, 10, 0, 0), (2.5, 20, 1, 4), (0.5, 2, 0, 1), (1.0, 4, 0, 2)):
        metrics.worker("a", *counters, {"token": counters[1]})
    metrics.worker("b", 10.0, 100, 5, 1, {"token": 3, "gone": 1})
    seen = await values(metrics)
    assert seen["trimtab_observation_cpu_seconds_total"] == pytest.approx(2.5 + 1.0 + 10)
    assert seen["trimtab_attempts_watched_total"] == 20 + 4 + 100
    assert seen['trimtab_gate_releases_total{release="token"}'] == 20 + 4 + 3
    assert seen['trimtab_gate_releases_total{release="gone"}'] == 1
    assert seen["trimtab_observations_dropped_total"] == 1 + 5
    assert seen['trimtab_faults_total{part="observation"}'] == 4 + 2 + 1


async def test_policy_reloads(metrics: Metrics) -> None:
    metrics.policy_accepted()
    metrics.policy_refused()
    seen = await values(metrics)
    assert seen["trimtab_policy_valid"] == 0
    metrics.policy_accepted()
    seen = await values(metrics)
    assert seen["trimtab_policy_valid"] == 1
    assert seen['trimtab_policy_reloads_total{result="ok"}'] == 2
    assert seen['trimtab_policy_reloads_total{result="failed"}'] == 1


async def test_envoys_connected(metrics: Metrics) -> None:
    metrics.connected("e1", "delta")
    metrics.connected("e2", "delta")
    metrics.connected("e3", "sotw")
    metrics.disconnected("e1", "delta")
    seen = await values(metrics)
    assert seen['trimtab_envoys_connected{protocol="delta"}'] == 1
    assert seen['trimtab_envoys_connected{protocol="sotw"}'] == 1


async def test_the_loop_by_pool_and_source(state: AdminState, metrics: Metrics, clock: Clock) -> None:
    """From the oldest evidence of the interval, over the step, to each Envoy's ACK."""
    state.decisions["chat"] = decision("chat", clock.at, "a:80")
    for node in ("e1", "e2"):
        metrics.connected(node, "delta")
        metrics.acked(node, TypeUrl.EDS, "v0", 0.01)
    metrics.observe([*attempt(at=998.0), LoadReported(999.5, "chat", "e1", {})])
    metrics.observe(attempt("10.9.9.9:80", at=900.0))  # nobody's endpoint
    metrics.decided(state.decisions["chat"], 0.001)
    for node in ("e1", "e2"):
        metrics.pushed(node, TypeUrl.EDS, "v1", 1, 100)
        clock.at += 0.25
        metrics.acked(node, TypeUrl.CDS, "v1", 0.01)
        metrics.acked(node, TypeUrl.EDS, "v1", 0.01)
    seen = await values(metrics)
    loops = {key: value for key, value in seen.items() if key.startswith("trimtab_loop_seconds_sum")}
    assert loops == {
        'trimtab_loop_seconds_sum{pool="chat",source="access_log"}': 2.25 + 2.5,
        'trimtab_loop_seconds_sum{pool="chat",source="watch"}': pytest.approx(1.95 + 2.2),
        'trimtab_loop_seconds_sum{pool="chat",source="lrs"}': 0.75 + 1.0,
    }
    del state.decisions["chat"]
    assert not [key for key in await values(metrics) if key.startswith("trimtab_loop_seconds_")]


async def test_a_thousand_endpoints(state: AdminState, metrics: Metrics) -> None:
    state.decisions["chat"] = decision("chat", 1.0, *(f"gpu-{i}:8000" for i in range(1000)))
    for e in state.decisions["chat"].endpoints:
        metrics.observe([*attempt(e.id.address)])
    text = await page(metrics)
    assert text.count("\ntrimtab_endpoint_weight{") == 1000
    assert text.count("\ntrimtab_ttft_seconds_count{") == 1000


async def test_only_readings_of_pages_are_scrapes(state: AdminState, metrics: Metrics) -> None:
    state.decisions["chat"] = decision("chat", 1.0, "a:80")
    metrics.observe([SignalsRead(1.0, "chat", "10.0.0.1:80", Signals(waiting=1))])
    metrics.observe([SignalsRead(1.0, "chat", "10.0.0.1:80", Signals(waiting=1), source="orca")])
    assert (await values(metrics))['trimtab_scrapes_total{endpoint="a:80",pool="chat"}'] == 1
