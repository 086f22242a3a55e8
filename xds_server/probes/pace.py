"""When an endpoint is probed next."""

from math import inf

from trimtab.decision import EndpointDecision
from trimtab.health.state import State

# What is undecided is probed again after this part of the interval.
_SOON = 0.25


def probe_pause_s(endpoint: EndpointDecision | None, now: float, interval_s: float) -> float:
    """How long [s] an endpoint is let alone before it is probed, or looked at again; 0: it is to be probed now."""
    soon_s = _SOON * interval_s
    if endpoint is None or endpoint.state is State.DRAINING:
        return soon_s
    probe = endpoint.probe
    last_at = -inf if probe.at is None else probe.at
    if probe.state is State.DOWN:
        return max(0.0, last_at + interval_s - now)
    if probe.state is State.HALF_OPEN or (probe.state is State.SUSPECT and probe.by_probe):
        # Not only while it is idle: what came to it meanwhile may hang there.
        return max(0.0, last_at + soon_s - now)
    view = endpoint.view
    if view.signals.running or view.signals.waiting:
        return soon_s
    if (view.in_flight or view.in_flight_reported) and not probe.unaware:
        return soon_s
    seen_at = last_at if probe.alive_at is None else max(last_at, probe.alive_at)
    return max(0.0, seen_at + interval_s - now)
