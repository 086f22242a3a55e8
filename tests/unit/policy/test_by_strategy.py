"""`scoring` as a union of the laws' types, chosen by `law`."""

from typing import Annotated, Any, get_args

import pytest
from pydantic import TypeAdapter

from trimtab.policy import PolicyError, Problem, json_schema, parse_policy
from trimtab.policy.by_law import ByLaw
from trimtab.policy.words import listed
from trimtab.scoring import HealthPolicy, LinearPolicy, PredictedTtftPolicy, ReciprocalPolicy, ScoringPolicy, WdrmPolicy

LAWS = listed([member.model_fields["law"].default for member in get_args(ScoringPolicy)])


def scoring(text: str) -> Any:
    policy = f"version: 1\npools:\n- name: a\n  endpoints: [{{address: a:1}}]\n  scoring: {text}\n"
    return parse_policy(policy, "p.yaml").pools[0].scoring


def problem(text: str) -> Problem:
    with pytest.raises(PolicyError) as raised:
        scoring(text)
    (problem,) = raised.value.problems
    return problem


def test_the_law_chooses() -> None:
    assert scoring("{law: reciprocal, ttft_base_ms: 80}") == ReciprocalPolicy(ttft_base_ms=80)
    assert scoring("{law: health, queue_max: 7}") == HealthPolicy(queue_max=7)


def test_no_law_is_the_default() -> None:
    assert scoring("{}") == PredictedTtftPolicy()
    assert scoring("{retry_s: 7}") == PredictedTtftPolicy(retry_s=7)


def test_a_law_in_python() -> None:
    adapter: TypeAdapter[Any] = TypeAdapter(Annotated[HealthPolicy | LinearPolicy, ByLaw("health")])
    assert adapter.validate_python(LinearPolicy(running_max=9)) == LinearPolicy(running_max=9)
    assert adapter.validate_python({}) == HealthPolicy()


@pytest.mark.parametrize(
    ("text", "where", "message"),
    [
        ("{law: lineal}", "law", f'must be {LAWS}, not "lineal"; did you mean "linear"?'),
        ("{law: 5}", "law", f"must be {LAWS}, not 5"),
        ("{law: [linear]}", "law", f"must be {LAWS}, not a list"),
        ("{law: }", "law", f"has no value: it must be {LAWS}"),
        ("linear", "", "must be a mapping: write {law: linear}"),
        ("[linear]", "", "must be a mapping, not a list"),
        ("{law: reciprocal, failures_max: 0}", "failures_max", "must be a whole number of at least 1, not 0"),
        ("{law: wdrm, decay: 0.5}", "decay", "must be a number above 0.5 and of at most 1, not 0.5"),
        ("{law: joint, alpha: 0.8}", "alpha", "must be a number of 0.3 to 0.7, not 0.8"),
        ("{law: wdrm, step_ms: 1}", "step_ms", 'unknown key; did you mean "step_s", in seconds?'),
        (
            "{law: reciprocal, queue_max: 1}",
            "queue_max",
            "unknown key of law: reciprocal; it goes with law: health: choose that law, or remove it",
        ),
        (
            "{gap_slo_ms: 1}",
            "gap_slo_ms",
            "unknown key of law: predicted_ttft; it goes with law: decode_p99: choose that law, or remove it",
        ),
        (
            "{law: linear, kv_weight: 0.5}",
            "kv_weight",
            "kv_weight + ttft_weight + running_weight must be 1, not 1.1",
        ),
        ("{law: blend}", "terms", "missing; it must be a list with at least one entry"),
        ("{law: blend, terms: [kv_usage]}", "terms[0]", 'must be a mapping, not "kv_usage"'),
        ("{law: blend, terms: [{reading: kv, bad: 1}]}", "terms[0].reading", None),
        (
            "{law: blend, terms: [{reading: kv_usage, bad: 1}, {reading: kv_usage, bad: 2}]}",
            "terms[1].reading",
            "kv_usage is already read by terms[0]; remove one of them",
        ),
        (
            "{law: blend, terms: [{reading: kv_usage, good: 1, bad: 1}]}",
            "terms[0].bad",
            "good and bad are both 1: points are lost on the way from one to the other",
        ),
    ],
)
def test_what_is_said(text: str, where: str, message: str | None) -> None:
    found = problem(text)
    assert found.where == f"pools[0].scoring.{where}".removesuffix(".")
    assert message is None or found.message == message


def test_a_section_without_a_law_fits_one_member_of_the_json_schema_only() -> None:
    laws = json_schema()["$defs"]
    assert "required" not in laws["PredictedTtftPolicy"]
    assert all(laws[member.__name__]["required"][0] == "law" for member in get_args(ScoringPolicy)[1:])
    assert laws[WdrmPolicy.__name__]["additionalProperties"] is False
