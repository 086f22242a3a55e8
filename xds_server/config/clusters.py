"""One cluster per pool, or one for each of its length classes; endpoints and their weights come over EDS."""

from datetime import timedelta

from envoy_data_plane.envoy.config.cluster.v3 import (
    CircuitBreakers,
    CircuitBreakersThresholds,
    Cluster,
    ClusterCommonLbConfig,
    ClusterDiscoveryType,
    ClusterEdsClusterConfig,
    ClusterLbPolicy,
    ClusterLeastRequestLbConfig,
    OutlierDetection,
    UpstreamConnectionOptions,
)
from envoy_data_plane.envoy.config.core.v3 import (
    Http1ProtocolOptions,
    HttpProtocolOptions,
    RuntimeDouble,
    TcpKeepalive,
)
from envoy_data_plane.envoy.extensions.upstreams.http.v3 import HttpProtocolOptions as UpstreamOptions
from envoy_data_plane.envoy.extensions.upstreams.http.v3 import HttpProtocolOptionsExplicitHttpConfig
from envoy_data_plane.envoy.type.v3 import Percent
from envoy_data_plane.google.protobuf import Any

from trimtab.policy.model import ExtProc, Pool
from xds_server.config.config_sources import over_ads
from xds_server.config.upstream_filters import upstream_filters
from xds_server.signals.orca import REPORTED

_UPSTREAM_OPTIONS = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"

# Engines queue for themselves and say when they are full. Envoy's defaults (1024 requests, 3 retries under
# way) would refuse or give up long before.
_NO_LIMIT = 1_000_000

# uvicorn closes a connection that was idle for 5 s; one that is given up earlier is never met half closed.
_IDLE_CONNECTION = timedelta(seconds=4)


def cluster(name: str, pool: Pool, ext_proc: ExtProc, *, timed: bool) -> Cluster:
    """The cluster `name` of `pool`; its EDS resource has the same name.

    `timed`: an attempt in it may have a first-token deadline.
    """
    return Cluster(
        name=name,
        type=ClusterDiscoveryType.EDS,
        # A changed cluster waits for its endpoints, then goes on with those that it had.
        eds_cluster_config=ClusterEdsClusterConfig(eds_config=over_ads(give_up_after=timedelta(seconds=2))),
        connect_timeout=timedelta(seconds=1),
        common_lb_config=ClusterCommonLbConfig(
            # Weighting decides who is in, and says of the others that they drain: Envoy does not count those. If it can
            # connect to none that is in, it tries all, by their weights, and one that is out has next to none.
            healthy_panic_threshold=Percent(value=1),
            update_merge_window=timedelta(0),
        ),
        circuit_breakers=CircuitBreakers(
            thresholds=[
                CircuitBreakersThresholds(
                    max_connections=_NO_LIMIT,
                    max_pending_requests=_NO_LIMIT,
                    max_requests=_NO_LIMIT,
                    max_retries=_NO_LIMIT,
                )
            ]
        ),
        # Envoy counts a missed deadline as a connection that failed. It would pass over engines that are slow, and
        # those may be all that are in.
        outlier_detection=None if timed else _UNREACHABLE,
        # A machine that is gone without a word is noticed within a minute, while streams may be silent for
        # longer.
        upstream_connection_options=UpstreamConnectionOptions(
            tcp_keepalive=TcpKeepalive(keepalive_time=20, keepalive_interval=10, keepalive_probes=3)
        ),
        typed_extension_protocol_options={
            _UPSTREAM_OPTIONS: Any.pack(
                UpstreamOptions(
                    common_http_protocol_options=HttpProtocolOptions(idle_timeout=_IDLE_CONNECTION),
                    explicit_http_config=HttpProtocolOptionsExplicitHttpConfig(
                        http_protocol_options=Http1ProtocolOptions()
                    ),
                    http_filters=upstream_filters(pool, ext_proc),
                )
            )
        },
        lrs_report_endpoint_metrics=[REPORTED] if pool.signals.orca else [],
        lb_policy=_LB_POLICIES[pool.balancing.policy],
        least_request_lb_config=_least_request(pool) if pool.balancing.policy == "least_request" else None,
    )


# Who is out is for the breaker to say, which reads what endpoints answer; by status alone Envoy would take one that is
# full for broken. Only connections that are not made need no reading: passing over such an endpoint goes on while the
# control plane is dead, and where nothing refuses them each would cost a request the connect time-out. It ends long
# before a breaker is half open, so its try is not kept away.
_UNREACHABLE = OutlierDetection(
    split_external_local_origin_errors=True,
    consecutive_local_origin_failure=3,
    enforcing_consecutive_local_origin_failure=100,
    base_ejection_time=timedelta(seconds=5),
    max_ejection_time=timedelta(seconds=5),
    interval=timedelta(seconds=1),
    max_ejection_percent=50,  # where more than half cannot be reached, the way there is broken, and all are tried
    enforcing_consecutive_5xx=0,
    enforcing_consecutive_gateway_failure=0,
    enforcing_success_rate=0,
    enforcing_local_origin_success_rate=0,
    enforcing_failure_percentage=0,
    enforcing_failure_percentage_local_origin=0,
)

_LB_POLICIES = {"least_request": ClusterLbPolicy.LEAST_REQUEST, "round_robin": ClusterLbPolicy.ROUND_ROBIN}


def _least_request(pool: Pool) -> ClusterLeastRequestLbConfig:
    bias = RuntimeDouble(
        default_value=pool.request_bias,
        runtime_key=f"trimtab.active_request_bias.{pool.name}",
    )
    return ClusterLeastRequestLbConfig(active_request_bias=bias)
