"""What Envoy is told, but for the endpoints: typed messages built from the policy, serialised."""

from collections.abc import Iterator, Mapping

from envoy_data_plane.envoy.config.cluster.v3 import Cluster

from trimtab.policy.model import Policy
from xds_server.ads.snapshot import TypeUrl
from xds_server.config import fallbacks
from xds_server.config.clusters import cluster
from xds_server.config.listener import LISTENER_NAME, listener
from xds_server.config.routes import ROUTES_NAME, route_configuration
from xds_server.config.runtime import RUNTIME_NAME, runtime


def static_resources(policy: Policy) -> dict[TypeUrl, dict[str, bytes]]:
    """Type URL -> name -> serialised resource. Equal policies give equal bytes."""
    return {
        TypeUrl.CDS: {made.name: bytes(made) for made in _clusters(policy)},
        TypeUrl.LDS: {LISTENER_NAME: bytes(listener(policy.listen))},
        TypeUrl.RDS: {ROUTES_NAME: bytes(route_configuration(policy))},
        TypeUrl.RTDS: {RUNTIME_NAME: runtime_resource(policy.ext_proc.sample_percent)},
    }


def _clusters(policy: Policy) -> Iterator[Cluster]:
    for pool in policy.pools:
        for name in pool.clusters:
            yield cluster(name, pool, policy.ext_proc, timed=pool.name in policy.deadlined_pools)
        yield from fallbacks.clusters(pool)


def runtime_resource(watch_percent: float, entries: Mapping[str, object] | None = None) -> bytes:
    """The serialised runtime layer with another share of watched attempts (0 to 100), and other entries."""
    return bytes(runtime(watch_percent, entries or {}))


__all__ = ["LISTENER_NAME", "ROUTES_NAME", "RUNTIME_NAME", "runtime_resource", "static_resources"]
