"""A law is refused where nothing can give it what it needs, and only there."""

import pytest

from trimtab.policy import PolicyError, needs, parse_policy
from trimtab.scoring import Need


def unmet(scoring: str, *lines: str) -> list[str]:
    """What is said of a pool with this law."""
    policy = ("version: 1", "pools:", "- name: a", "  endpoints: [{address: a:1}]", f"  scoring: {{{scoring}}}")
    try:
        parse_policy("\n".join((*policy, *lines, "")), "p.yaml")
    except PolicyError as error:
        assert all((problem.where, problem.line) == ("pools[0].scoring.law", 5) for problem in error.problems)
        return [problem.message for problem in error.problems]
    return []


NO_METRICS = "  signals: {scrape: false}"
NO_STREAMS = "ext_proc: {full_stream_percent: 0}"
NO_TOKENS = "ext_proc: {sample_percent: 0}"


@pytest.mark.parametrize(
    "law", ["health", "predicted_ttft", "reciprocal", "joint", "wdrm", "blend, terms: [{reading: ttft_ms, bad: 9}]"]
)
def test_what_is_seen_of_attempts_is_always_there(law: str) -> None:
    assert unmet(f"law: {law}", NO_METRICS, NO_TOKENS) == []


@pytest.mark.parametrize("law", ["linear", "fused", "middleware"])
def test_metrics_are_needed(law: str) -> None:
    assert unmet(f"law: {law}") == []
    assert unmet(f"law: {law}", NO_METRICS) == [
        f"{law} needs kv_usage, which comes from the metrics of vllm: set signals.scrape to true"
    ]


@pytest.mark.parametrize(("off", "share"), [(NO_STREAMS, "full_stream_percent"), (NO_TOKENS, "sample_percent")])
def test_streams_that_are_read_to_their_end_are_needed(off: str, share: str) -> None:
    assert unmet("law: decode_p99", NO_METRICS) == []
    assert unmet("law: decode_p99", off) == [
        "decode_p99 needs inter_token, which comes from streams that are read to their end: "
        f"set ext_proc.{share} above 0"
    ]


def test_one_source_of_two_will_do() -> None:
    assert unmet("law: throughput", NO_METRICS) == unmet("law: throughput", NO_STREAMS) == []
    (message,) = unmet("law: throughput", NO_METRICS, NO_STREAMS)
    assert "from the metrics of vllm or from streams that are read to their end" in message


def test_a_blend_needs_what_its_terms_read() -> None:
    blend = "law: blend, terms: [{reading: kv_usage, bad: 1}, {reading: inter_token_ms, bad: 90}]"
    assert unmet(blend) == []
    assert len(unmet(blend, NO_METRICS)) == len(unmet(blend, NO_STREAMS)) == 1
    assert len(unmet(blend, NO_METRICS, NO_STREAMS)) == 2


def test_an_engine_whose_metrics_do_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(needs, "_signals", lambda: {"vllm": frozenset({"waiting"})})
    assert unmet("law: middleware") == [
        "middleware needs kv_usage, which the metrics of vllm do not tell: choose another law"
    ]
    assert unmet("law: throughput") == []


def test_every_need_has_a_source() -> None:
    """Only what comes from attempts has none of those that may be switched off."""
    attempts = {Need.TTFT, Need.ERRORS, Need.LEDGER}
    assert set(Need) - attempts == set(needs._ON_THE_PAGE) | needs._IN_STREAMS
