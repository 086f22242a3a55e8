"""The load reporting service: each Envoy tells, several times a second, what is in flight at every endpoint.

Envoy names every cluster in every report, and leaves out the endpoints that have nothing to say: they are idle.
When a report does not come, nothing is known.
"""

import asyncio
import logging
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from itertools import chain

import grpc.aio
from envoy.config.core.v3.address_pb2 import Address
from envoy.config.endpoint.v3.load_report_pb2 import ClusterStats, EndpointLoadMetricStats, UpstreamEndpointStats
from envoy.service.load_stats.v3 import lrs_pb2_grpc
from envoy.service.load_stats.v3.lrs_pb2 import LoadStatsRequest, LoadStatsResponse

from trimtab.datapath import pool_of_cluster
from trimtab.observation.kinds import LoadReported, SignalsRead
from xds_server.signals.orca import orca_reading

_log = logging.getLogger(__name__)


class LrsService(lrs_pb2_grpc.LoadReportingServiceServicer):  # type: ignore[misc]
    """Turns load reports into observations. Lives on one event loop.

    `on_load` gets all observations of a report at once: the loads, and what engines said in their answers' headers.
    It must not block or raise. The clusters of a pool are told as one; those of what is no pool by `is_pool` are left
    out. `interval_s` is how often an Envoy is asked to report; it honours 0.25 s.
    """

    def __init__(
        self,
        on_load: Callable[[Sequence[LoadReported | SignalsRead]], None],
        is_pool: Callable[[str], bool],
        interval_s: float = 0.25,
    ) -> None:
        self._on_load = on_load
        self._is_pool = is_pool
        self._settings = LoadStatsResponse(send_all_clusters=True, report_endpoint_granularity=True)
        self._settings.load_reporting_interval.FromNanoseconds(round(interval_s * 1e9))
        self._nodes: set[str] = set()
        self._closed = asyncio.Event()

    def add_to(self, server: grpc.aio.Server) -> None:
        """Register with `server`, which should have been made with `transport.SERVER_OPTIONS`."""
        lrs_pb2_grpc.add_LoadReportingServiceServicer_to_server(self, server)

    def close(self) -> None:
        """End every stream, so that the server can stop at once."""
        self._closed.set()

    async def StreamLoadStats(
        self, requests: AsyncIterator[LoadStatsRequest], context: grpc.aio.ServicerContext
    ) -> None:
        async with asyncio.TaskGroup() as tasks:
            ended = tasks.create_task(self._closed.wait())
            listener = tasks.create_task(self._listen(requests, context))
            await asyncio.wait((ended, listener), return_when=asyncio.FIRST_COMPLETED)
            ended.cancel()
            listener.cancel()

    async def _listen(self, requests: AsyncIterator[LoadStatsRequest], context: grpc.aio.ServicerContext) -> None:
        node = ""
        try:
            async for report in requests:
                if not node:
                    node = self._enter(report.node.id or context.peer())
                    await context.write(self._settings)
                self._report(node, report)
        finally:
            self._nodes.discard(node)

    def _enter(self, node_id: str) -> str:
        """A name that no other open stream has: the gauges of two Envoys must not overwrite each other."""
        node, number = node_id, 1
        while node in self._nodes:
            number += 1
            node = f"{node_id}#{number}"
        if number > 1:
            _log.warning("several Envoys report load as %r: give each its own node id", node_id)
        self._nodes.add(node)
        return node

    def _report(self, node: str, report: LoadStatsRequest) -> None:
        now = time.time()
        by_pool: dict[str, list[ClusterStats]] = defaultdict(list)
        for cluster in report.cluster_stats:
            if self._is_pool(pool := pool_of_cluster(cluster.cluster_name)):
                by_pool[pool].append(cluster)
        told: list[LoadReported | SignalsRead] = []
        for pool, clusters in by_pool.items():
            told.append(LoadReported(now, pool, node, _in_flight(clusters)))
            told += _readings(now, pool, clusters)
        if told:
            self._on_load(told)


def _in_flight(clusters: Sequence[ClusterStats]) -> Counter[str]:
    """Requests in progress by address; endpoints that are idle may be left out."""
    in_flight: Counter[str] = Counter()
    for address, stats in _endpoints(clusters):
        in_flight[address] += stats.total_requests_in_progress
    return in_flight


def _readings(now: float, pool: str, clusters: Sequence[ClusterStats]) -> Iterator[SignalsRead]:
    """What engines told in their answers' headers."""
    told: dict[str, list[EndpointLoadMetricStats]] = defaultdict(list)
    for address, stats in _endpoints(clusters):
        told[address] += stats.load_metric_stats
    for address, load_metrics in told.items():
        if (reading := orca_reading(now, pool, address, load_metrics)) is not None:
            yield reading


def _endpoints(clusters: Sequence[ClusterStats]) -> Iterator[tuple[str, UpstreamEndpointStats]]:
    for locality in chain.from_iterable(cluster.upstream_locality_stats for cluster in clusters):
        for stats in locality.upstream_endpoint_stats:
            if (address := _address(stats.address)) is not None:
                yield address, stats


def _address(address: Address) -> str | None:
    """`ip:port`, IPv6 in brackets; None for anything but an IP address, which no pool has."""
    if not address.HasField("socket_address"):
        return None
    host, port = address.socket_address.address, address.socket_address.port_value
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
