"""Consolidation: while a whole pool has little to do, its work is kept together on few endpoints."""

from collections.abc import Mapping
from math import inf

from trimtab.endpoint.snapshot import EndpointId
from trimtab.policy.prometheus import CustomSignal

# An endpoint more is consolidated when the others have shown for so long what they do with its work.
DWELL_S = 60.0


class Consolidation:
    """The endpoints of a pool that are consolidated: they keep their floor, and others do their work."""

    def __init__(self) -> None:
        self._consolidated: frozenset[EndpointId] = frozenset()
        self._changed_at = -inf

    def consolidate(
        self, now: float, usage: Mapping[EndpointId, float | None], signal: CustomSignal, is_whole: bool
    ) -> frozenset[EndpointId]:
        """Those that are consolidated from `now` on. `usage` is what `signal` says of each endpoint; None is UNKNOWN.

        One more is consolidated while all that work are below the threshold. All come back at once when one of these is
        at `until` again or UNKNOWN, or when an endpoint is out for another reason (the pool is not `is_whole`).
        """
        consolidated = self._consolidated & usage.keys()
        working = {id: value for id, value in usage.items() if id not in consolidated}
        if not is_whole or not all(_is_low(signal, value, was_low=bool(consolidated)) for value in working.values()):
            self._take(now, frozenset())
        elif (
            len(working) > 1
            and now >= self._changed_at + DWELL_S
            and all(_is_low(signal, value, was_low=False) for value in usage.values())
        ):
            self._take(now, consolidated | {min(working, key=lambda id: (working[id] or 0.0, id))})
        return self._consolidated & usage.keys()

    def _take(self, now: float, consolidated: frozenset[EndpointId]) -> None:
        if consolidated != self._consolidated:
            self._consolidated, self._changed_at = consolidated, now


def _is_low(signal: CustomSignal, value: float | None, *, was_low: bool) -> bool:
    return value is not None and signal.is_past(value, was_past=was_low)
