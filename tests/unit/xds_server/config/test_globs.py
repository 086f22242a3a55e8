"""Envoy takes for a model's pool what the policy's globs say."""

import fnmatch
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from xds_server.config.globs import glob_to_re2, string_matcher

ALPHABET = "ab-!]^[*?./\\:~&|\n é"


def matches(glob: str, model: str) -> bool:
    matcher = string_matcher(glob)
    if matcher.exact is not None:
        return model == matcher.exact
    if matcher.prefix is not None:
        return model.startswith(matcher.prefix)
    assert matcher.safe_regex is not None
    # Python's syntax for RE2's only way of writing the last code point.
    pattern = matcher.safe_regex.regex.replace(r"\x{10FFFF}", r"\U0010FFFF")
    return re.fullmatch(pattern, model) is not None


@given(st.text(ALPHABET, min_size=1, max_size=8), st.text(ALPHABET, max_size=8))
def test_a_matcher_accepts_what_fnmatch_accepts(glob: str, model: str) -> None:
    assert matches(glob, model) == fnmatch.fnmatchcase(model, glob)


@given(st.text(ALPHABET, min_size=1, max_size=8))
def test_a_glob_without_brackets_matches_itself(glob: str) -> None:
    if "[" not in glob:
        assert matches(glob, glob)


@pytest.mark.parametrize(
    ("glob", "kind"),
    [
        ("meta-llama/Llama-3.1-8B", "exact"),
        ("meta-llama/*", "prefix"),
        ("*", "safe_regex"),
        ("*-8B", "safe_regex"),
        ("a?c*", "safe_regex"),
        ("a**", "safe_regex"),
    ],
)
def test_the_cheapest_matcher_is_chosen(glob: str, kind: str) -> None:
    assert getattr(string_matcher(glob), kind) is not None


def test_what_re2_does_not_have_is_not_used() -> None:
    for glob in ("a*b*c", "[z-a]", "x[!b-a]*"):
        assert not re.search(r"\(\?[>!=<]|\\Z", glob_to_re2(glob))
