"""Which series belong to which endpoints."""

from collections.abc import Mapping
from math import inf, nan

import pytest

from trimtab.endpoint.spec import EndpointSpec
from xds_server.signals.prometheus_join import join
from xds_server.signals.prometheus_query import Answer, Series

ONE = EndpointSpec("10.0.0.1:8000", "gpu-1.internal:8000", labels={"pod": "llama-0", "ns": "prod"})
TWO = EndpointSpec("10.0.0.2:8000", "gpu-2.internal:8000", labels={"pod": "llama-0", "ns": "test"})
SIX = EndpointSpec("[fd00::4]:8000", "[fd00::4]:8000")
NOW = 1000.0


def series(value: float, **labels: str) -> Series:
    return Series(labels, value)


def values(answer: Answer, rules: Mapping[str, str], *endpoints: EndpointSpec) -> list[float | None]:
    return [one.value for one in join(answer, endpoints or (ONE, TWO), rules).values()]


def answer(*found: Series, age: float = 2.0) -> Answer:
    return Answer(NOW, found, [[Series(one.labels, NOW - age) for one in found]])


@pytest.mark.parametrize(
    ("label", "joined"),
    [
        ("10.0.0.1:8000", "address"),
        ("gpu-1.internal:8000", "address"),
        ("GPU-1.Internal:8000", "address"),
        ("gpu-1.internal", "host"),
        ("gpu-1.internal:9400", "host"),
        ("10.0.0.1:9400", "host"),
    ],
)
def test_by_address_and_by_host(label: str, joined: str) -> None:
    assert values(answer(series(7, instance=label)), {"instance": joined}) == [7, None]


@pytest.mark.parametrize(
    ("label", "joined"), [("[fd00::4]:8000", "address"), ("fd00::4", "host"), ("[fd00::4]:1", "host")]
)
def test_ipv6(label: str, joined: str) -> None:
    assert values(answer(series(7, instance=label)), {"instance": joined}, SIX) == [7]


def test_another_port_is_another_endpoint() -> None:
    assert values(answer(series(7, instance="10.0.0.1:8001")), {"instance": "address"}) == [None, None]


@pytest.mark.parametrize("times", [(nan,), (NOW - 2, nan), (nan, NOW - 2), (inf,), (NOW + 3600,)])
def test_a_sample_of_no_time_is_unknown(times: tuple[float, ...]) -> None:
    one = series(7, instance=ONE.address)
    for sampled_at in (
        [[series(time, instance=ONE.address)] for time in times],
        [[series(time, **one.labels) for time in times]],
    ):
        (joined,) = join(Answer(NOW, [one], sampled_at), [ONE], {"instance": "address"}).values()
        assert (joined.value, joined.error[:30]) == (None, "its newest sample is of no tim")


def test_by_labels_all_of_which_must_fit() -> None:
    found = answer(series(7, pod="llama-0", namespace="test"), series(8, pod="llama-1", namespace="prod"))
    assert values(found, {"pod": "labels.pod", "namespace": "labels.ns"}) == [None, 7]


def test_an_endpoint_without_the_label_has_no_series() -> None:
    assert values(answer(series(7)), {"pod": "labels.pod"}, SIX) == [None]


def test_one_series_of_a_host_is_of_all_its_endpoints() -> None:
    beside = EndpointSpec("10.0.0.1:8001", "gpu-1.internal:8001")
    assert values(answer(series(7, instance="gpu-1.internal:9400")), {"instance": "host"}, ONE, beside) == [7, 7]


def test_a_name_with_several_addresses_tells_none_of_them() -> None:
    both = [EndpointSpec(f"10.0.0.{i}:8000", "gpus:8000") for i in (1, 2)]
    found = answer(series(7, instance="gpus:8000"), series(8, instance="10.0.0.2:8000"))
    assert values(found, {"instance": "address"}, *both) == [None, 8]


def test_two_series_are_not_guessed_between() -> None:
    found = answer(series(7, instance="10.0.0.1:8000", gpu="0"), series(8, instance="10.0.0.1:8000", gpu="1"))
    one = join(found, [ONE], {"instance": "address"})[ONE.address]
    assert (one.value, one.error) == (None, "2 series; let the query make one of them, as in max by (instance) (...)")


def test_no_series_says_what_was_looked_for() -> None:
    one = join(answer(), [ONE], {"pod": "labels.pod"})[ONE.address]
    assert one.error == "no series whose pod is the endpoint's labels.pod"


@pytest.mark.parametrize("value", [nan, inf, -inf])
def test_what_is_no_number_is_unknown(value: float) -> None:
    assert values(answer(series(value, instance="10.0.0.1:8000")), {"instance": "address"}, ONE) == [None]


def test_the_age_is_that_of_the_newest_sample() -> None:
    one = join(answer(series(7, instance="10.0.0.1:8000"), age=12), [ONE], {"instance": "address"})[ONE.address]
    assert one.age_s == 12


def test_of_several_metrics_the_oldest_counts_but_only_those_that_join() -> None:
    here = {"instance": "10.0.0.1:8000"}
    found = Answer(
        NOW,
        [Series(here, 7)],
        [[Series(here, NOW - 3)], [Series(here, NOW - 9)], [Series({"instance": "kube-state-metrics"}, NOW - 50)], []],
    )
    assert join(found, [ONE], {"instance": "address"})[ONE.address].age_s == 9


def test_a_value_without_a_sample_now_is_unknown() -> None:
    """rate(x[5m]) goes on for five minutes after the engine is gone; the samples behind it do not."""
    found = Answer(NOW, [series(7, instance="10.0.0.1:8000")], [[]])
    one = join(found, [ONE], {"instance": "address"})[ONE.address]
    assert one.value is None
    assert one.error == "its metrics have no sample now whose instance is the endpoint's address"
