"""What Envoy is told, but for the endpoints: typed messages built from the policy, serialised."""

from envoy_data_plane.envoy.config.cluster.v3 import Cluster
from envoy_data_plane.envoy.config.listener.v3 import Listener
from envoy_data_plane.envoy.config.route.v3 import RouteConfiguration
from envoy_data_plane.envoy.service.runtime.v3 import Runtime

from trimtab.policy.model import Policy
from xds_server.resources.clusters import cluster
from xds_server.resources.listener import LISTENER_NAME, listener
from xds_server.resources.packing import type_url
from xds_server.resources.routes import ROUTES_NAME, route_configuration
from xds_server.resources.runtime import RUNTIME_NAME, runtime

LISTENER_URL = type_url(Listener)
ROUTES_URL = type_url(RouteConfiguration)
CLUSTER_URL = type_url(Cluster)
RUNTIME_URL = type_url(Runtime)


def static_resources(policy: Policy) -> dict[str, dict[str, bytes]]:
    """Type URL -> name -> serialised resource. Equal policies give equal bytes."""
    return {
        CLUSTER_URL: {pool.name: bytes(cluster(pool, policy.ext_proc)) for pool in policy.pools},
        LISTENER_URL: {LISTENER_NAME: bytes(listener(policy.listen))},
        ROUTES_URL: {ROUTES_NAME: bytes(route_configuration(policy))},
        RUNTIME_URL: {RUNTIME_NAME: runtime_resource(policy.ext_proc.sample_percent)},
    }


def runtime_resource(watch_percent: float) -> bytes:
    """The serialised runtime layer with another share of watched attempts (0 to 100)."""
    return bytes(runtime(watch_percent))


__all__ = [
    "CLUSTER_URL",
    "LISTENER_NAME",
    "LISTENER_URL",
    "ROUTES_NAME",
    "ROUTES_URL",
    "RUNTIME_NAME",
    "RUNTIME_URL",
    "runtime_resource",
    "static_resources",
]
