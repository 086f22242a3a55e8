"""Faults that Envoy makes itself, so that an operator sees what clients and alarms do then.

The filter is always in the listener, which may not change while streams run, and does nothing by itself; the routes
of a pool that is drilled tell it what to do. It stands before an endpoint is chosen: no endpoint is blamed.
"""

from datetime import timedelta

from envoy_data_plane.envoy.extensions.filters.common.fault.v3 import FaultDelay
from envoy_data_plane.envoy.extensions.filters.http.fault.v3 import FaultAbort, HttpFault
from envoy_data_plane.envoy.extensions.filters.network.http_connection_manager.v3 import HttpFilter
from envoy_data_plane.google.protobuf import Any

from trimtab.policy.model import FaultInjection
from xds_server.config.upstream_filters import fraction

FAULT_FILTER = "envoy.filters.http.fault"


def fault_filter() -> HttpFilter:
    """The filter without a fault."""
    return HttpFilter(name=FAULT_FILTER, typed_config=Any.pack(HttpFault(delay=_delay(1, 0))))


def faults(fault_injection: FaultInjection) -> dict[str, Any]:
    """What a pool's routes tell the filter; nothing if no request is struck."""
    if not (fault_injection.abort_percent or fault_injection.delay_percent):
        return {}
    fault = HttpFault(
        abort=FaultAbort(http_status=fault_injection.abort_status, percentage=fraction(fault_injection.abort_percent)),
        delay=_delay(fault_injection.delay_ms, fault_injection.delay_percent),
    )
    return {FAULT_FILTER: Any.pack(fault)}


def _delay(milliseconds: int, percent: float) -> FaultDelay:
    return FaultDelay(fixed_delay=timedelta(milliseconds=milliseconds), percentage=fraction(percent))
