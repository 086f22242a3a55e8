"""The load reporting service: each Envoy tells, several times a second, what is in flight at every endpoint.

Envoy leaves out what has nothing to say. What is missing in a report is therefore an endpoint without work,
and is reported as such once: no endpoint stays busy for ever in the eyes of those who listen.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence

import grpc.aio
from envoy.config.core.v3.address_pb2 import Address
from envoy.service.load_stats.v3 import lrs_pb2_grpc
from envoy.service.load_stats.v3.lrs_pb2 import LoadStatsRequest, LoadStatsResponse

from trimtab.fleet.observation import LoadReported, SignalsRead
from xds_server.sources.orca import orca_reading

_log = logging.getLogger(__name__)

_Endpoint = tuple[str, str]  # pool, address


class LrsService(lrs_pb2_grpc.LoadReportingServiceServicer):  # type: ignore[misc]
    """Turns load reports into observations. Lives on one event loop.

    `on_load` gets every report's observations at once, and what engines said in their answers' headers beside the
    loads; it must not block or raise. Clusters for which
    `is_pool` is false are left out. `interval_s` is how often an Envoy is asked to report; it honours 0.25 s.
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
        node, busy = "", set[_Endpoint]()
        try:
            async for report in requests:
                if not node:
                    node = self._enter(report.node.id or context.peer())
                    await context.write(self._settings)
                busy = self._report(node, report, busy)
        finally:
            if node:
                self._nodes.discard(node)
                self._hand_over(self._idle(node, busy, time.time()))

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

    def _report(self, node: str, report: LoadStatsRequest, busy: set[_Endpoint]) -> set[_Endpoint]:
        """Hand over one report. `busy` had work in the last one; returns those that have work in this one."""
        now = time.time()
        loads, readings = self._told(node, report, now)
        seen = {(load.pool, load.address) for load in loads}
        self._hand_over([*loads, *readings, *self._idle(node, busy - seen, now)])
        return {(load.pool, load.address) for load in loads if load.in_flight}

    def _told(self, node: str, report: LoadStatsRequest, now: float) -> tuple[list[LoadReported], list[SignalsRead]]:
        loads: list[LoadReported] = []
        readings: list[SignalsRead] = []
        for cluster in report.cluster_stats:
            if not self._is_pool(cluster.cluster_name):
                continue
            for locality in cluster.upstream_locality_stats:
                for stats in locality.upstream_endpoint_stats:
                    address = _address(stats.address)
                    if address is None:
                        continue
                    loads.append(
                        LoadReported(
                            at=now,
                            pool=cluster.cluster_name,
                            address=address,
                            node=node,
                            in_flight=stats.total_requests_in_progress,
                            issued=stats.total_issued_requests,
                            succeeded=stats.total_successful_requests,
                            failed=stats.total_error_requests,
                        )
                    )
                    reading = orca_reading(now, cluster.cluster_name, address, stats.load_metric_stats)
                    if reading is not None:
                        readings.append(reading)
        return loads, readings

    def _idle(self, node: str, endpoints: set[_Endpoint], now: float) -> list[LoadReported]:
        return [
            LoadReported(now, pool, address, node, in_flight=0, issued=0, succeeded=0, failed=0)
            for pool, address in sorted(endpoints)
            if self._is_pool(pool)  # it may be gone since the last report
        ]

    def _hand_over(self, loads: Sequence[LoadReported | SignalsRead]) -> None:
        if loads:
            self._on_load(loads)


def _address(address: Address) -> str | None:
    """`ip:port`, IPv6 in brackets; None for anything but an IP address, which no pool has."""
    if not address.HasField("socket_address"):
        return None
    host, port = address.socket_address.address, address.socket_address.port_value
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
