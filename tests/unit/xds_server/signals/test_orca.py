"""From what Envoy collected of engines' headers to a reading."""

from collections.abc import Iterable

import pytest
from envoy.config.endpoint.v3.load_report_pb2 import EndpointLoadMetricStats
from envoy.service.load_stats.v3.lrs_pb2 import LoadStatsRequest

from trimtab.observation.kinds import LoadReported, Signals, SignalsRead
from xds_server.lrs import LrsService
from xds_server.signals.orca import ORCA, orca_reading

WAITING, KV = "named_metrics.num_requests_waiting", "named_metrics.kv_cache_usage_perc"


def stats(*told: tuple[str, int, float]) -> Iterable[EndpointLoadMetricStats]:
    return [
        EndpointLoadMetricStats(metric_name=name, num_requests_finished_with_metric=count, total_metric_value=total)
        for name, count, total in told
    ]


def test_sums_are_made_means() -> None:
    read = orca_reading(7.0, "p", "10.0.0.1:80", stats((WAITING, 4, 10), (KV, 4, 1.0), ("cpu_utilization", 4, 2)))
    assert read is not None
    assert (read.at, read.pool, read.address, read.source) == (7.0, "p", "10.0.0.1:80", ORCA)
    assert read.signals == Signals(waiting=2.5, kv_usage=0.25)
    assert read.origins == {"waiting": WAITING, "kv_usage": KV}


@pytest.mark.parametrize("told", [[], [("cpu_utilization", 3, 1.0)], [(WAITING, 0, 0.0)]])
def test_nothing_that_we_know_is_no_reading(told: list[tuple[str, int, float]]) -> None:
    assert orca_reading(7.0, "p", "10.0.0.1:80", stats(*told)) is None


@pytest.mark.parametrize("total", [float("nan"), float("inf"), -1.0, 4.4, 55.0])
def test_what_cannot_be_true_is_unknown(total: float) -> None:
    read = orca_reading(7.0, "p", "10.0.0.1:80", stats((KV, 4, total), (WAITING, 4, 8)))
    assert read is not None
    assert (read.signals, list(read.unknown)) == (Signals(waiting=2), ["kv_usage"])


def test_readings_come_beside_the_loads() -> None:
    seen: list[LoadReported | SignalsRead] = []
    service = LrsService(seen.extend, is_pool=lambda name: name == "p")
    report = LoadStatsRequest()
    for cluster_name in ("p", "xds"):
        cluster = report.cluster_stats.add(cluster_name=cluster_name)
        endpoint = cluster.upstream_locality_stats.add().upstream_endpoint_stats.add(total_requests_in_progress=2)
        endpoint.address.socket_address.address, endpoint.address.socket_address.port_value = "10.0.0.1", 80
        endpoint.load_metric_stats.extend(stats((WAITING, 1, 3)))
    service._report("envoy", report)
    load, read = seen
    assert isinstance(load, LoadReported) and load.in_flight == {"10.0.0.1:80": 2}
    assert isinstance(read, SignalsRead) and (read.pool, read.signals) == ("p", Signals(waiting=3))
