"""Reading an engine's metrics page: what is not known for certain is unknown, and never 0."""

import gzip
import json
import time
from dataclasses import fields
from math import inf, isfinite
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from trimtab.observation.kinds import Histogram, Signals
from trimtab.policy.engines import engine_tables
from trimtab.policy.metric import parse_metric
from trimtab.policy.model import Engine, Pool, SignalNames
from xds_server.signals import MAX_PAGE_BYTES, PageRead, page_names, read_page

DATA = Path(__file__).parents[1] / "data"
LOADED = (DATA / "vllm_metrics_loaded.txt").read_bytes()
READ_BY_HAND = json.loads((DATA / "read_by_hand.json").read_text())


def read(engine: str, page: str | bytes, **signals: Any) -> PageRead:
    pool = {"name": "p", "engine": engine, "endpoints": [{"address": "unused:1"}], "signals": signals}
    return read_page(page_names(Pool.model_validate(pool)), page.encode() if isinstance(page, str) else page)


def signals(engine: str, page: str | bytes, **policy: Any) -> Signals:
    return read(engine, page, **policy).signals


def page(**samples: str) -> str:
    return "".join(f"vllm:{name.replace('__', '')} {value}\n" for name, value in samples.items())


@pytest.mark.parametrize("capture", sorted(READ_BY_HAND))
def test_recorded_page(capture: str) -> None:
    engine, by_hand = READ_BY_HAND[capture]["engine"], READ_BY_HAND[capture]["signals"]
    found = signals(engine, (DATA / capture).read_bytes())
    assert {field.name: _plain(getattr(found, field.name)) for field in fields(found)} == by_hand


def _plain(value: object) -> object:
    """A histogram by what a person would copy from the page: its sum, and the count at each bound that changes it."""
    if not isinstance(value, Histogram):
        return value
    rises = dict[str, float]()
    last = 0.0
    for bound, count in zip(value.bounds, value.counts, strict=True):
        if count != last:
            rises[f"{bound:g}"] = last = count
    return {"buckets": len(value.bounds), "sum": value.total, "counts": rises}


@pytest.mark.parametrize("recorded", sorted(DATA.glob("vllm_metrics_*.txt")), ids=lambda path: path.stem)
def test_the_cut_page_says_the_same_as_the_whole_page(recorded: Path) -> None:
    """The library's parser over the whole page is the reference."""
    text = recorded.read_text()
    samples = {s.name: s.value for f in text_string_to_metric_families(text) for s in f.samples}
    found = signals("vllm", text)
    assert found.waiting == samples["vllm:num_requests_waiting"]
    assert found.running == samples["vllm:num_requests_running"]
    assert found.kv_usage == samples["vllm:kv_cache_usage_perc"]
    assert found.generated_tokens == samples["vllm:generation_tokens_total"]
    assert found.preemptions == samples["vllm:num_preemptions_total"]
    buckets = "vllm:time_to_first_token_seconds_bucket"
    counts = [s.value for f in text_string_to_metric_families(text) for s in f.samples if s.name == buckets]
    assert found.ttft is not None and found.ttft.counts == tuple(counts)
    assert found.ttft.total == samples["vllm:time_to_first_token_seconds_sum"]
    assert found.process_start == samples["process_start_time_seconds"]


@pytest.mark.parametrize(
    ("text", "kv_usage"),
    [
        ('vllm:gpu_cache_usage_perc{model_name="m"} 0.5\n', 0.5),
        ('vllm:kv_cache_usage_perc{model_name="m",engine="0"} 0.25\n', 0.25),
        ("vllm:gpu_cache_usage_perc 0.5\nvllm:kv_cache_usage_perc 0.25\n", 0.25),
        ("vllm:kv_cache_usage_perc 0.25\nvllm:gpu_cache_usage_perc 0.5\n", 0.25),
        ("vllm:cpu_cache_usage_perc 0.5\n", None),
        ("vllm:kv_cache_usage_perc NaN\nvllm:gpu_cache_usage_perc 0.5\n", None),
    ],
    ids=["0.6", "0.11", "both", "both, old first", "neither", "the new one is not a number"],
)
def test_names_of_all_versions(text: str, kv_usage: float | None) -> None:
    assert signals("vllm", text) == Signals(kv_usage=kv_usage)


@pytest.mark.parametrize(
    "value",
    ["NaN", "+Inf", "-Inf", "-1", "1.0001", "55", "", "full", "0x1", "1_0", "9" * 400, "9" * 5000, "1 2 x"],
)
def test_a_value_that_cannot_be_is_unknown(value: str) -> None:
    assert signals("vllm", page(kv_cache_usage_perc=value, num_requests_waiting="3")) == Signals(waiting=3)


def test_ranks_and_models_are_combined() -> None:
    text = """
process_start_time_seconds 100
process_start_time_seconds{pid="7"} 200
vllm:num_requests_waiting{engine="0",model_name="m"} 3
vllm:num_requests_waiting{engine="1",model_name="m"} 4
vllm:num_requests_running{engine="0",model_name="m"} 1
vllm:num_requests_running{engine="1",model_name="lora, with {odd} name\\" \\\\"} 2
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.75
vllm:generation_tokens_total{engine="0",model_name="m"} 1e3
vllm:generation_tokens_total{engine="1",model_name="m"} 24
vllm:num_preemptions_total{engine="0",model_name="m"} 0
vllm:num_preemptions_total{engine="1",model_name="m"} 2
"""
    assert signals("vllm", text) == Signals(7, 3, 0.75, 1024, 2, 200)


def test_one_unknown_rank_makes_the_sum_unknown() -> None:
    text = 'vllm:num_requests_waiting{engine="0"} 3\nvllm:num_requests_waiting{engine="1"} NaN\n'
    assert signals("vllm", text).waiting is None


TTFT = "vllm:time_to_first_token_seconds"


@pytest.mark.parametrize(
    ("signal", "text", "why"),
    [
        ("waiting", 'vllm:num_requests_waiting{e="0"} 1e308\nvllm:num_requests_waiting{e="1"} 1e308\n', "above all"),
        ("generated_tokens", "vllm:generation_tokens_total 1e300\n", "1e+300 is above all that can be"),
        ("process_start", "process_start_time_seconds 1e18\n", "1e+18 is above all that can be"),
        ("process_start", "process_start_time_seconds -1\n", "-1 is below 0"),
        *(
            (
                "ttft",
                f'{TTFT}_bucket{{e="0",le="1"}} {first}\n{TTFT}_bucket{{e="1",le="1"}} {second}\n'
                f'{TTFT}_bucket{{e="0",le="+Inf"}} {first}\n{TTFT}_bucket{{e="1",le="+Inf"}} {second}\n{TTFT}_sum 1\n',
                why,
            )
            for first, second, why in (
                ("1e308", "1e308", "inf is no number"),
                ("+Inf", "-Inf", "counts do not rise"),
                ("1e20", "1e20", "2e+20 is above all that can be"),
            )
        ),
        (
            "ttft",
            f'{TTFT}_bucket{{le="-Inf"}} 0\n{TTFT}_bucket{{le="+Inf"}} 1\n{TTFT}_sum 1\n',
            "the histogram's bounds are no numbers",
        ),
        (
            "ttft",
            f'{TTFT}_bucket{{le="1"}} 1\n{TTFT}_bucket{{le="+Inf"}} 1\n'
            f'{TTFT}_sum{{e="0"}} 1e308\n{TTFT}_sum{{e="1"}} 1e308\n',
            "inf is no number",
        ),
    ],
)
def test_what_no_engine_can_have_counted_is_unknown_and_harms_no_other_signal(signal: str, text: str, why: str) -> None:
    found = read("vllm", text + page(num_requests_running="2"))
    assert getattr(found.signals, signal) is None
    assert why in found.unknown[signal]
    assert found.signals.running == 2


@pytest.mark.parametrize("slots", ["9" * 5000, "-1", "²", ""])
def test_a_number_of_adapters_that_is_none(slots: str) -> None:
    adapters = signals("vllm", f'vllm:lora_requests_info{{max_lora="{slots}",running_lora_adapters="a"}} 1\n').adapters
    assert adapters is not None and (adapters.running, adapters.slots) == (("a",), None)


def test_a_longer_name_is_another_metric() -> None:
    text = """vllm:num_requests_waiting_by_reason{reason="capacity"} 4
vllm:num_requests_waiting 4
other_vllm:num_requests_waiting 100
vllm:num_requests_waitin 100
# vllm:num_requests_waiting 100
"""
    assert signals("vllm", text) == Signals(waiting=4)


@pytest.mark.parametrize(("again", "waiting"), [("4", 4), ("4.0", 4), ("5", None)])
def test_a_series_that_is_there_twice(again: str, waiting: float | None) -> None:
    text = f'vllm:num_requests_waiting{{a="1",b="2"}} 4\nvllm:num_requests_waiting{{b="2",a="1"}} {again}\n'
    assert signals("vllm", text).waiting == waiting


def test_openmetrics() -> None:
    text = """# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0"} 3.0 1700000000.123
# TYPE vllm:generation_tokens counter
vllm:generation_tokens_total{engine="0"} 17.0 1700000000.1 # {trace_id="a b}c"} 1.0 1700000000.1
vllm:generation_tokens_created{engine="0"} 1700000000.0
# EOF
"""
    assert signals("vllm", text) == Signals(waiting=3, generated_tokens=17)


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("indent", ["", " ", "\t"])
@pytest.mark.parametrize("gap", [" ", "\t", "   "])
def test_white_space(newline: str, indent: str, gap: str) -> None:
    text = newline.join(
        ["# HELP x y", f"{indent}vllm:num_requests_waiting{gap}3", f"{indent}vllm:num_requests_running 2", ""]
    )
    assert signals("vllm", text) == Signals(waiting=3, running=2)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"<!doctype html><title>502 Bad Gateway</title>",
        b'{"error": "not found"}',
        b"\x00\xff" * 1000,
        gzip.compress(LOADED),
        LOADED[:3000],
        b"vllm:num_requests_waiting{" * 1000,
    ],
    ids=["empty", "html", "json", "binary", "gzip", "cut", "open braces"],
)
def test_no_metrics_page(raw: bytes) -> None:
    assert signals("vllm", raw).waiting is None


def test_a_page_cut_inside_a_value_never_invents_one() -> None:
    line = 'vllm:generation_tokens_total{engine="0"} 12345\n'
    for length in range(len(line)):
        assert signals("vllm", line[:length]) == Signals()


def test_limits_hold_in_time_and_size() -> None:
    huge = b"x 1\n" * (MAX_PAGE_BYTES // 4 + 1)
    label = b'vllm:num_requests_waiting{a="' + b'\\"' * 4_000_000 + b'"} 1\n'
    series = b"".join(b'vllm:num_requests_waiting{a="%d"} 1\n' % i for i in range(200_000))
    began = time.thread_time()
    assert signals("vllm", huge + page(num_requests_running="1").encode()) == Signals()
    assert signals("vllm", label + b"vllm:num_requests_running 1\n") == Signals(running=1)
    assert signals("vllm", series + b"vllm:num_requests_running 1\n") == Signals(running=1)
    assert time.thread_time() - began < 5


def test_every_engine_of_the_policy_has_a_table_that_can_be_read() -> None:
    assert set(engine_tables()) == set(get_args(Engine))
    for table in engine_tables().values():
        for signal in {field.name for field in fields(Signals)}:
            for text in getattr(table, signal):
                metric = parse_metric(text)
                assert len(metric.terms) == 1 or signal not in ("ttft", "inter_token", "adapters")


def test_a_policy_can_name_every_signal_but_adapters() -> None:
    assert set(SignalNames.model_fields) == {field.name for field in fields(Signals)} - {"adapters"}


SAMPLE = st.builds(
    "{}{} {}".format,
    st.sampled_from(
        [
            "vllm:num_requests_waiting",
            "vllm:kv_cache_usage_perc",
            "vllm:time_to_first_token_seconds_bucket",
            "vllm:time_to_first_token_seconds_sum",
            "vllm:lora_requests_info",
            "process_start_time_seconds",
            "x",
        ]
    ),
    st.text(alphabet='{}",=\\ab \t', max_size=12),
    st.text(alphabet="0123456789.eE+-_# NaInf{}\"'", max_size=12),
)


@given(st.one_of(st.text(), st.lists(st.one_of(SAMPLE, st.text())).map("\n".join)))
@example('vllm:num_requests_waiting{"} 1')
@example("vllm:num_requests_waiting{,} 1")
@example('vllm:num_requests_waiting{=""} 1')
@example("vllm:lora_requests_info 1")
@example('vllm:lora_requests_info{max_lora="²"} x')
@example('vllm:time_to_first_token_seconds_bucket{le="NaN"} 1\nvllm:time_to_first_token_seconds_sum 1\n')
def test_no_page_is_fatal_and_every_reading_is_in_range_or_has_a_reason(text: str) -> None:
    found = read("vllm", text)
    for field in fields(Signals):
        value = getattr(found.signals, field.name)
        assert (value is None) is bool(found.unknown.get(field.name))
        assert (value is None) is not bool(found.origins.get(field.name))
        match value:
            case float():
                assert 0 <= value < inf
            case Histogram():
                assert sorted(value.bounds) == list(value.bounds) and sorted(value.counts) == list(value.counts)
                assert isfinite(value.counts[-1]) and 0 <= value.total < inf
    assert found.signals.kv_usage is None or found.signals.kv_usage <= 1
