"""`scoring` as a union of several laws, as it will be, and as the one law that it may be."""

from collections.abc import Iterator
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field, TypeAdapter

from trimtab.policy import PolicyError, Problem, json_schema, load, parse_policy, schema
from trimtab.policy.by_law import ByLaw
from trimtab.policy.model import Policy, Pool
from trimtab.scoring import HealthPolicy
from trimtab.strict import Strict


class EvenPolicy(Strict):
    """Another law."""

    law: Literal["even"] = "even"
    bases: tuple[int, ...] = ()
    spread_ms: Annotated[int, Field(ge=1)] = 5


Scoring = Annotated[HealthPolicy | EvenPolicy, ByLaw("health")]


class TwoLaws(Pool):
    scoring: Scoring = Field(default_factory=HealthPolicy)  # type: ignore[assignment]


class TwoLawPolicy(Policy):
    pools: tuple[TwoLaws, ...] = Field(min_length=1)


@pytest.fixture
def two_laws(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(load, "Policy", TwoLawPolicy)
    monkeypatch.setattr(schema, "Policy", TwoLawPolicy)
    caches = (schema._schema, schema.sections)
    for cache in caches:
        cache.cache_clear()
    yield
    for cache in caches:
        cache.cache_clear()


def scoring(text: str) -> Any:
    policy = f"version: 1\npools:\n- name: a\n  endpoints: [{{address: a:1}}]\n  scoring: {text}\n"
    return parse_policy(policy, "p.yaml").pools[0].scoring


def problem(text: str) -> Problem:
    with pytest.raises(PolicyError) as raised:
        scoring(text)
    (problem,) = raised.value.problems
    return problem


def test_one_law() -> None:
    assert scoring("{}") == scoring("{law: health}") == HealthPolicy()
    assert scoring("{queue_max: 7}") == HealthPolicy(queue_max=7)


@pytest.mark.usefixtures("two_laws")
class TestTwoLaws:
    def test_the_law_chooses(self) -> None:
        assert scoring("{law: even, bases: [1, 2]}") == EvenPolicy(bases=(1, 2))
        assert scoring("{law: health, queue_max: 7}") == HealthPolicy(queue_max=7)

    def test_no_law_is_the_default(self) -> None:
        assert scoring("{}") == HealthPolicy()
        assert scoring("{queue_max: 7}") == HealthPolicy(queue_max=7)

    def test_a_law_in_python(self) -> None:
        adapter = TypeAdapter(Scoring)
        assert adapter.validate_python(EvenPolicy(spread_ms=9)) == EvenPolicy(spread_ms=9)
        assert adapter.validate_python({}) == HealthPolicy()

    @pytest.mark.parametrize(
        ("text", "where", "message"),
        [
            ("{law: eve}", "law", 'must be "health" or "even", not "eve"; did you mean "even"?'),
            ("{law: 5}", "law", 'must be "health" or "even", not 5'),
            ("{law: [even]}", "law", 'must be "health" or "even", not a list'),
            ("{law: }", "law", 'has no value: it must be "health" or "even"'),
            ("even", "", "must be a mapping: write {law: even}"),
            ("[even]", "", "must be a mapping, not a list"),
            ("{law: even, spread_ms: 0}", "spread_ms", "must be a whole number of at least 1, not 0"),
            ("{law: even, bases: [x]}", "bases[0]", 'must be a whole number, not "x"'),
            (
                "{law: even, spread_s: 1}",
                "spread_s",
                'unknown key; did you mean "spread_ms", in milliseconds?',
            ),
            (
                "{law: even, queue_max: 1}",
                "queue_max",
                "unknown key here: it belongs to pools[].scoring (law: health)",
            ),
            ("{spread_ms: 1}", "spread_ms", "unknown key here: it belongs to pools[].scoring (law: even)"),
        ],
    )
    def test_what_is_said(self, text: str, where: str, message: str) -> None:
        found = problem(text)
        assert found.where == f"pools[0].scoring.{where}".removesuffix(".")
        assert found.message == message

    def test_a_section_without_a_law_fits_one_member_of_the_json_schema_only(self) -> None:
        laws = json_schema()["$defs"]
        assert laws["EvenPolicy"]["required"] == ["law"]
        assert "required" not in laws["HealthPolicy"]
