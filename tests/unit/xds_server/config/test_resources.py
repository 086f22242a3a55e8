"""What is pushed, read back with another protobuf library."""

import re
from typing import Any

import pytest
from envoy.config.cluster.v3.cluster_pb2 import Cluster
from envoy.config.listener.v3.listener_pb2 import Listener
from envoy.config.route.v3.route_pb2 import RouteConfiguration
from envoy.extensions.common.matching.v3.extension_matcher_pb2 import ExtensionWithMatcher
from envoy.extensions.filters.http.ext_proc.v3.ext_proc_pb2 import ExternalProcessor
from envoy.extensions.filters.http.ext_proc.v3.processing_mode_pb2 import ProcessingMode
from envoy.extensions.filters.network.http_connection_manager.v3.http_connection_manager_pb2 import (
    HttpConnectionManager,
)
from envoy.extensions.upstreams.http.v3.http_protocol_options_pb2 import HttpProtocolOptions
from envoy.service.runtime.v3.rtds_pb2 import Runtime
from google.protobuf.json_format import MessageToDict

from trimtab.policy.model import Policy
from xds_server.ads.snapshot import TypeUrl
from xds_server.config import runtime_resource, static_resources


def policy(**changes: Any) -> Policy:
    pool = {"name": "p", "endpoints": [{"address": "127.0.0.1:8000"}], **changes.pop("pool", {})}
    return Policy.model_validate({"version": 1, "pools": [pool], **changes})


def cluster_of(made: Policy, name: str = "p") -> Cluster:
    return Cluster.FromString(static_resources(made)[TypeUrl.CDS][name])


def routes_of(made: Policy) -> RouteConfiguration:
    return RouteConfiguration.FromString(static_resources(made)[TypeUrl.RDS]["trimtab"])


def connection_manager_of(made: Policy) -> HttpConnectionManager:
    listener = Listener.FromString(static_resources(made)[TypeUrl.LDS]["trimtab"])
    manager = HttpConnectionManager()
    assert listener.filter_chains[0].filters[0].typed_config.Unpack(manager)
    return manager


def chain_of(made: Policy, name: str = "p") -> list[ExtensionWithMatcher]:
    """The upstream filters of the pool but for the codec, which is the last."""
    options = HttpProtocolOptions()
    (packed,) = cluster_of(made, name).typed_extension_protocol_options.values()
    assert packed.Unpack(options)
    *filters, codec = options.http_filters
    assert codec.name == "envoy.filters.http.upstream_codec"
    chain = [ExtensionWithMatcher() for _ in filters]
    assert all(one.typed_config.Unpack(matched) for one, matched in zip(filters, chain, strict=True))
    return chain


def workers_of(made: Policy) -> dict[str, tuple[ExternalProcessor, str]]:
    """Role -> the filter, and its matcher as text."""
    found = {}
    for matched in chain_of(made):
        processor = ExternalProcessor()
        if matched.extension_config.typed_config.Unpack(processor):
            found[processor.grpc_service.initial_metadata[0].value] = (processor, str(matched.xds_matcher))
    return found


def marked_unread(made: Policy, name: str = "p") -> set[str]:
    """The status codes that are retried if nobody reads the answer."""
    matchers = [
        str(matched.xds_matcher)
        for matched in chain_of(made, name)
        if matched.extension_config.name == "envoy.filters.http.header_mutation"
    ]
    return set(re.findall(r'exact: "(\d+)"', "".join(matchers)))


@pytest.mark.parametrize(
    "changes",
    [
        {"pool": {"models": ["llama*", "qwen"]}},
        {"pool": {"endpoints": [{"address": "127.0.0.1:9000"}, {"address": "127.0.0.1:9001"}]}},
        {"pool": {"retries": {"attempts": 0}}},
        {"pool": {"retries": {"status_codes": [500]}}},
        {"pool": {"gate": {"enabled": True}}},
        {"pool": {"balancing": {"policy": "round_robin"}}},
        {"pool": {"weighting": {"floor_share": 0.1}}},
        {"pool": {"fallbacks": [{"address": "127.0.0.1:9"}, {"answer": {"message": "Gone."}}]}},
        {"ext_proc": {"sample_percent": 3, "reject_timeout_ms": 50}},
        {
            "pools": [
                {"name": "q", "models": ["x"], "endpoints": [{"address": "127.0.0.1:1"}]},
                {"name": "p", "endpoints": [{"address": "127.0.0.1:8000"}]},
            ]
        },
        {"listen": {"max_body_mib": 64}},
        {"listen": {"stream_idle_timeout_s": 20, "max_stream_s": 40}},
        {"pool": {"timeouts": {"stream_idle_s": 900, "max_stream_s": 7200}}},
        {"listen": {"cors_allow_origins": []}},
    ],
    ids=str,
)
def test_a_policy_change_leaves_the_listener_alone_so_streams_go_on(changes: dict[str, Any]) -> None:
    assert static_resources(policy(**changes))[TypeUrl.LDS] == static_resources(policy())[TypeUrl.LDS]


def test_equal_policies_give_equal_bytes() -> None:
    assert static_resources(policy()) == static_resources(policy())


def test_only_the_listeners_address_changes_it() -> None:
    assert static_resources(policy(listen={"port": 1}))[TypeUrl.LDS] != static_resources(policy())[TypeUrl.LDS]


def test_long_bodies_are_kept_from_the_service_by_their_length() -> None:
    """The third cure of the crash; `test_bootstrap` has the other two."""
    workers = workers_of(policy())
    processor, matcher = workers["reject"]
    assert "content-length" in matcher
    assert "[0-9]{6,}" in matcher
    assert processor.processing_mode.response_body_mode == ProcessingMode.STREAMED
    headers_only, matcher = workers["reject-headers"]
    assert "[0-9]{6,}" in matcher
    assert headers_only.processing_mode.response_body_mode == ProcessingMode.NONE


def test_no_observer_can_harm_an_answer() -> None:
    workers = workers_of(policy(ext_proc={"reject_timeout_ms": 70}))
    assert list(workers) == ["watch", "reject", "reject-headers"]
    for processor, _ in workers.values():
        assert processor.failure_mode_allow
        assert processor.processing_mode.request_header_mode == ProcessingMode.SKIP
        assert processor.processing_mode.request_body_mode == ProcessingMode.NONE
    assert workers["watch"][0].observability_mode
    for role in ("reject", "reject-headers"):
        assert not workers[role][0].observability_mode
        assert workers[role][0].message_timeout.ToMilliseconds() == 70


def test_a_gated_stream_is_held_by_a_service_that_may_be_away_and_watched_every_time() -> None:
    workers = workers_of(policy(pool={"gate": {"enabled": True}}, ext_proc={"sample_percent": 1}))
    assert list(workers) == [
        "gate",
        "watch-gated",
        "watch",
        "reject",
        "reject-headers",
    ]  # an answer comes from the last
    gate, matcher = workers["gate"]
    assert gate.failure_mode_allow
    assert not gate.observability_mode
    assert "text/event-stream" in matcher
    watch, watch_matcher = workers["watch-gated"]
    assert watch.observability_mode
    assert watch_matcher == matcher  # what is held is watched, and the other way round
    assert "stream" in workers["reject"][1], "and so is what a request for a stream got in its place"


def test_the_deadline_is_for_streams_of_a_gated_pool_only() -> None:
    gate = {"enabled": True, "first_token_deadline_ms": 4000}
    _, *routes = routes_of(policy(pool={"gate": gate})).virtual_hosts[0].routes
    limits = {
        route.name: (
            route.route.retry_policy.per_try_timeout.ToMilliseconds(),
            route.route.HasField("hedge_policy"),
            route.route.retry_policy.retry_back_off.max_interval.ToMilliseconds(),
        )
        for route in routes
    }
    assert limits == {
        "p/stream": (4000, False, 250),
        "p/unary": (0, False, 250),
        "p/unknown": (0, False, 250),
    }


@pytest.mark.parametrize(
    ("pool", "codes"),
    [
        ({}, {"502", "503", "529"}),
        ({"retries": {"status_codes": [429]}}, set()),
        ({"retries": {"status_codes": [404]}}, {"404"}),
        ({"retries": {"attempts": 0}}, set()),
        ({"gate": {"enabled": True}}, {"502", "503", "529"}),
    ],
)
def test_what_is_retried_unread(pool: dict[str, Any], codes: set[str]) -> None:
    assert marked_unread(policy(pool=pool)) == codes


def test_the_share_of_watched_streams_is_in_the_cluster_and_moved_by_the_runtime() -> None:
    _, matcher = workers_of(policy(ext_proc={"sample_percent": 12.34}))["watch"]
    assert "text/event-stream" in matcher
    for percent, numerator in ((0, 0), (0.5, 50), (12.34, 1234), (100, 10_000)):
        layer = MessageToDict(Runtime.FromString(runtime_resource(percent)).layer)
        assert layer == {"trimtab.watch": {"numerator": numerator, "denominator": "TEN_THOUSAND"}}
    made = policy(ext_proc={"sample_percent": 12.34})
    assert static_resources(made)[TypeUrl.RTDS]["trimtab"] == runtime_resource(12.34)


def test_nothing_cuts_a_long_stream_but_the_policys_limits() -> None:
    made = policy(listen={"stream_idle_timeout_s": 600, "max_stream_s": 7200})
    refusal, *routes = routes_of(made).virtual_hosts[0].routes
    assert refusal.direct_response.status == 404
    for route in routes:
        assert route.route.HasField("timeout")
        assert route.route.timeout.ToSeconds() == 0
        assert route.route.idle_timeout.ToSeconds() == 600
        assert route.route.max_stream_duration.max_stream_duration.ToSeconds() == 7200
        assert not route.route.retry_policy.HasField("per_try_timeout")
        assert not route.route.retry_policy.HasField("per_try_idle_timeout")


def test_retries_follow_the_policy_and_look_for_another_endpoint() -> None:
    retries = {"attempts": 3, "status_codes": [429, 529], "back_off_base_ms": 5, "back_off_max_ms": 9}
    retry = routes_of(policy(pool={"retries": retries})).virtual_hosts[0].routes[1].route.retry_policy
    assert retry.num_retries.value == 3
    (mark,) = retry.retriable_headers
    assert mark.name in routes_of(policy()).virtual_hosts[0].response_headers_to_remove
    assert set(retry.retry_on.split(",")) == {
        "connect-failure",
        "refused-stream",
        "reset-before-request",
        "reset",
        "retriable-headers",
    }
    assert retry.retry_host_predicate[0].name == "envoy.retry_host_predicates.previous_hosts"
    assert retry.retry_back_off.base_interval.ToMilliseconds() == 5
    assert retry.retry_back_off.max_interval.ToMilliseconds() == 9
    none = routes_of(policy(pool={"retries": {"attempts": 0}})).virtual_hosts[0].routes[0].route
    assert not none.HasField("retry_policy")


def test_envoy_refuses_nothing_by_itself() -> None:
    cluster = cluster_of(policy())
    (limits,) = cluster.circuit_breakers.thresholds
    assert (
        min(
            limits.max_connections.value,
            limits.max_pending_requests.value,
            limits.max_requests.value,
            limits.max_retries.value,
        )
        >= 100_000
    )
    assert cluster.common_lb_config.healthy_panic_threshold.value == 1


def test_envoy_judges_nothing_but_connections_and_never_for_long() -> None:
    outliers = cluster_of(policy()).outlier_detection
    enforced = {
        name: wrapped["value"] if isinstance(wrapped, dict) else wrapped
        for name, wrapped in MessageToDict(outliers, preserving_proto_field_name=True).items()
        if name.startswith("enforcing_")
    }
    assert {name for name, percent in enforced.items() if percent} == {"enforcing_consecutive_local_origin_failure"}
    # Envoy enforces these where nothing is said.
    assert enforced.keys() >= {
        "enforcing_consecutive_5xx",
        "enforcing_consecutive_gateway_failure",
        "enforcing_success_rate",
        "enforcing_local_origin_success_rate",
    }
    assert outliers.split_external_local_origin_errors
    assert outliers.max_ejection_time.seconds < policy().pools[0].weighting.breaker_open_s / 2


def test_what_stands_in_for_a_gated_pool_is_treated_as_one() -> None:
    """The route, and with it the deadline, stays the first pool's."""
    endpoints = [{"address": "10.0.0.9:8000"}]
    gate = {"enabled": True}
    pools = [
        {"name": "spare", "models": ["spare"], "endpoints": endpoints},
        {"name": "p", "models": ["p"], "endpoints": endpoints, "gate": gate, "fallbacks": [{"pool": "spare"}]},
        {"name": "other", "models": ["other"], "endpoints": endpoints},
    ]
    made = Policy.model_validate({"version": 1, "pools": pools})
    assert marked_unread(made, "spare") == {"502", "503", "529"}
    assert marked_unread(made, "other") == {"502", "503", "529"}
    # A missed deadline does not show that an endpoint cannot be reached.
    judged = {name: cluster_of(made, name).HasField("outlier_detection") for name in ("spare", "p", "other")}
    assert judged == {"spare": False, "p": False, "other": True}


def test_a_pool_without_fallbacks_is_named_alone_and_one_with_them_shares_only_by_the_runtime() -> None:
    assert {
        route.route.cluster for route in routes_of(policy()).virtual_hosts[0].routes if route.HasField("route")
    } == {"p"}
    made = policy(pool={"fallbacks": [{"address": "cache.internal:80"}, {"answer": {"message": "Gone."}}]})
    assert static_resources(made)[TypeUrl.CDS].keys() == {"p", "p:cache.internal:80"}
    answer, *serving = (r for r in routes_of(made).virtual_hosts[0].routes if r.name.startswith(("p/", "fallback")))
    assert answer.match.runtime_fraction.default_value.numerator == 0
    for route in serving:
        weights = {c.name: c.weight.value for c in route.route.weighted_clusters.clusters}
        assert weights == {"p": 10_000, "p:cache.internal:80": 0}


def test_the_weights_are_applied_as_the_policy_says() -> None:
    assert cluster_of(policy()).lb_policy == Cluster.LEAST_REQUEST
    biased = cluster_of(policy(pool={"balancing": {"active_request_bias": 0}}))
    assert biased.least_request_lb_config.HasField("active_request_bias")
    assert biased.least_request_lb_config.active_request_bias.default_value == 0
    plain = cluster_of(policy(pool={"balancing": {"policy": "round_robin"}}))
    assert plain.lb_policy == Cluster.ROUND_ROBIN
    assert not plain.HasField("least_request_lb_config")


def test_no_address_of_a_client_is_trusted() -> None:
    manager = connection_manager_of(policy())
    assert manager.use_remote_address.value
    assert len(manager.internal_address_config.cidr_ranges) == 1  # none would mean Envoy's own list
    assert not manager.preserve_external_request_id


def test_all_parts_of_a_resource_come_over_ads() -> None:
    assert connection_manager_of(policy()).rds.config_source.HasField("ads")
    cluster = cluster_of(policy())
    assert cluster.type == Cluster.EDS
    assert cluster.eds_cluster_config.eds_config.HasField("ads")
    assert not cluster.eds_cluster_config.service_name


def test_a_model_that_a_single_catch_all_pool_serves_needs_no_reading() -> None:
    names = [route.name for route in routes_of(policy()).virtual_hosts[0].routes]
    assert names == ["no-such-path", "p/stream", "p/unary", "p/unknown"]


CLASSES = [{"name": "short", "up_to_tokens": 128}, {"name": "medium", "up_to_tokens": 1024}, {"name": "long"}]


def test_each_length_class_has_a_cluster_like_that_of_a_pool_without() -> None:
    made = static_resources(policy(pool={"classes": CLASSES}))[TypeUrl.CDS]
    assert list(made) == ["p/short", "p/medium", "p/long"]
    for name, body in made.items():
        cluster = Cluster.FromString(body)
        assert cluster.name == name
        cluster.name = "p"
        assert cluster == cluster_of(policy())


def test_the_longest_class_whose_border_a_body_has_passed_gets_it() -> None:
    _, *routes = routes_of(policy(pool={"classes": CLASSES})).virtual_hosts[0].routes
    chosen = [
        (route.name, route.route.cluster, [(h.name, h.range_match.start) for h in route.match.headers])
        for route in routes
    ]
    assert chosen == [
        (f"p/{asked}", f"p/{name}", headers)
        for name, headers in (
            ("long", [("content-length", 4 * 1024 + 1)]),
            ("medium", [("content-length", 4 * 128 + 1)]),
            ("short", []),
        )
        for asked in ("stream", "unary", "unknown")
    ]


def test_a_pool_without_classes_is_one_cluster_and_looks_at_no_length() -> None:
    made = policy(pool={"class_bytes_per_token": 3})
    assert static_resources(made) == static_resources(policy())
    _, *routes = routes_of(made).virtual_hosts[0].routes
    assert [(route.route.cluster, len(route.match.headers)) for route in routes] == [("p", 0)] * 3


def test_a_slash_passes_every_path_on() -> None:
    names = [route.name for route in routes_of(policy(listen={"paths": ["/"]})).virtual_hosts[0].routes]
    assert names == ["p/stream", "p/unary", "p/unknown"]
