"""Reads from serialised resources what they are called and what they refer to.

They are parsed once, when they are published, so that no caller has to say beside a resource what is in it.
"""

from collections.abc import Callable, Iterator
from typing import Any

from envoy.config.cluster.v3.cluster_pb2 import Cluster
from envoy.config.endpoint.v3.endpoint_pb2 import ClusterLoadAssignment
from envoy.config.listener.v3.listener_pb2 import Listener
from envoy.config.route.v3.route_pb2 import RouteConfiguration
from envoy.extensions.filters.network.http_connection_manager.v3.http_connection_manager_pb2 import (
    HttpConnectionManager,
)
from envoy.service.runtime.v3.rtds_pb2 import Runtime
from google.protobuf.any_pb2 import Any as AnyMessage


def describe(type_url: str, body: bytes) -> tuple[str, frozenset[str]]:
    """The resource's own name, and the names that it refers to in the type that it needs.

    A cluster refers to its assignment and a listener to its routes if they come over ADS; a route refers to
    clusters that are named in it (not to those that a header names).

    Raises DecodeError if the body is no message of this type, KeyError for a type that is not served.
    """
    message_type, name_field, references = _READERS[type_url]
    message = message_type.FromString(body)
    return getattr(message, name_field), frozenset(references(message))


def _of_cluster(cluster: Cluster) -> Iterator[str]:
    if cluster.type == Cluster.EDS and cluster.eds_cluster_config.eds_config.HasField("ads"):
        yield cluster.eds_cluster_config.service_name or cluster.name


def _of_listener(listener: Listener) -> Iterator[str]:
    yield from _of_connection_manager(listener.api_listener.api_listener)
    for chain in (*listener.filter_chains, listener.default_filter_chain):
        for network_filter in chain.filters:
            yield from _of_connection_manager(network_filter.typed_config)


def _of_connection_manager(config: AnyMessage) -> Iterator[str]:
    manager = HttpConnectionManager()
    if config.Unpack(manager) and manager.rds.config_source.HasField("ads"):
        yield manager.rds.route_config_name


def _of_route_configuration(routes: RouteConfiguration) -> Iterator[str]:
    for virtual_host in routes.virtual_hosts:
        for route in virtual_host.routes:
            if route.route.cluster:
                yield route.route.cluster
            yield from (weighted.name for weighted in route.route.weighted_clusters.clusters if weighted.name)


def _nothing(_: object) -> Iterator[str]:
    yield from ()


def _url(message_type: Any) -> str:
    return f"type.googleapis.com/{message_type.DESCRIPTOR.full_name}"


_READERS: dict[str, tuple[Any, str, Callable[[Any], Iterator[str]]]] = {
    _url(Cluster): (Cluster, "name", _of_cluster),
    _url(ClusterLoadAssignment): (ClusterLoadAssignment, "cluster_name", _nothing),
    _url(Listener): (Listener, "name", _of_listener),
    _url(RouteConfiguration): (RouteConfiguration, "name", _of_route_configuration),
    _url(Runtime): (Runtime, "name", _nothing),
}
