"""Who serves in place of a pool. How much, the runtime layer says, which Envoy reads anew for each request."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta

from envoy_data_plane.envoy.config.cluster.v3 import Cluster, ClusterDiscoveryType
from envoy_data_plane.envoy.config.core.v3 import (
    Address,
    DataSource,
    HeaderValue,
    HeaderValueOption,
    HeaderValueOptionHeaderAppendAction,
    RuntimeFractionalPercent,
    SocketAddress,
    SubstitutionFormatString,
)
from envoy_data_plane.envoy.config.endpoint.v3 import (
    ClusterLoadAssignment,
    Endpoint,
    LbEndpoint,
    LocalityLbEndpoints,
)
from envoy_data_plane.envoy.config.route.v3 import (
    DirectResponseAction,
    Route,
    RouteMatch,
    WeightedCluster,
    WeightedClusterClusterWeight,
)
from envoy_data_plane.envoy.type.matcher.v3 import MetadataMatcher

from trimtab.datapath import REASON_HEADER
from trimtab.policy.model import Fallback, Pool, split_host_port
from xds_server.config.upstream_filters import fraction

FALLBACK_HEADER = "x-trimtab-fallback"

_SCALE = 10_000


def clusters(pool: Pool) -> Iterator[Cluster]:
    """The clusters of the fallbacks that are no pools."""
    for fallback in pool.fallbacks:
        if fallback.address is not None:
            host, port = split_host_port(fallback.address)
            name = _own_cluster(pool, fallback)
            address = Address(socket_address=SocketAddress(address=host, port_value=port))
            yield Cluster(
                name=name,
                type=ClusterDiscoveryType.STRICT_DNS,
                connect_timeout=timedelta(seconds=1),
                load_assignment=ClusterLoadAssignment(
                    cluster_name=name,
                    endpoints=[LocalityLbEndpoints(lb_endpoints=[LbEndpoint(endpoint=Endpoint(address=address))])],
                ),
            )


def weighted_clusters(pool: Pool, cluster: str, pools: Mapping[str, Pool]) -> WeightedCluster:
    """`cluster`, which is one of the pool's, and those of its fallbacks. At first, it keeps all."""
    return WeightedCluster(
        runtime_key_prefix=_prefix(pool),
        clusters=[
            WeightedClusterClusterWeight(name=cluster, weight=_SCALE),
            *(
                WeightedClusterClusterWeight(
                    name=_cluster_name(pool, fallback, pools),
                    weight=0,
                    response_headers_to_add=[_set(FALLBACK_HEADER, fallback.name)],
                )
                for fallback in pool.fallbacks
                if fallback.answer is None
            ),
        ],
    )


def answer_route(pool: Pool, conditions: list[MetadataMatcher]) -> Iterator[Route]:
    """The route of the static answer, if there is one. It stands before the pool's others."""
    for fallback in pool.fallbacks:
        if (answer := fallback.answer) is not None:
            yield Route(
                name="fallback-answer",
                match=RouteMatch(
                    prefix="/",
                    dynamic_metadata=conditions,
                    runtime_fraction=RuntimeFractionalPercent(default_value=fraction(0), runtime_key=_answer_key(pool)),
                ),
                direct_response=DirectResponseAction(
                    status=answer.status,
                    # The mapper of our own answers puts it into the shape of the API.
                    body_format=SubstitutionFormatString(
                        text_format_source=DataSource(inline_string=answer.message.replace("%", "%%"))
                    ),
                ),
                response_headers_to_add=[
                    _set(FALLBACK_HEADER, fallback.name),
                    _set(REASON_HEADER, "fallback-answer"),
                    _set("retry-after", str(answer.retry_after_s)),
                ],
            )


def runtime_of(pool: Pool, parts: Sequence[float], pools: Mapping[str, Pool]) -> Mapping[str, object]:
    """The runtime layer's entries for a split: the parts (0..1, their sum is 1) of the pool and of each fallback."""
    keeps, *others = (round(_SCALE * part) for part in parts)
    weights, answered = dict.fromkeys(pool.clusters, keeps), 0
    for fallback, part in zip(pool.fallbacks, others, strict=True):
        if fallback.answer is None:
            weights[_cluster_name(pool, fallback, pools)] = part
        else:
            answered = part
    if not any(weights.values()):
        weights |= dict.fromkeys(pool.clusters, 1)  # Envoy answers 404 where no cluster has a weight
    entries: dict[str, object] = {f"{_prefix(pool)}.{name}": weight for name, weight in weights.items()}
    if any(fallback.answer for fallback in pool.fallbacks):
        entries[_answer_key(pool)] = {"numerator": answered, "denominator": "TEN_THOUSAND"}
    return entries


def _cluster_name(pool: Pool, fallback: Fallback, pools: Mapping[str, Pool]) -> str:
    """Of a pool with length classes that of the longest, which takes every length."""
    return pools[fallback.pool].clusters[-1] if fallback.pool else _own_cluster(pool, fallback)


def _own_cluster(pool: Pool, fallback: Fallback) -> str:
    """A name that no pool's cluster can have."""
    return f"{pool.name}:{fallback.address}"


def _prefix(pool: Pool) -> str:
    return f"trimtab.part.{pool.name}"


def _answer_key(pool: Pool) -> str:
    return f"trimtab.answer.{pool.name}"


def _set(key: str, value: str) -> HeaderValueOption:
    return HeaderValueOption(
        header=HeaderValue(key=key, value=value),
        append_action=HeaderValueOptionHeaderAppendAction.OVERWRITE_IF_EXISTS_OR_ADD,
    )
