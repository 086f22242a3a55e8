"""The admin pages over HTTP."""

import json
from collections.abc import AsyncIterator
from dataclasses import fields
from typing import Any

import pytest
from aiohttp import ClientSession
from aiohttp.test_utils import TestClient, TestServer

from tests.unit.xds_server.made import decision, endpoint
from trimtab.decision import ClassDecision
from trimtab.endpoint.engine_rates import Spread
from trimtab.endpoint.engine_readings import Origin
from trimtab.endpoint.prometheus_readings import CustomReading
from trimtab.endpoint.snapshot import EndpointView
from trimtab.health.state import State
from trimtab.observation.kinds import Adapters, Signals
from trimtab.policy.model import Policy
from trimtab.pool import EndpointDecision, PoolDecision
from xds_server.admin.metrics import Metrics
from xds_server.admin.server import AdminState, admin_app
from xds_server.ads.server import ClientRow, TypeRow
from xds_server.ads.snapshot import TypeUrl

NOW = 1010.0


@pytest.fixture
def state() -> AdminState:
    pools = [
        {"name": "chat", "models": ["llama-*"], "endpoints": [{"address": "gpu-1:8000", "capacity": 4}]},
        {"name": "code", "models": ["qwen-*"], "endpoints": [{"address": "gpu-2:8000"}]},
    ]
    return AdminState(policy=Policy.model_validate({"version": 1, "pools": pools}))


@pytest.fixture
async def client(state: AdminState) -> AsyncIterator[TestClient[Any, Any]]:
    app = admin_app(state, Metrics(state), now=lambda: NOW)
    async with TestClient(TestServer(app)) as client:
        yield client


async def read(client: TestClient[Any, Any], path: str) -> Any:
    response = await client.get(path)
    assert response.status == 200 and response.content_type == "application/json"

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(await response.text(), parse_constant=refuse)


async def test_index_names_every_page(client: TestClient[Any, Any]) -> None:
    text = await (await client.get("/")).text()
    named = {line.split()[0] for line in text.splitlines()}
    served = {resource.canonical for resource in client.app.router.resources()} - {"/"}
    assert named == served
    for path in named:
        assert (await client.get(path)).status in {200, 503}


async def test_ready_when_published(client: TestClient[Any, Any], state: AdminState) -> None:
    assert (await client.get("/healthz")).status == 200
    response = await client.get("/readyz")
    assert response.status == 503
    assert await response.text() == (
        "nothing has been published to Envoys yet; no endpoints are known yet of: chat, code\n"
    )
    state.decisions["chat"] = decision("chat", 1.0)
    assert (await (await client.get("/readyz")).text()).endswith(" of: code\n")
    state.ready = True
    assert (await client.get("/readyz")).status == 200


async def test_endpoints(client: TestClient[Any, Any], state: AdminState) -> None:
    assert await read(client, "/endpoints") == {"pools": {}}
    state.decisions["chat"] = PoolDecision(
        "chat",
        1009.5,
        (
            endpoint(
                "10.0.0.1:8000",
                "gpu-1:8000",
                capacity=4.0,
                labels={"gpu": "a100"},
                breakdown={"ttft": 7.0},
                classes=(ClassDecision("long", 0.0, 1, takes_work=False),),
                score=93.0,
                effective_score=90.0,
                state=State.SLOW_START,
                until=1011.0,
                reason="the score was 40 a second ago",
                ttft_s=0.4,
                in_flight=3,
                signals=Signals(waiting=2, kv_usage=0.5, adapters=Adapters(("sql",), (), 4)),
                signals_age_s=0.25,
                signals_unknown={"running": "vllm:num_requests_running is not on the page"},
                signal_origins={"waiting": Origin("scrape", "vllm:num_requests_waiting", 1009.0)},
                custom={"heat": CustomReading(71.5, 1008.0)},
                tokens_per_s=12.5,
                engine_ttft_s=Spread(4, 0.5, 0.4, 0.9),
            ),
        ),
        changed=False,
        bytes_per_token=3.8,
    )
    assert await read(client, "/endpoints") == {
        "pools": {
            "chat": {
                "at": 1009.5,
                "age_s": 0.5,
                "bytes_per_token": 3.8,
                "discovery": None,
                "split": None,
                "unresolved": [],
                "endpoints": [
                    {
                        "name": "gpu-1:8000",
                        "address": "10.0.0.1:8000",
                        "incarnation": 0,
                        "state": "slow-start",
                        "reason": "the score was 40 a second ago",
                        "until": 1011.0,
                        "takes_work": True,
                        "weight": 500,
                        "share": 0.5,
                        "classes": {"long": {"takes_work": False, "weight": 1, "share": 0.0}},
                        "score": 93.0,
                        "prediction_error": None,
                        "effective_score": 90.0,
                        "breakdown": {"ttft": 7.0},
                        "capacity": 4.0,
                        "labels": {"gpu": "a100"},
                        "ttft_s": 0.4,
                        "ttft_samples": 0,
                        "ttft_recent_s": None,
                        "ttft_p99_s": None,
                        "inter_token_s": None,
                        "inter_token_p99_s": None,
                        "tokens_per_s": 12.5,
                        "tokens_per_s_best": None,
                        "prompt_tokens_per_s": None,
                        "preemptions_per_s": None,
                        "prefix_hit_rate": None,
                        "engine_ttft_s": {"count": 4, "mean": 0.5, "p50": 0.4, "p99": 0.9},
                        "engine_inter_token_s": None,
                        "prompt_bytes_mean": None,
                        "prompt_bytes_std": None,
                        "failures_in_row": 0,
                        "error_share": 0.0,
                        "error_samples": 0.0,
                        "in_flight": 3,
                        "ended_early": 0,
                        "ended_early_bytes": 0,
                        "in_flight_reported": None,
                        "lease_difference": 0,
                        "awaiting_token": 0,
                        "newest_sent_at": None,
                        "outstanding_prompt_bytes": 0,
                        "prompt_bytes_sent": 0,
                        "oldest_wait_s": 0.0,
                        "signals": {
                            "waiting": 2,
                            "running": None,
                            "kv_usage": 0.5,
                            "generated_tokens": None,
                            "preemptions": None,
                            "process_start": None,
                            "prompt_tokens": None,
                            "prefix_queries": None,
                            "prefix_hits": None,
                            "prefix_hit_rate": None,
                            "max_model_len": None,
                            "adapters": {"running": ["sql"], "waiting": [], "slots": 4},
                        },
                        "signals_age_s": 0.25,
                        "signals_unknown": {"running": "vllm:num_requests_running is not on the page"},
                        "signal_origins": {
                            "waiting": {"source": "scrape", "metric": "vllm:num_requests_waiting", "at": 1009.0}
                        },
                        "moved_at": None,
                        "frozen_s": None,
                        "probe": {
                            "state": "up",
                            "by_probe": True,
                            "alive_at": None,
                            "unaware": False,
                            "at": None,
                            "result": None,
                            "ttft_s": None,
                            "reason": "",
                        },
                        "custom": {"heat": {"value": 71.5, "at": 1008.0, "why": ""}},
                    }
                ],
            }
        }
    }


async def test_the_endpoint_page_leaves_nothing_out(client: TestClient[Any, Any], state: AdminState) -> None:
    state.decisions["chat"] = decision("chat", 1.0, "a:80")
    shown = (await read(client, "/endpoints"))["pools"]["chat"]["endpoints"][0].keys()
    known = {field.name for kind in (EndpointDecision, EndpointView) for field in fields(kind)}
    assert known - {"id", "view"} <= shown


async def test_numbers_that_json_does_not_have_are_null(client: TestClient[Any, Any], state: AdminState) -> None:
    odd = endpoint("10.0.0.1:80", "a:80", until=float("inf"), breakdown={"ttft": float("nan")})
    state.decisions["chat"] = PoolDecision("chat", 1.0, (odd,), changed=True)
    shown = (await read(client, "/endpoints"))["pools"]["chat"]["endpoints"][0]
    assert (shown["until"], shown["breakdown"]) == (None, {"ttft": None})


async def test_clients(client: TestClient[Any, Any], state: AdminState) -> None:
    assert await read(client, "/clients") == {"clients": []}
    types = {
        TypeUrl.EDS: TypeRow("e-12", ""),
        TypeUrl.CDS: TypeRow("e-11", "no such filter"),
        TypeUrl.LDS: TypeRow("", ""),
    }
    state.clients = lambda: [ClientRow("envoy-1", "delta", 1000.0, types)]
    assert await read(client, "/clients") == {
        "clients": [
            {
                "node": "envoy-1",
                "protocol": "delta",
                "since": 1000.0,
                "age_s": 10.0,
                "types": {
                    "EDS": {"accepted_version": "e-12", "refusal": None},
                    "CDS": {"accepted_version": "e-11", "refusal": "no such filter"},
                },
            }
        ]
    }


async def test_the_policy_page_is_the_policy(client: TestClient[Any, Any], state: AdminState) -> None:
    assert Policy.model_validate(await read(client, "/policy")) == state.policy


async def test_metrics_in_the_format_that_is_asked_for(client: TestClient[Any, Any]) -> None:
    response = await client.get("/metrics", headers={"Accept": "text/plain"})
    assert response.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert "trimtab_policy_valid" in await response.text()
    response = await client.get("/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})
    assert response.headers["Content-Type"].startswith("application/openmetrics-text; version=1.0.0")
    assert (await response.text()).endswith("# EOF\n")


async def test_nothing_can_be_written(client: TestClient[Any, Any]) -> None:
    async with ClientSession() as session:
        for path in ("/", "/endpoints", "/policy"):
            for method in ("POST", "PUT", "DELETE", "PATCH"):
                assert (await session.request(method, client.make_url(path))).status == 405
