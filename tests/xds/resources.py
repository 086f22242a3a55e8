"""Small Envoy resources, built with xds-protos, apart from those that the product builds."""

from collections.abc import Mapping

from envoy.config.cluster.v3.cluster_pb2 import Cluster
from envoy.config.core.v3.config_source_pb2 import AggregatedConfigSource, ConfigSource
from envoy.config.listener.v3.listener_pb2 import Listener
from envoy.config.route.v3.route_pb2 import RouteConfiguration
from envoy.extensions.filters.http.router.v3.router_pb2 import Router
from envoy.extensions.filters.network.http_connection_manager.v3.http_connection_manager_pb2 import (
    HttpConnectionManager,
)
from envoy.service.runtime.v3.rtds_pb2 import Runtime

from xds_server.ads.snapshot import TypeUrl
from xds_server.config.endpoints import EndpointWeight, build_assignment

Published = dict[str, dict[str, bytes]]


def _ads() -> ConfigSource:
    return ConfigSource(ads=AggregatedConfigSource(), resource_api_version="V3")


def cluster(name: str, *, connect_timeout_s: int = 1, service_name: str = "") -> bytes:
    message = Cluster(name=name, type=Cluster.EDS)
    message.connect_timeout.seconds = connect_timeout_s
    message.eds_cluster_config.eds_config.CopyFrom(_ads())
    message.eds_cluster_config.service_name = service_name
    return message.SerializeToString()


def _connection_manager(routes: str) -> HttpConnectionManager:
    manager = HttpConnectionManager(stat_prefix="test")
    manager.rds.route_config_name = routes
    manager.rds.config_source.CopyFrom(_ads())
    router = manager.http_filters.add(name="envoy.filters.http.router")
    router.typed_config.Pack(Router())
    return manager


def listener(name: str, port: int, *, routes: str = "routes", filter_name: str = "") -> bytes:
    message = Listener(name=name)
    message.address.socket_address.address = "127.0.0.1"
    message.address.socket_address.port_value = port
    network_filter = message.filter_chains.add().filters.add()
    network_filter.name = filter_name or "envoy.filters.network.http_connection_manager"
    network_filter.typed_config.Pack(_connection_manager(routes))
    return message.SerializeToString()


def api_listener(name: str, routes: str) -> bytes:
    """A listener as grpcio's own xDS client wants it."""
    message = Listener(name=name)
    message.api_listener.api_listener.Pack(_connection_manager(routes))
    return message.SerializeToString()


def route(name: str, clusters: Mapping[str, str], *, domain: str = "*") -> bytes:
    """Path prefix → cluster. An empty prefix is the default."""
    message = RouteConfiguration(name=name)
    virtual_host = message.virtual_hosts.add(name="all", domains=[domain])
    for prefix, target in sorted(clusters.items(), reverse=True):
        entry = virtual_host.routes.add()
        entry.match.prefix = prefix
        entry.route.cluster = target
    return message.SerializeToString()


def runtime(name: str, **values: float) -> bytes:
    message = Runtime(name=name)
    message.layer.update(values)
    return message.SerializeToString()


def weights(name: str, endpoints: Mapping[int, int]) -> bytes:
    """The assignment of `name` to ports of 127.0.0.1, port → weight."""
    return build_assignment(name, [EndpointWeight("127.0.0.1", port, weight) for port, weight in endpoints.items()])


def world(clusters: Mapping[str, Mapping[int, int]], *, listen_on: int = 10_000) -> Published:
    """Clusters (name → port → weight), one listener, a route for each cluster's name and a runtime layer."""
    routes = {f"/{name}": name for name in clusters} | {"/": next(iter(clusters))}
    return {
        TypeUrl.CDS: {name: cluster(name) for name in clusters},
        TypeUrl.EDS: {name: weights(name, endpoints) for name, endpoints in clusters.items()},
        TypeUrl.LDS: {"edge": listener("edge", listen_on)},
        TypeUrl.RDS: {"routes": route("routes", routes)},
        TypeUrl.RTDS: {"layer": runtime("layer", share=1)},
    }
