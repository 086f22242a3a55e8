"""Assignments: what Envoy would refuse is refused here, and the bytes depend on the content alone."""

import random

import pytest
from envoy.config.core.v3.health_check_pb2 import HealthStatus
from envoy.config.endpoint.v3.endpoint_pb2 import ClusterLoadAssignment
from hypothesis import given
from hypothesis import strategies as st

from xds_server.config.endpoints import EndpointWeight, build_assignment


def read(body: bytes) -> dict[str, tuple[int, bool]]:
    message = ClusterLoadAssignment.FromString(body)
    endpoints = {}
    for entry in (entry for locality in message.endpoints for entry in locality.lb_endpoints):
        address = entry.endpoint.address.socket_address
        draining = entry.health_status == HealthStatus.DRAINING
        endpoints[f"{address.address} {address.port_value}"] = entry.load_balancing_weight.value, draining
    return endpoints


def test_it_says_what_it_was_given() -> None:
    body = build_assignment(
        "pool",
        [EndpointWeight("10.0.0.1", 8000, 250), EndpointWeight("::1", 8001, 1, draining=True)],
    )
    assert ClusterLoadAssignment.FromString(body).cluster_name == "pool"
    assert read(body) == {"10.0.0.1 8000": (250, False), "::1 8001": (1, True)}


def test_the_locality_is_complete_or_grpcio_would_not_use_it() -> None:
    message = ClusterLoadAssignment.FromString(build_assignment("pool", [EndpointWeight("10.0.0.1", 8000, 1)]))
    (locality,) = message.endpoints
    assert locality.HasField("locality")
    assert locality.load_balancing_weight.value == 1


def test_a_pool_without_endpoints_is_an_assignment_too() -> None:
    assert read(build_assignment("pool", [])) == {}


def test_addresses_are_spelled_as_envoy_reports_them() -> None:
    assert read(build_assignment("pool", [EndpointWeight("0:0::0001", 80, 1)])) == {"::1 80": (1, False)}


@pytest.mark.parametrize(
    ("endpoints", "reason"),
    [
        ([EndpointWeight("10.0.0.1", 8000, 0)], "below 1"),
        ([EndpointWeight("10.0.0.1", 8000, -3)], "below 1"),
        ([EndpointWeight("gpu-1.internal", 8000, 1)], "not an IP address"),
        ([EndpointWeight("", 8000, 1)], "not an IP address"),
        ([EndpointWeight("10.0.0.1", 0, 1)], "port 0"),
        ([EndpointWeight("10.0.0.1", 65536, 1)], "port 65536"),
        ([EndpointWeight("10.0.0.1", 80, 1), EndpointWeight("10.0.0.1", 80, 2)], "named twice"),
        ([EndpointWeight("::1", 80, 1), EndpointWeight("0:0::1", 80, 2)], "named twice"),
        ([EndpointWeight("10.0.0.1", 80, 2**31), EndpointWeight("10.0.0.2", 80, 2**31)], "sum to 4294967296"),
    ],
)
def test_what_envoy_would_refuse_is_refused(endpoints: list[EndpointWeight], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        build_assignment("pool", endpoints)


def test_the_largest_sum_passes() -> None:
    build_assignment("pool", [EndpointWeight("10.0.0.1", 80, 2**32 - 2), EndpointWeight("10.0.0.2", 80, 1)])


def test_a_cluster_needs_a_name() -> None:
    with pytest.raises(ValueError, match="name"):
        build_assignment("", [])


_endpoints = st.lists(
    st.builds(
        EndpointWeight,
        host=st.ip_addresses().map(str),
        port=st.integers(1, 65535),
        weight=st.integers(1, 10_000),
        draining=st.booleans(),
    ),
    max_size=12,
    unique_by=lambda endpoint: (endpoint.host, endpoint.port),
)


@given(_endpoints, st.randoms(use_true_random=False))
def test_the_order_of_endpoints_does_not_change_the_bytes(endpoints: list[EndpointWeight], rng: random.Random) -> None:
    shuffled = rng.sample(endpoints, len(endpoints))
    assert build_assignment("pool", shuffled) == build_assignment("pool", endpoints)
