"""How metrics are written in policies and tables."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.policy.metric import Metric, Series, parse_metric


@pytest.mark.parametrize(
    ("text", "metric"),
    [
        ("queue", Metric((Series("queue"),))),
        (" vllm:queue{} ", Metric((Series("vllm:queue"),))),
        ('q{a="1",b="x y"}', Metric((Series("q", (("a", "1"), ("b", "x y"))),))),
        ('q{ a = "1" , b = "" }', Metric((Series("q", (("a", "1"), ("b", ""))),))),
        (r'q{a="\"}\\ + / \n"}', Metric((Series("q", (("a", '"}\\ + / \n'),)),))),
        ("a + b+c", Metric((Series("a"), Series("b"), Series("c")))),
        ("percent / 100", Metric((Series("percent"),), 100)),
        ('a{x="1"} + b / 2.5', Metric((Series("a", (("x", "1"),)), Series("b")), 2.5)),
    ],
)
def test_metric(text: str, metric: Metric) -> None:
    assert parse_metric(text) == metric


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", "1a", "a b", "a +", "+ a", "a-b", "a * 2", "rate(a[1m])"),
        *("a / 0", "a / -1", "a / b", "a / 1e3", "a / 1 / 2", "a / 1 + b", f"a / {'9' * 400}"),
        *("a{x}", "a{x=1}", 'a{x="1}', 'a{x=~"1"}', 'a{x="1"', "a{,}"),
    ],
)
def test_what_is_no_metric_is_refused_with_the_fix(text: str) -> None:
    with pytest.raises(ValueError, match="must be the name of a metric"):
        parse_metric(text)


SERIES = st.builds(
    Series,
    st.from_regex(r"[a-zA-Z_:][a-zA-Z0-9_:]{0,9}", fullmatch=True),
    st.lists(st.tuples(st.from_regex(r"[a-z_][a-z0-9_]{0,5}", fullmatch=True), st.text(max_size=8)), max_size=3).map(
        tuple
    ),
)


@given(st.lists(SERIES, min_size=1, max_size=3), st.integers(1, 10_000))
def test_a_metric_reads_as_it_is_shown(terms: list[Series], divisor: int) -> None:
    metric = Metric(tuple(terms), float(divisor))
    assert parse_metric(str(metric)) == metric


@given(st.text(alphabet='ab{}="\\,+/ 0.', max_size=40))
def test_no_text_is_fatal(text: str) -> None:
    try:
        parse_metric(text)
    except ValueError as error:
        assert "\n" not in str(error)
