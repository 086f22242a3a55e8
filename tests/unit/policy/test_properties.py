"""Whatever is done to a good policy: it loads, or its problems have places and are told in one line each."""

import io
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from tests.unit.policy.example import FULL
from trimtab.policy import Policy, PolicyError, parse_policy
from trimtab.policy.document import Document

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(["10000", "yes", "10.0.0.1:80", "unix:/x", "health", "*", "(", "0"]),
)
VALUES = st.one_of(SCALARS, st.lists(SCALARS, max_size=2), st.dictionaries(st.text(max_size=6), SCALARS, max_size=2))
YAML_TOKENS = st.one_of(
    st.sampled_from("\t\n {}[]:,\"'#|>?*&!%@\\-\x00\x85\ufeff\ud800"),
    st.sampled_from(["- ", ": ", "&a ", "*a", "<<: *a\n", "!!int ", "!x ", "---\n", "...\n", "%YAML 1.1\n---\n"]),
    st.sampled_from([".nan", "0x", "1e999", "2024-01-01", "1:30", "9" * 5000]),
)


def judge(text: str) -> None:
    try:
        assert isinstance(parse_policy(text, "policy.yaml"), Policy)
    except PolicyError as error:
        assert error.problems
        for problem in error.problems:
            assert problem.line >= 1
            assert problem.column >= 1
            assert problem.message
            assert str(problem).isprintable()
            assert len(str(problem)) < 1000
            assert "Input should" not in str(problem)


def containers(value: Any) -> list[Any]:
    """Every mapping and list that is not empty."""
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return ([value] if children else []) + [found for child in children for found in containers(child)]


@given(st.data())
@settings(max_examples=50, deadline=None)
def test_a_node_is_dropped_renamed_or_of_another_type(data: st.DataObject) -> None:
    policy = Document(FULL, "example").data
    for _ in range(data.draw(st.integers(1, 3))):
        container = data.draw(st.sampled_from(containers(policy)))
        key = data.draw(
            st.sampled_from(list(container) if isinstance(container, dict) else list(range(len(container))))
        )
        match data.draw(st.sampled_from(["drop", "rename", "retype"])):
            case "drop":
                del container[key]
            case "rename" if isinstance(container, dict):
                container[data.draw(st.text(max_size=12))] = container.pop(key)
            case _:
                container[key] = data.draw(VALUES)
        if not containers(policy):
            break
    stream = io.StringIO()
    YAML(typ="safe", pure=True).dump(policy, stream)
    judge(stream.getvalue())


@given(st.lists(st.tuples(st.integers(0, len(FULL)), st.integers(0, 12), YAML_TOKENS), min_size=1, max_size=4))
@settings(max_examples=50, deadline=None)
def test_characters_are_cut_out_and_put_in(edits: list[tuple[int, int, str]]) -> None:
    text = FULL
    for at, cut, token in edits:
        text = text[:at] + token + text[at + cut :]
    judge(text)


@given(st.text(alphabet=st.characters(), max_size=60))
@settings(max_examples=200, deadline=None)
def test_any_text(text: str) -> None:
    judge(text)
