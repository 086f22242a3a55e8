"""`trimtab signals`: every endpoint with every signal, known or not."""

import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web
from rich.console import Console

from trimtab.cli.signals import signals
from trimtab.endpoint.engine_readings import SIGNALS
from trimtab.sim.http import EngineServer
from trimtab.sim.kinds import KINDS

FIRST = """
vllm:num_requests_waiting{model_name="m"} 3
vllm:kv_cache_usage_perc{model_name="m"} 0.55
vllm:generation_tokens_total{model_name="m"} 1000
vllm:prompt_tokens_total{model_name="m"} 0
vllm:prefix_cache_queries_total{model_name="m"} 0
vllm:prefix_cache_hits_total{model_name="m"} 0
vllm:time_to_first_token_seconds_bucket{le="0.5",model_name="m"} 0
vllm:time_to_first_token_seconds_bucket{le="1.0",model_name="m"} 0
vllm:time_to_first_token_seconds_bucket{le="+Inf",model_name="m"} 0
vllm:time_to_first_token_seconds_sum{model_name="m"} 0
vllm:lora_requests_info{max_lora="4",running_lora_adapters="sql",waiting_lora_adapters=""} 1788626454.6
"""
LATER = (
    FIRST.replace('tokens_total{model_name="m"} 1000', 'tokens_total{model_name="m"} 1050')
    .replace('queries_total{model_name="m"} 0', 'queries_total{model_name="m"} 100')
    .replace('hits_total{model_name="m"} 0', 'hits_total{model_name="m"} 25')
    .replace('le="1.0",model_name="m"} 0', 'le="1.0",model_name="m"} 4')
    .replace('le="+Inf",model_name="m"} 0', 'le="+Inf",model_name="m"} 4')
    .replace('seconds_sum{model_name="m"} 0', 'seconds_sum{model_name="m"} 3')
)


@pytest.fixture
async def policy(tmp_path: Path) -> AsyncIterator[Path]:
    """Of an engine that works, one that is not there, and one that has no metrics."""
    asked = 0

    async def metrics(request: web.Request) -> web.Response:
        nonlocal asked
        asked += 1
        return web.Response(text=FIRST if asked == 1 else LATER)

    app = web.Application()

    async def models(request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": "m", "max_model_len": 8192}]})

    app.router.add_get("/metrics", metrics)
    app.router.add_get("/v1/models", models)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    port = runner.addresses[0][1]
    path = tmp_path / "policy.yaml"
    path.write_text(f"""
version: 1
pools:
- name: chat
  models: [chat]
  signals: {{scrape_interval_ms: 1000, scrape_timeout_ms: 1000}}
  endpoints: [{{address: "localhost:{port}"}}, {{address: "127.0.0.1:1"}}]
- name: laptop
  engine: ollama
  endpoints: [{{address: "[::1]:11434"}}]
""")
    yield path
    await runner.cleanup()


async def test_json(policy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    await signals(policy, as_json=True, watch=False, console=Console())
    shown = json.loads(capsys.readouterr().out)["pools"]
    dead, works = sorted(shown["chat"]["endpoints"], key=lambda endpoint: endpoint["name"])
    assert works["name"].startswith("localhost:") and works["address"].startswith("127.0.0.1:")
    assert set(works["signals"]) == set(dead["signals"]) == set(SIGNALS)

    waiting = works["signals"]["waiting"]
    assert (waiting["value"], waiting["source"], waiting["metric"]) == (3, "scrape", "vllm:num_requests_waiting")
    assert 0 <= waiting["age_s"] < 5
    assert works["signals"]["running"] == {"value": None, "why": "vllm:num_requests_running is not on the page"}
    length = works["signals"]["max_model_len"]
    assert (length["value"], length["metric"]) == (8192, "/v1/models")
    assert works["signals"]["preemptions"] == {
        "value": None,
        "why": "vllm:num_preemptions_total is not on the page",
    }
    assert works["signals"]["prefix_hit_rate"]["value"] == 0.25
    assert works["signals"]["prefix_hit_rate"]["metric"] == "vllm:prefix_cache_hits_total"
    assert works["signals"]["adapters"]["value"] == {"running": ["sql"], "waiting": [], "slots": 4}
    assert works["signals"]["ttft"]["value"] == {"count": 4, "mean": 0.75, "p50": 0.75, "p99": 0.995}
    assert works["rates"]["tokens_per_s"] == pytest.approx(50, rel=0.5)
    assert {each["why"] for each in dead["signals"].values()} == {"no connection: Connection refused"}
    (laptop,) = shown["laptop"]["endpoints"]
    assert {each["why"] for each in laptop["signals"].values()} == {"ollama shows no metrics"}


async def test_table(policy: Path, tmp_path: Path) -> None:
    with (tmp_path / "out").open("w") as file:
        await signals(policy, as_json=False, watch=False, console=Console(file=file, width=140))
    lines = [" ".join(line.split()) for line in (tmp_path / "out").read_text().splitlines()]

    def row(start: str) -> str:
        return next(line for line in lines if line.startswith(start))

    assert row("waiting 3 ").endswith("s scrape vllm:num_requests_waiting")
    assert row("kv_usage").startswith("kv_usage 55.0% ")
    assert row("ttft").startswith("ttft 750 ms / 995 ms (p50 / p99 of 4) ")
    assert row("adapters").startswith("adapters sql of 4; waiting: none ")
    assert row("running") == "running unknown vllm:num_requests_running is not on the page"
    assert "every signal unknown no connection: Connection refused" in lines
    assert "pool laptop: [::1]:11434" in lines
    assert "every signal unknown ollama shows no metrics" in lines


async def test_a_name_that_does_not_resolve_is_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text('version: 1\npools:\n- name: chat\n  endpoints: [{address: "nowhere.invalid:8000"}]\n')
    await signals(path, as_json=True, watch=False, console=Console())
    shown = json.loads(capsys.readouterr().out)["pools"]["chat"]
    assert shown == {"unresolved": ["nowhere.invalid:8000"], "discovery": None, "endpoints": []}


async def test_a_source_that_told_nothing_is_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, gone = tmp_path / "policy.yaml", tmp_path / "endpoints.yaml"
    path.write_text(f"version: 1\npools:\n- name: chat\n  discovery: {{file: {{path: {gone}}}}}\n")
    await signals(path, as_json=True, watch=False, console=Console())
    shown = json.loads(capsys.readouterr().out)["pools"]["chat"]
    why = "1:1: the file cannot be read: no such file or directory"
    assert shown == {"unresolved": [], "discovery": f"{gone}:{why}", "endpoints": []}


def test_watch_looks_again_until_it_is_interrupted(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text('version: 1\npools:\n- name: chat\n  endpoints: [{address: "127.0.0.1:1"}]\n')
    command = [sys.executable, "-m", "trimtab.cli", "signals", "-p", str(path), "--json", "--watch"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        looks = [json.loads(process.stdout.readline()) for _ in range(2)]
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 0
        assert process.stderr.read() == ""
    assert looks[0]["at"] < looks[1]["at"]


async def test_idle_engines_are_probed_where_the_policy_probes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    engine = EngineServer(KINDS["a100"])
    await engine.start()
    path = tmp_path / "policy.yaml"
    pool = "models: [sim], probe: {interval_s: 10}"
    listed = f'{{address: "{engine.address}"}}, {{address: "127.0.0.1:1"}}'
    path.write_text(f"version: 1\npools:\n- {{name: chat, {pool}, endpoints: [{listed}]}}\n")
    await signals(path, as_json=True, watch=False, console=Console())
    await engine.stop()
    endpoints = json.loads(capsys.readouterr().out)["pools"]["chat"]["endpoints"]
    probes = {endpoint["name"]: endpoint["signals"]["probe"] for endpoint in endpoints}
    assert 0 < probes[engine.address]["value"] < 1.2
    assert probes["127.0.0.1:1"] == {"value": None, "why": "silent: no connection: Connection refused"}
