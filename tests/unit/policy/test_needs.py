"""A strategy is refused where nothing can give it what it needs, and only there."""

import re

import pytest

from trimtab.endpoint.prometheus_readings import ASKABLE
from trimtab.policy import PolicyError, needs, parse_policy
from trimtab.policy.engines import engine_tables
from trimtab.policy.prometheus import bundled_queries
from trimtab.scoring import Need


def unmet(scoring: str, *lines: str) -> list[str]:
    """What is said of a pool with this strategy."""
    policy = ("version: 1", "pools:", "- name: a", "  endpoints: [{address: a:1}]", f"  scoring: {{{scoring}}}")
    try:
        parse_policy("\n".join((*policy, *lines, "")), "p.yaml")
    except PolicyError as error:
        assert all((problem.where, problem.line) == ("pools[0].scoring.strategy", 5) for problem in error.problems)
        return [problem.message for problem in error.problems]
    return []


NO_METRICS = "  signals: {scrape: false}"
NO_STREAMS = "ext_proc: {full_stream_percent: 0}"
NO_TOKENS = "ext_proc: {sample_percent: 0}"
ASK = "ask Prometheus for {} in signals.prometheus"


@pytest.mark.parametrize(
    "strategy",
    ["health", "predicted_ttft", "reciprocal", "joint", "wdrm", "blend, terms: [{reading: ttft_ms, bad: 9}]"],
)
def test_what_is_seen_of_attempts_is_always_there(strategy: str) -> None:
    assert unmet(f"strategy: {strategy}", NO_METRICS, NO_TOKENS) == []


def missing(strategy: str, need: str, *fixes: str) -> list[str]:
    ways = ", or ".join((*fixes, "choose another strategy"))
    return [f"{strategy} needs {need}, which no source of this pool has: {ways}"]


@pytest.mark.parametrize("strategy", ["linear", "fused", "middleware"])
def test_metrics_are_needed(strategy: str) -> None:
    assert unmet(f"strategy: {strategy}") == []
    assert unmet(f"strategy: {strategy}", NO_METRICS) == missing(
        strategy,
        "kv_usage",
        "set signals.scrape to true",
        "set signals.orca to true",
        "ask Prometheus for kv_usage in signals.prometheus",
    )


@pytest.mark.parametrize(
    "lines",
    [
        ["  signals: {scrape: false, orca: true}"],
        ["  signals: {scrape: false, prometheus: {url: 'http://p:9090'}}"],
        ["  engine: triton"],
        ["  engine: custom", "  signals: {names: {kv_usage: cache / 100}}"],
        ["  engine: ray-serve", "  signals: {names: {kv_usage: vllm_cache}}"],
        ["  engine: ollama", "  signals: {prometheus: {url: 'http://p:9090', queries: {kv_usage: up}}}"],
    ],
    ids=["headers", "Prometheus", "another engine", "custom names", "added names", "a query of one's own"],
)
def test_any_source_will_do(lines: list[str]) -> None:
    assert unmet("strategy: linear", *lines) == []


@pytest.mark.parametrize(
    ("scoring", "lines", "said"),
    [
        ("strategy: linear", ["  engine: ollama"], missing("linear", "kv_usage", ASK.format("kv_usage"))),
        (
            "strategy: linear",
            ["  engine: custom", "  signals: {names: {waiting: queue}}"],
            missing(
                "linear",
                "kv_usage",
                "name its metric in signals.names.kv_usage",
                "set signals.orca to true",
                ASK.format("kv_usage"),
            ),
        ),
        (
            "strategy: middleware",
            ["  engine: ray-serve"],
            missing("middleware", "kv_usage", "name its metric in signals.names.kv_usage", ASK.format("kv_usage")),
        ),
        (
            "strategy: blend, terms: [{reading: preemptions_per_s, bad: 1}, {reading: waiting, bad: 9}]",
            ["  engine: triton"],
            missing("blend", "preemptions", ASK.format("preemptions_per_s")),
        ),
        (
            "strategy: linear",
            ["  engine: tgi", "  signals: {prometheus: {url: 'http://p:9090'}}"],
            missing("linear", "kv_usage", ASK.format("kv_usage")),
        ),
        (
            "strategy: linear",
            ["  signals: {scrape: false, prometheus: {url: 'http://p:9090', bundled: false}}"],
            missing(
                "linear",
                "kv_usage",
                "set signals.scrape to true",
                "set signals.orca to true",
                ASK.format("kv_usage"),
            ),
        ),
    ],
    ids=[
        "no metrics",
        "custom without it",
        "ray-serve",
        "triton",
        "neither page nor queries",
        "queries that are left out",
    ],
)
def test_what_is_missing_is_said_with_every_fix(scoring: str, lines: list[str], said: list[str]) -> None:
    assert unmet(scoring, *lines) == said


@pytest.mark.parametrize("strategy", ["linear", "fused", "middleware"])
def test_a_term_that_is_left_out_needs_nothing(strategy: str) -> None:
    rest = {"linear": "ttft_weight: 0.8", "fused": "ttft_weight: 0.8", "middleware": "queue_weight: 1"}[strategy]
    assert unmet(f"strategy: {strategy}, kv_weight: 0, {rest}", "  engine: ray-serve") == []


@pytest.mark.parametrize(("off", "share"), [(NO_STREAMS, "full_stream_percent"), (NO_TOKENS, "sample_percent")])
def test_gaps_between_tokens_come_from_streams_or_from_the_engines_histogram(off: str, share: str) -> None:
    assert unmet("strategy: decode_p99", NO_METRICS) == unmet("strategy: decode_p99", off) == []
    for engine in ("llamacpp", "ollama"):
        assert unmet("strategy: decode_p99", f"  engine: {engine}", off) == missing(
            "decode_p99", "inter_token", f"set ext_proc.{share} above 0"
        )


def test_one_source_of_two_will_do() -> None:
    assert unmet("strategy: throughput", NO_METRICS) == unmet("strategy: throughput", NO_STREAMS) == []
    assert unmet("strategy: throughput", NO_METRICS, NO_STREAMS) == missing(
        "throughput",
        "tokens_per_s",
        "set signals.scrape to true",
        ASK.format("tokens_per_s"),
        "set ext_proc.full_stream_percent above 0",
    )


def test_a_blend_needs_what_its_terms_read() -> None:
    blend = "strategy: blend, terms: [{reading: kv_usage, bad: 1}, {reading: inter_token_ms, bad: 90}]"
    assert unmet(blend) == unmet(blend, NO_STREAMS) == []
    assert len(unmet(blend, NO_METRICS)) == 1
    assert len(unmet(blend, NO_METRICS, NO_STREAMS)) == 2


@pytest.mark.parametrize("engine", bundled_queries().engines)
def test_bundled_queries_give_what_the_page_gives(engine: str) -> None:
    """With Prometheus in place of the page no strategy is refused that the page would do for."""
    queries = bundled_queries().engines[engine]
    told = {need for need, signal in needs._ON_THE_PAGE.items() if getattr(engine_tables()[engine], signal)}
    assert {needs._ASKED[need] for need in told & set(needs._ASKED)} <= set(queries)


@pytest.mark.parametrize("engine", [name for name, table in engine_tables().items() if table.waiting])
def test_there_is_a_query_for_each_signal_of_an_engine_that_one_number_can_carry(engine: str) -> None:
    table = engine_tables()[engine]
    shown = {name for name in ASKABLE if getattr(table, name, ())}
    assert shown <= set(bundled_queries().engines[engine])


SELECTED = """url: 'http://p:9090', select: 'job="x"'"""


@pytest.mark.parametrize(
    ("engine", "signals", "said"),
    [
        ("tgi", "orca: true", "signals.orca: tgi tells nothing in its answers' headers: remove it"),
        ("vllm", "orca: true", ""),
        ("vllm", f"prometheus: {{{SELECTED}, queries: {{waiting: up}}}}", ""),
        ("ollama", f"prometheus: {{{SELECTED}, queries: {{waiting: up}}}}", "select goes where a query says $select"),
        ("vllm", f"prometheus: {{{SELECTED}, bundled: false, queries: {{waiting: up}}}}", "and none does"),
        ("vllm", f"prometheus: {{{SELECTED}, bundled: false, queries: {{waiting: 'up{{$select}}'}}}}", ""),
        ("vllm", "prometheus: {url: 'http://p:9090', join: {}}", "join: is empty: it must have at least one entry"),
    ],
)
def test_a_setting_of_a_source_that_can_bring_nothing_is_refused(engine: str, signals: str, said: str) -> None:
    endpoints = "endpoints: [{address: a:1}]"
    text = f"version: 1\npools:\n- name: a\n  engine: {engine}\n  {endpoints}\n  signals: {{{signals}}}\n"
    if not said:
        parse_policy(text, "p.yaml")
        return
    with pytest.raises(PolicyError, match=re.escape(said)):
        parse_policy(text, "p.yaml")


def test_every_need_has_a_source() -> None:
    """Only what comes from attempts has none of those that may be switched off."""
    attempts = {Need.TTFT, Need.ERRORS, Need.LEASES}
    assert set(Need) - attempts == set(needs._ON_THE_PAGE) | needs._IN_STREAMS
