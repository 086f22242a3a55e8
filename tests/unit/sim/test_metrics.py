"""The /metrics page beside two captured ones."""

import re

import pytest

from tests.unit.sim.captures import DATA
from trimtab.sim.kinds import A100
from trimtab.sim.metrics import MetricsPage

_OURS = re.compile(r'\b(block_size|kv_cache_max_concurrency|kv_cache_size_tokens|num_gpu_blocks)="[^"]*"')


def series(page: str) -> list[str]:
    """All lines without their values, and without what differs by the engine's size."""
    lines = [line if line.startswith("#") else line.rpartition(" ")[0] for line in page.splitlines()]
    return [_OURS.sub(r"\1", line.replace("effective_attention_block_size", "block_size")) for line in lines]


def page() -> MetricsPage:
    return MetricsPage("tiny", A100, started_at=1_700_000_000.0)


def test_the_page_of_an_idle_engine_has_every_line_of_the_captured_one() -> None:
    assert series(page().render().decode()) == series((DATA / "vllm_metrics_idle_fresh.txt").read_text())


def test_so_has_the_page_of_an_engine_that_has_answered() -> None:
    ours = page()
    ours.http.count("GET", "/v1/models", 200, 0, 467, 0.0015)
    ours.http.count("POST", "/v1/chat/completions", 200, 480, 2098, 0.128)
    assert series(ours.render().decode()) == series((DATA / "vllm_metrics_loaded.txt").read_text())


def test_values_are_in_their_places() -> None:
    ours = page()
    ours.set("vllm:num_requests_running", 3)
    ours.add('vllm:request_success_total{finished_reason="stop"}', 2)
    ours.observe("vllm:inter_token_latency_seconds", 0.011, times=4)
    lines = ours.render().decode().splitlines()
    labels = 'engine="0",model_name="tiny"'
    assert f"vllm:num_requests_running{{{labels}}} 3.0" in lines
    assert 'vllm:request_success_total{engine="0",finished_reason="stop",model_name="tiny"} 2.0' in lines
    assert f"vllm:inter_token_latency_seconds_count{{{labels}}} 4.0" in lines
    assert f"vllm:inter_token_latency_seconds_sum{{{labels}}} 0.044" in lines
    assert 'vllm:inter_token_latency_seconds_bucket{engine="0",le="0.01",model_name="tiny"} 0.0' in lines
    assert 'vllm:inter_token_latency_seconds_bucket{engine="0",le="0.025",model_name="tiny"} 4.0' in lines
    assert 'vllm:inter_token_latency_seconds_bucket{engine="0",le="+Inf",model_name="tiny"} 4.0' in lines
    assert "process_start_time_seconds 1.7e+09" in lines


def test_the_engine_says_its_size() -> None:
    (line,) = [line for line in page().render().decode().splitlines() if line.startswith("vllm:cache_config_info{")]
    for label in ('block_size="16"', 'num_gpu_blocks="25001"', 'kv_cache_size_tokens="400016"'):
        assert f",{label}," in line


def test_a_series_that_is_not_on_the_page_is_an_error() -> None:
    for write in (page().set, page().add, page().observe):
        with pytest.raises(KeyError):
            write("vllm:gpu_cache_usage_perc", 1)


def test_a_model_name_is_escaped() -> None:
    text = MetricsPage('a"b\\c', A100, 0.0).render().decode()
    assert r'vllm:num_requests_running{engine="0",model_name="a\"b\\c"} 0.0' in text
