import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.unit.policy.example import EVERY_STRATEGY, EXAMPLE
from trimtab.policy import json_schema
from trimtab.policy.document import Document
from trimtab.policy.schema import sections
from trimtab.policy.words import unit


def subschemas(schema: Any) -> Iterator[dict[str, Any]]:
    if isinstance(schema, dict):
        yield schema
    for child in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        yield from subschemas(child)


def test_is_json_and_belongs_to_no_host() -> None:
    text = json.dumps(json_schema())
    assert "$schema" not in text
    assert "$id" not in text


def test_is_a_copy() -> None:
    json_schema().clear()
    assert json_schema()["title"] == "Policy"


def test_every_mapping_with_fields_refuses_others() -> None:
    mappings = [schema for schema in subschemas(json_schema()) if "properties" in schema]
    assert len(mappings) == len(sections())
    assert all(schema["additionalProperties"] is False for schema in mappings)


def test_everything_has_a_title_and_a_description() -> None:
    undescribed = [
        f"{section.title}: {key}"
        for section in sections()
        if section.path != "pools[].scoring"  # a strategy explains its numbers in its own page
        for key, field in section.schema["properties"].items()
        if not field.get("description") and "$ref" not in field
    ]
    assert not undescribed
    assert all(section.schema.get("description") for section in sections())
    assert all(
        field.get("title") or "$ref" in field or "$ref" in field.get("anyOf", [{}])[0]
        for section in sections()
        for field in section.schema["properties"].values()
    )


def test_a_number_that_can_be_zero_says_what_zero_does() -> None:
    silent = [
        f"{section.title}: {key}"
        for section in sections()
        if section.path != "pools[].scoring"
        for key, field in section.schema["properties"].items()
        if field.get("minimum") == 0 and "0 " not in field["description"]
    ]
    assert not silent


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("cool_down_min_s", "seconds"),
        ("ttft_threshold_ms", "milliseconds"),
        ("slow_start_points_per_s", "points per second"),
        ("max_body_mib", "MiB"),
        ("port", ""),
        ("labels", ""),
    ],
)
def test_a_name_tells_its_unit(key: str, words: str) -> None:
    assert unit(key) == words


class TestWithAValidator:
    """The schema as an editor uses it."""

    @pytest.fixture
    def errors(self) -> Any:
        jsonschema = pytest.importorskip("jsonschema")
        jsonschema.Draft202012Validator.check_schema(json_schema())
        validator = jsonschema.Draft202012Validator(json_schema())
        return lambda text: list(validator.iter_errors(Document(text, "policy.yaml").data))

    @pytest.mark.parametrize("text", [EXAMPLE, *EVERY_STRATEGY])
    def test_accepts_the_example(self, errors: Any, text: str) -> None:
        assert not errors(text)

    @pytest.mark.parametrize(
        "wrong",
        [
            "lisen: {}",
            "listen: {prot: 1}",
            "listen: {port: '1'}",
            "listen: {port: 0}",
            "services: {xds: nowhere}",
            "version: 2",
            "rejections: {rules: [{name: a, verdict: busy}]}",
        ],
    )
    def test_refuses(self, errors: Any, wrong: str) -> None:
        document = f"version: 1\npools: [{{name: a, endpoints: [{{address: a:1}}]}}]\n{wrong}\n"
        assert errors(document.removeprefix("version: 1\n") if "version" in wrong else document)
