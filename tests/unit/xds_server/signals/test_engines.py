"""The tables of all engines: pages in the shape of each project's documentation, and what a policy may say of them."""

from dataclasses import asdict, fields
from math import inf
from typing import Any

import pytest

from tests.unit.xds_server.signals.test_page import read, signals
from trimtab.observation.kinds import Adapters, Histogram, Signals


def known(engine: str, page: str, **policy: Any) -> dict[str, Any]:
    found = signals(engine, page, **policy)
    return {name: value for name, value in asdict(found).items() if value is not None}


PAGES = {
    "sglang": (
        """
sglang:prompt_tokens_total{model_name="m"} 8.128902e+06
sglang:generation_tokens_total{model_name="m"} 7.557572e+06
sglang:token_usage{model_name="m"} 0.28
sglang:cache_hit_rate{model_name="m"} 0.0075
sglang:cached_tokens_total{cache_source="device",model_name="m"} 1000
sglang:cached_tokens_total{cache_source="host",model_name="m"} 24
sglang:num_running_reqs{model_name="m"} 161
sglang:num_running_reqs_offline_batch{model_name="m"} 9
sglang:num_queue_reqs{model_name="m"} 2826
sglang:num_retracted_requests_total{model_name="m"} 3
sglang:context_len{model_name="m"} 131072
""",
        {
            "waiting": 2826,
            "running": 161,
            "kv_usage": 0.28,
            "generated_tokens": 7557572,
            "prompt_tokens": 8128902,
            "preemptions": 3,
            "prefix_queries": 8128902,
            "prefix_hits": 1024,
            "prefix_hit_rate": 0.0075,
            "max_model_len": 131072,
        },
    ),
    "trtllm-serve": (
        """
trtllm_num_requests_running{engine_type="trtllm",model_name="m"} 7
trtllm_num_requests_waiting{engine_type="trtllm",model_name="m"} 2
trtllm_kv_cache_utilization{engine_type="trtllm",model_name="m"} 0.62
trtllm_generation_tokens_total{engine_type="trtllm",model_name="m"} 900
trtllm_prompt_tokens_total{engine_type="trtllm",model_name="m"} 3000
trtllm_kv_cache_hit_rate{engine_type="trtllm",model_name="m"} 0.25
trtllm_kv_cache_reused_blocks_total{engine_type="trtllm",model_name="m"} 10
trtllm_kv_cache_missed_blocks_total{engine_type="trtllm",model_name="m"} 30
""",
        {
            "waiting": 2,
            "running": 7,
            "kv_usage": 0.62,
            "generated_tokens": 900,
            "prompt_tokens": 3000,
            "prefix_queries": 40,
            "prefix_hits": 10,
            "prefix_hit_rate": 0.25,
        },
    ),
    "triton": (
        """
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="waiting",version="1"} 3
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="context",version="1"} 1
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="scheduled",version="1"} 4
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="max",version="1"} 512
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="active",version="1"} 7
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="fraction",model="tensorrt_llm",version="1"} 0.6
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="used",model="tensorrt_llm",version="1"} 2000
""",
        {"waiting": 3, "running": 7, "kv_usage": 0.6},
    ),
    "tgi": (
        """
tgi_queue_size 4
tgi_batch_current_size 6
tgi_request_generated_tokens_sum 512
tgi_request_generated_tokens_count 8
tgi_request_input_length_sum 2048
""",
        {"waiting": 4, "running": 6, "generated_tokens": 512, "prompt_tokens": 2048},
    ),
    "llamacpp": (
        "llamacpp:requests_deferred 1\nllamacpp:requests_processing 2\nllamacpp:kv_cache_usage_ratio 0.5\n"
        "llamacpp:prompt_tokens_total 12\n",
        {"waiting": 1, "running": 2, "kv_usage": 0.5, "prompt_tokens": 12},
    ),
    "lmdeploy": (
        """
lmdeploy:num_requests_running{engine="0",model_name="m"} 5
lmdeploy:num_requests_waiting{engine="0",model_name="m"} 1
lmdeploy:num_api_requests_waiting{engine="0",model_name="m"} 9
lmdeploy:gpu_cache_usage_perc{engine="0",model_name="m"} 0.75
lmdeploy:prompt_tokens_total{engine="0",model_name="m"} 64
lmdeploy:generation_tokens_total{engine="0",model_name="m"} 32
""",
        {"waiting": 1, "running": 5, "kv_usage": 0.75, "prompt_tokens": 64, "generated_tokens": 32},
    ),
    "ray-serve": (
        """
ray_serve_deployment_queued_queries{application="a",deployment="D",handle="h1"} 2
ray_serve_deployment_queued_queries{application="a",deployment="D",handle="h2"} 3
ray_serve_replica_processing_queries{application="a",deployment="D",replica="r"} 4
""",
        {"waiting": 5, "running": 4},
    ),
    "vllm": (
        # 0.6, with the cache of prefixes switched off
        """
vllm:num_requests_running{model_name="m"} 8.0
vllm:num_requests_swapped{model_name="m"} 0.0
vllm:num_requests_waiting{model_name="m"} 0.0
vllm:gpu_cache_usage_perc{model_name="m"} 0.2
vllm:cpu_cache_usage_perc{model_name="m"} 0.9
vllm:gpu_prefix_cache_hit_rate{model_name="m"} -1.0
vllm:prompt_tokens_total{model_name="m"} 10.0
vllm:generation_tokens_total{model_name="m"} 20.0
vllm:num_preemptions_total{model_name="m"} 1.0
""",
        {
            "waiting": 0,
            "running": 8,
            "kv_usage": 0.2,
            "prompt_tokens": 10,
            "generated_tokens": 20,
            "preemptions": 1,
        },
    ),
    "ollama": ("ollama is running\n", {}),
}


@pytest.mark.parametrize("engine", sorted(PAGES))
def test_page_of(engine: str) -> None:
    page, expected = PAGES[engine]
    assert known(engine, page) == expected


def test_a_triton_of_before_it_showed_its_queue() -> None:
    page = 'nv_trt_llm_request_metrics{model="m",request_type="active",version="1"} 7\n'
    found = read("triton", page)
    assert found.signals == Signals(running=7)
    assert found.unknown["waiting"] == 'nv_trt_llm_request_metrics{request_type="waiting"} is not on the page'


TWO_MODELS = """
vllm:num_requests_waiting{engine="0",model_name="a"} 1
vllm:num_requests_waiting{engine="1",model_name="a"} 2
vllm:num_requests_waiting{engine="0",model_name="b"} 40
vllm:kv_cache_usage_perc{engine="0",model_name="a"} 0.1
vllm:kv_cache_usage_perc{engine="1",model_name="a"} 0.3
vllm:kv_cache_usage_perc{engine="0",model_name="b"} 0.9
process_start_time_seconds 1000
"""


@pytest.mark.parametrize(
    ("select", "waiting", "kv_usage"),
    [
        ({}, 43, 0.9),
        ({"model_name": "a"}, 3, 0.3),
        ({"model_name": "a", "engine": "1"}, 2, 0.3),
        ({"engine": "0"}, 41, 0.9),
        ({"rank": "0"}, 43, 0.9),
    ],
)
def test_models_and_ranks_of_one_page(select: dict[str, str], waiting: float, kv_usage: float) -> None:
    """A series without the label, such as the process's start, speaks for all."""
    found = read("vllm", TWO_MODELS, scrape_select=select)
    assert found.signals == Signals(waiting=waiting, kv_usage=kv_usage, process_start=1000)
    where = " where " + ",".join(f'{label}="{select[label]}"' for label in sorted(select)) if select else ""
    assert found.origins["waiting"] == f"vllm:num_requests_waiting{where}"


def test_a_model_that_is_not_on_the_page_is_unknown_and_not_0() -> None:
    found = read("vllm", TWO_MODELS, scrape_select={"model_name": "c"})
    assert (found.signals.waiting, found.signals.kv_usage) == (None, None)
    assert found.unknown["waiting"] == 'no series of vllm:num_requests_waiting has model_name="c"'


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("kv 55\n", "kv: 55 is no share of 0 to 1; is it a percentage?"),
        ("kv -0.5\n", "kv: -0.5 is below 0"),
        ("kv NaN\n", "kv: nan is no number"),
        ("kv -Inf\n", "kv: -inf is no number"),
        ("kv +Inf\n", "kv: inf is no number"),
        ('kv{a="1"} 0.5\nkv{a="2"} -1\n', "kv: -1 is below 0"),
        ("kv 0.5\nkv 0.6\n", "kv has a series twice, with different values"),
        ("kv one\n", "kv has a malformed line"),
        ("kvs 0.5\n", "kv is not on the page"),
        ("kv 0.5", "kv is not on the page"),
        ("".join(f'kv{{a="{i}"}} 0.5\n' for i in range(10_000)), "kv has more than 64 KiB of series"),
    ],
)
def test_why_a_signal_is_unknown(text: str, why: str) -> None:
    found = read("custom", text, names={"kv_usage": "kv"})
    assert found.signals == Signals()
    assert found.unknown["kv_usage"] == why
    assert found.unknown["waiting"] == "the engine has no metric for it"


def test_names_and_units_of_an_engine_of_your_own() -> None:
    page = """
depth{queue="chat"} 3
depth{queue="batch"} 400
swapped 2
cache_percent{gpu="0"} 55
cache_percent{gpu="1"} 70
ttft_ms_bucket{le="100"} 1
ttft_ms_bucket{le="+Inf"} 4
ttft_ms_sum 2500
"""
    names = {
        "waiting": 'depth{queue="chat"} + swapped',
        "kv_usage": "cache_percent / 100",
        "ttft": "ttft_ms / 1000",
    }
    found = read("custom", page, names=names)
    assert found.signals == Signals(waiting=5, kv_usage=0.7, ttft=Histogram((0.1, inf), (1, 4), 2.5))
    assert found.origins == {
        "waiting": 'depth{queue="chat"} + swapped',
        "kv_usage": "cache_percent / 100",
        "ttft": "ttft_ms / 1000",
    }


def test_a_policys_name_takes_the_place_of_the_engines() -> None:
    page = "vllm:num_requests_waiting 3\nvllm:num_requests_running 2\nforked:waiting 5\n"
    assert known("vllm", page, names={"waiting": "forked:waiting"}) == {"waiting": 5, "running": 2}
    assert known("ollama", page, names={"waiting": "forked:waiting"}) == {"waiting": 5}


def test_a_sum_with_a_term_missing_is_not_the_sum_of_the_others() -> None:
    found = read("custom", "a 1\n", names={"waiting": "a + b"})
    assert found.signals == Signals()
    assert found.unknown["waiting"] == "a + b is not on the page"


def buckets(engine: str, *counts: float, total: float | None = 1.5) -> str:
    bounds = ("0.1", "1.0", "+Inf")
    name = "vllm:time_to_first_token_seconds"
    lines = [
        f'{name}_bucket{{engine="{engine}",le="{bound}"}} {count}' for bound, count in zip(bounds, counts, strict=False)
    ]
    lines += [f'{name}_sum{{engine="{engine}"}} {total}'] if total is not None else []
    return "\n".join(lines) + "\n"


def test_histograms_of_ranks_add_up() -> None:
    page = buckets("0", 1, 2, 3) + buckets("1", 0, 5, 5, total=2)
    assert signals("vllm", page).ttft == Histogram((0.1, 1, inf), (1, 7, 8), 3.5)
    assert signals("vllm", page, scrape_select={"engine": "1"}).ttft == Histogram((0.1, 1, inf), (0, 5, 5), 2)


@pytest.mark.parametrize(
    ("page", "why"),
    [
        (buckets("0", 1, 2, 3, total=None), "vllm:time_to_first_token_seconds_sum is not on the page"),
        (buckets("0", 3, 2, 3), "vllm:time_to_first_token_seconds: the histogram's counts do not rise"),
        (buckets("0", 1, 2, 3) + buckets("1", 1, 2), "have different bounds"),
        (buckets("0", 1, 2), "the histogram lacks buckets"),
        (buckets("0", 1, 2, 3, total=-1), "-1 is below 0"),
        (buckets("0", 1, float("nan"), 3), "the histogram's counts do not rise"),
        (buckets("0", 1, 2, 3).replace('le="1.0"', 'le="one"'), "has a series without a bound"),
        (buckets("0", 1, 2, 3).replace(',le="1.0"', ""), "has a series without a bound"),
    ],
)
def test_a_histogram_that_does_not_add_up_is_unknown(page: str, why: str) -> None:
    found = read("vllm", page)
    assert found.signals.ttft is None
    assert why in found.unknown["ttft"]


@pytest.mark.parametrize(
    ("page", "adapters"),
    [
        (
            # vLLM leaves the series of earlier moments on the page: the newest counts.
            """
vllm:lora_requests_info{max_lora="4",running_lora_adapters="sql",waiting_lora_adapters="chat"} 1.7886264546318772e+09
vllm:lora_requests_info{max_lora="4",running_lora_adapters="sql, chat",waiting_lora_adapters=""} 1.7886264577368872e+09
vllm:lora_requests_info{max_lora="4",running_lora_adapters="",waiting_lora_adapters=""} 1.7886264500000000e+09
""",
            Adapters(("chat", "sql"), (), 4),
        ),
        (
            'vllm:lora_requests_info{max_lora="0",running_lora_adapters="",waiting_lora_adapters=""} 1.0\n',
            Adapters((), (), 0),
        ),
        ("".join(f'vllm:lora_requests_info{{running_lora_adapters="a{i}"}} {i}\n' for i in range(9999)), "a9998"),
        ("vllm:lora_requests_info 1.0\n", Adapters((), (), None)),
    ],
)
def test_adapters(page: str, adapters: Adapters | str) -> None:
    expected = Adapters((adapters,), (), None) if isinstance(adapters, str) else adapters
    assert signals("vllm", page).adapters == expected


def test_every_signal_is_known_with_an_origin_or_unknown_with_a_reason() -> None:
    for engine, (page, expected) in PAGES.items():
        found = read(engine, page)
        assert found.origins.keys() == expected.keys()
        assert found.unknown.keys() == {field.name for field in fields(Signals)} - expected.keys()
        assert all(found.unknown.values())
