"""Envoy's own count of what is in flight to an endpoint (LRS), against which leases are held."""

from collections import deque

NODE_SILENT_S = 3.0  # an Envoy that has not reported for so long is gone, or idle
LASTING_S = 1.0  # a difference that is always there for so long is one
# A report is compared only when the starts and ends of its moment have arrived, or each flush of the access
# log would look like a difference.
SETTLE_S = 0.25
_COMPARE_EVERY_S = 0.05


class LoadReports:
    """The latest report of every Envoy, and how the leases differed from their sum."""

    def __init__(self) -> None:
        self._nodes: dict[str, tuple[float, int]] = {}
        self._unsettled: deque[tuple[float, int]] = deque()  # at, in flight over all nodes
        self._differences: deque[tuple[float, int]] = deque()  # at, leases minus reports

    def take(self, at: float, node: str, in_flight: int) -> None:
        known = self._nodes.get(node)
        if known is not None and at < known[0]:
            return
        self._nodes[node] = (at, max(0, in_flight))
        if not self._unsettled or at - self._unsettled[-1][0] >= _COMPARE_EVERY_S:
            self._unsettled.append((at, self.total(at) or 0))

    def total(self, now: float) -> int | None:
        """Requests in flight by the reports, over all Envoys; None if none has reported of late."""
        for node in [name for name, (at, _) in self._nodes.items() if at < now - NODE_SILENT_S]:
            del self._nodes[node]
        return sum(in_flight for _, in_flight in self._nodes.values()) if self._nodes else None

    def settled(self, now: float) -> list[tuple[float, int]]:
        """The moments, and the reported count of each, that may be compared now."""
        ready = []
        while self._unsettled and self._unsettled[0][0] <= now - SETTLE_S:
            ready.append(self._unsettled.popleft())
        if not ready and not self._unsettled and self.total(now) == 0:
            ready.append((now - SETTLE_S, 0))  # an Envoy says only once that an endpoint is idle
        return ready

    def differ(self, at: float, difference: int) -> None:
        """Note that the leases were `difference` more than was reported."""
        if self._differences and at - self._differences[-1][0] > LASTING_S:
            self.start_over()  # nothing was reported in between
        self._differences.append((at, difference))
        while len(self._differences) > 1 and self._differences[1][0] <= at - LASTING_S:
            self._differences.popleft()

    def lasting_difference(self, now: float) -> int:
        """What leases were above (+) or below (-) the reports all the time for `LASTING_S`; else 0."""
        differences = [difference for _, difference in self._differences]
        if not differences or self._differences[-1][0] - self._differences[0][0] < LASTING_S or self.total(now) is None:
            return 0
        return max(0, min(differences)) + min(0, max(differences))

    def start_over(self) -> None:
        """The leases were corrected: what was noted before no longer holds."""
        self._differences.clear()
