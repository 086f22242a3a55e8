"""`scoring` as a union of the strategies' types, chosen by `strategy`."""

from typing import Annotated, Any, get_args

import pytest
from pydantic import TypeAdapter

from trimtab.policy import PolicyError, Problem, json_schema, parse_policy
from trimtab.policy.by_strategy import ByStrategy
from trimtab.policy.words import listed
from trimtab.scoring import HealthPolicy, LinearPolicy, PredictedTtftPolicy, ReciprocalPolicy, ScoringPolicy, WdrmPolicy

STRATEGIES = listed([member.model_fields["strategy"].default for member in get_args(ScoringPolicy)])


def scoring(text: str) -> Any:
    policy = f"version: 1\npools:\n- name: a\n  endpoints: [{{address: a:1}}]\n  scoring: {text}\n"
    return parse_policy(policy, "p.yaml").pools[0].scoring


def problem(text: str) -> Problem:
    with pytest.raises(PolicyError) as raised:
        scoring(text)
    (problem,) = raised.value.problems
    return problem


def test_the_strategy_chooses() -> None:
    assert scoring("{strategy: reciprocal, ttft_base_ms: 80}") == ReciprocalPolicy(ttft_base_ms=80)
    assert scoring("{strategy: health, queue_max: 7}") == HealthPolicy(queue_max=7)


def test_no_strategy_is_the_default() -> None:
    assert scoring("{}") == PredictedTtftPolicy()
    assert scoring("{retry_s: 7}") == PredictedTtftPolicy(retry_s=7)


def test_a_strategy_in_python() -> None:
    adapter: TypeAdapter[Any] = TypeAdapter(Annotated[HealthPolicy | LinearPolicy, ByStrategy("health")])
    assert adapter.validate_python(LinearPolicy(running_max=9)) == LinearPolicy(running_max=9)
    assert adapter.validate_python({}) == HealthPolicy()


@pytest.mark.parametrize(
    ("text", "where", "message"),
    [
        ("{strategy: lineal}", "strategy", f'must be {STRATEGIES}, not "lineal"; did you mean "linear"?'),
        ("{strategy: 5}", "strategy", f"must be {STRATEGIES}, not 5"),
        ("{strategy: [linear]}", "strategy", f"must be {STRATEGIES}, not a list"),
        ("{strategy: }", "strategy", f"has no value: it must be {STRATEGIES}"),
        ("linear", "", "must be a mapping: write {strategy: linear}"),
        ("[linear]", "", "must be a mapping, not a list"),
        ("{strategy: reciprocal, failures_max: 0}", "failures_max", "must be a whole number of at least 1, not 0"),
        ("{strategy: wdrm, decay: 0.5}", "decay", "must be a number above 0.5 and of at most 1, not 0.5"),
        ("{strategy: joint, alpha: 0.8}", "alpha", "must be a number of 0.3 to 0.7, not 0.8"),
        ("{strategy: wdrm, step_ms: 1}", "step_ms", 'unknown key; did you mean "step_s", in seconds?'),
        (
            "{strategy: reciprocal, queue_max: 1}",
            "queue_max",
            "unknown key of strategy: reciprocal; it goes with strategy: health: choose that strategy, or remove it",
        ),
        (
            "{gap_slo_ms: 1}",
            "gap_slo_ms",
            "unknown key of strategy: predicted_ttft; it goes with strategy: decode_p99: "
            "choose that strategy, or remove it",
        ),
        (
            "{strategy: linear, kv_weight: 0.5}",
            "kv_weight",
            "kv_weight + ttft_weight + running_weight must be 1, not 1.1",
        ),
        ("{strategy: blend}", "terms", "missing; it must be a list with at least one entry"),
        ("{strategy: blend, terms: [kv_usage]}", "terms[0]", 'must be a mapping, not "kv_usage"'),
        ("{strategy: blend, terms: [{reading: kv, bad: 1}]}", "terms[0].reading", None),
        (
            "{strategy: blend, terms: [{reading: kv_usage, bad: 1}, {reading: kv_usage, bad: 2}]}",
            "terms[1].reading",
            "kv_usage is already read by terms[0]; remove one of them",
        ),
        (
            "{strategy: blend, terms: [{reading: kv_usage, good: 1, bad: 1}]}",
            "terms[0].bad",
            "good and bad are both 1: points are lost on the way from one to the other",
        ),
    ],
)
def test_what_is_said(text: str, where: str, message: str | None) -> None:
    found = problem(text)
    assert found.where == f"pools[0].scoring.{where}".removesuffix(".")
    assert message is None or found.message == message


def test_a_section_without_a_strategy_fits_one_member_of_the_json_schema_only() -> None:
    strategies = json_schema()["$defs"]
    assert "required" not in strategies["PredictedTtftPolicy"]
    assert all(strategies[member.__name__]["required"][0] == "strategy" for member in get_args(ScoringPolicy)[1:])
    assert strategies[WdrmPolicy.__name__]["additionalProperties"] is False
