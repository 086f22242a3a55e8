"""What engines say of themselves in their answers' headers, which Envoy collects into its load reports (ORCA).

The header is asked for on answers that are not streamed: vLLM puts it on no other. Envoy takes it out of the answer and
reports, per endpoint, how often a number was told and their sum.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from envoy.config.endpoint.v3.load_report_pb2 import EndpointLoadMetricStats

from trimtab.endpoint.engine_readings import fault_of
from trimtab.observation.kinds import Signals, SignalsRead

ORCA = "orca"

REQUEST_HEADER = "endpoint-load-metrics-format"
REQUEST_VALUE = "TEXT"  # a third of the size of JSON
RESPONSE_HEADER = "endpoint-load-metrics"
REPORTED = "named_metrics.*"

# As vLLM names them (vllm/entrypoints/serve/instrumentator, seen on 0.32).
_SIGNALS: Mapping[str, str] = {
    "named_metrics.num_requests_waiting": "waiting",
    "named_metrics.kv_cache_usage_perc": "kv_usage",
}


def orca_reading(at: float, pool: str, address: str, stats: Iterable[EndpointLoadMetricStats]) -> SignalsRead | None:
    """The means of what an endpoint told since the last report; None if it told nothing that we know."""
    told: dict[str, float] = defaultdict(float)
    answers: dict[str, int] = defaultdict(int)
    for stat in stats:
        told[stat.metric_name] += stat.total_metric_value  # an endpoint is in several clusters where there are classes
        answers[stat.metric_name] += stat.num_requests_finished_with_metric
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    unknown: dict[str, str] = {}
    for name, signal in _SIGNALS.items():
        if not answers[name]:
            continue
        value = told[name] / answers[name]
        if fault := fault_of(signal, value):
            unknown[signal] = f"{name}: {fault}"
        else:
            values[signal], origins[signal] = value, name
    if not origins and not unknown:
        return None
    return SignalsRead(at, pool, address, Signals(**values), source=ORCA, origins=origins, unknown=unknown)
