"""How discovery does, for Prometheus."""

import time
from collections.abc import Callable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from xds_server.discovery.follower import SourceStatus

_LABELS = ("pool", "source")


class DiscoveryCollector(Collector):
    """Reads the state of the pools' sources when it is asked; pools that the policy lists have no series."""

    def __init__(
        self, statuses: Callable[[], Mapping[str, SourceStatus]], *, now: Callable[[], float] = time.time
    ) -> None:
        self._statuses = statuses
        self._now = now

    def collect(self) -> Iterator[Metric]:
        errors = CounterMetricFamily(
            "trimtab_discovery_errors", "Times that a source was down or made no sense.", labels=_LABELS
        )
        age = GaugeMetricFamily("trimtab_discovery_age_seconds", "Age of a source's last good answer.", labels=_LABELS)
        stale = GaugeMetricFamily(
            "trimtab_discovery_stale", "1 while endpoints are kept that the source does not confirm.", labels=_LABELS
        )
        listed = GaugeMetricFamily("trimtab_discovery_endpoints", "Endpoints that a source lists.", labels=_LABELS)
        for pool, status in sorted(self._statuses().items()):
            where = (pool, status.kind)
            errors.add_metric(where, status.errors)
            if status.answered_at is not None:
                age.add_metric(where, max(0.0, self._now() - status.answered_at))
            stale.add_metric(where, status.stale_since is not None)
            listed.add_metric(where, status.listed)
        yield from (errors, age, stale, listed)
