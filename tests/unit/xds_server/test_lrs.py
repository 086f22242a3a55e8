"""Load reports become observations; a stream that has ended says nothing."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from envoy.service.load_stats.v3.lrs_pb2 import LoadStatsRequest, LoadStatsResponse

from tests.xds.clients import quiet
from trimtab.observation.kinds import LoadReported
from xds_server.lrs import LrsService


class Reporter:
    """One Envoy's load report stream."""

    def __init__(self, service: LrsService, node: str, peer: str = "ipv4:10.0.0.9:1") -> None:
        self.answers: list[LoadStatsResponse] = []
        self._node, self._peer = node, peer
        self._reports: asyncio.Queue[Any] = asyncio.Queue()
        self.task = asyncio.create_task(service.StreamLoadStats(self._incoming(), self))  # type: ignore[arg-type]

    async def report(self, **clusters: dict[str, tuple[int, int, int, int]]) -> None:
        """Cluster → "ip port" → in progress, issued, successful, error."""
        message = LoadStatsRequest()
        if self._node:
            message.node.id, self._node = self._node, ""
        for name, endpoints in clusters.items():
            locality = message.cluster_stats.add(cluster_name=name).upstream_locality_stats.add()
            for address, (in_progress, issued, successful, error) in endpoints.items():
                stats = locality.upstream_endpoint_stats.add(
                    total_requests_in_progress=in_progress,
                    total_issued_requests=issued,
                    total_successful_requests=successful,
                    total_error_requests=error,
                )
                host, port = address.split()
                if host == "pipe":
                    stats.address.pipe.path = port
                else:
                    stats.address.socket_address.address = host
                    stats.address.socket_address.port_value = int(port)
        self._reports.put_nowait(message)
        await quiet()

    async def hang_up(self) -> None:
        self._reports.put_nowait(None)
        await self.task

    async def _incoming(self) -> AsyncIterator[Any]:
        while (report := await self._reports.get()) is not None:
            yield report

    async def write(self, response: LoadStatsResponse) -> None:
        self.answers.append(response)

    def peer(self) -> str:
        return self._peer


class Desk:
    """The service, and what it has handed over."""

    def __init__(self) -> None:
        self.batches: list[list[LoadReported]] = []
        self.pools = {"pool", "other"}
        self.service = LrsService(self._take, is_pool=self.pools.__contains__)

    def _take(self, loads: Sequence[LoadReported]) -> None:
        self.batches.append(list(loads))

    def last(self) -> dict[str, dict[str, int]]:
        """Node and pool → what is in flight, of the last batch."""
        return {f"{load.node} {load.pool}": dict(load.in_flight) for load in self.batches[-1]}


async def test_the_first_request_is_answered_with_what_to_report() -> None:
    desk = Desk()
    reporter = Reporter(desk.service, "n1")
    await reporter.report()
    await reporter.report()
    (answer,) = reporter.answers
    assert answer.send_all_clusters
    assert answer.report_endpoint_granularity
    assert answer.load_reporting_interval.ToTimedelta().total_seconds() == 0.25
    assert desk.batches == []
    await reporter.hang_up()


async def test_pools_are_reported_and_nothing_else() -> None:
    desk = Desk()
    reporter = Reporter(desk.service, "n1")
    await reporter.report(
        pool={"10.0.0.1 8000": (3, 7, 4, 1), "::1 8001": (0, 1, 1, 0), "pipe /x": (1, 1, 1, 1)},
        trimtab_xds={"127.0.0.1 18000": (1, 1, 0, 0)},
    )
    assert desk.last() == {"n1 pool": {"10.0.0.1:8000": 3, "[::1]:8001": 0}}
    await reporter.hang_up()


async def test_endpoints_that_are_left_out_are_idle_and_the_cluster_is_still_reported() -> None:
    desk = Desk()
    reporter = Reporter(desk.service, "n1")
    await reporter.report(pool={"10.0.0.1 8000": (3, 3, 0, 0), "10.0.0.2 8000": (1, 1, 0, 0)})
    await reporter.report(pool={"10.0.0.1 8000": (2, 0, 1, 0)})
    assert desk.last() == {"n1 pool": {"10.0.0.1:8000": 2}}
    await reporter.report(pool={})
    assert desk.last() == {"n1 pool": {}}
    await reporter.hang_up()


async def test_the_clusters_of_a_pools_length_classes_are_summed() -> None:
    desk = Desk()
    reporter = Reporter(desk.service, "n1")
    await reporter.report(
        **{
            "pool/short": {"10.0.0.1 8000": (3, 3, 0, 0), "10.0.0.2 8000": (1, 1, 0, 0)},
            "pool/long": {"10.0.0.1 8000": (2, 2, 0, 0)},
            "other": {"10.0.0.1 8000": (1, 1, 0, 0)},
        }
    )
    assert desk.last() == {"n1 pool": {"10.0.0.1:8000": 5, "10.0.0.2:8000": 1}, "n1 other": {"10.0.0.1:8000": 1}}
    assert [load.pool for load in desk.batches[-1]] == ["pool", "other"]
    await reporter.hang_up()


async def test_the_end_of_a_stream_is_no_report() -> None:
    desk = Desk()
    reporter = Reporter(desk.service, "n1")
    await reporter.report(pool={"10.0.0.1 8000": (3, 3, 0, 0)}, other={"10.0.0.1 8000": (1, 1, 0, 0)})
    await reporter.hang_up()
    cancelled = Reporter(desk.service, "n2")
    await cancelled.report(pool={"10.0.0.1 8000": (3, 3, 0, 0)})
    cancelled.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled.task
    assert len(desk.batches) == 2


async def test_a_pool_that_is_gone_is_not_reported_any_more() -> None:
    desk = Desk()
    reporter = Reporter(desk.service, "n1")
    await reporter.report(pool={"10.0.0.1 8000": (3, 3, 0, 0)}, other={"10.0.0.1 8000": (1, 1, 0, 0)})
    desk.pools.discard("other")
    await reporter.report(pool={}, other={"10.0.0.1 8000": (1, 0, 0, 0)})
    assert desk.last() == {"n1 pool": {}}
    await reporter.hang_up()


async def test_envoys_of_one_name_do_not_overwrite_each_other(caplog: pytest.LogCaptureFixture) -> None:
    desk = Desk()
    first, second = Reporter(desk.service, "n1"), Reporter(desk.service, "n1")
    await first.report(pool={"10.0.0.1 8000": (3, 3, 0, 0)})
    await second.report(pool={"10.0.0.1 8000": (5, 5, 0, 0)})
    assert desk.last() == {"n1#2 pool": {"10.0.0.1:8000": 5}}
    assert "several Envoys report load as 'n1'" in caplog.text
    await second.hang_up()
    third = Reporter(desk.service, "n1")
    await third.report(pool={"10.0.0.1 8000": (1, 1, 0, 0)})
    assert desk.last() == {"n1#2 pool": {"10.0.0.1:8000": 1}}
    for reporter in (first, third):
        await reporter.hang_up()


async def test_an_envoy_without_a_name_is_called_by_its_address() -> None:
    desk = Desk()
    reporter = Reporter(desk.service, "", peer="ipv4:10.0.0.9:40000")
    await reporter.report(pool={"10.0.0.1 8000": (1, 1, 0, 0)})
    assert desk.last() == {"ipv4:10.0.0.9:40000 pool": {"10.0.0.1:8000": 1}}
    await reporter.hang_up()


async def test_closing_ends_open_and_new_streams() -> None:
    desk = Desk()
    old = Reporter(desk.service, "n1")
    await old.report(pool={"10.0.0.1 8000": (1, 1, 0, 0)})
    desk.service.close()
    new = Reporter(desk.service, "n2")
    await asyncio.wait_for(asyncio.gather(old.task, new.task), 1)
    assert len(desk.batches) == 1
