"""Envoy's own counts of what is in flight (LRS), against which leases are held."""

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf

from trimtab.observation.kinds import LoadReported

# An Envoy reports four times a second. When it does not, its streams may well run on: how many is unknown.
NODE_SILENT_S = 1.0
NODE_GONE_S = 60.0  # an Envoy that is silent for so long has ended
LASTING_S = 1.0  # a difference that is always there for so long is one
# A report is compared only when the starts and ends of its moment have arrived, or each flush of the access
# log would look like a difference.
SETTLE_S = 0.25
# A changed cluster waits at most 2 s for its endpoints before Envoy puts it in place of the old one.
REPLACE_S = 5.0
# An answer that takes longer is rarer than an end that was lost.
UNCOUNTED_S = 600.0
_COMPARE_EVERY_S = 0.2


@dataclass(frozen=True, slots=True)
class Moment:
    """What all Envoys together had in flight. Their reports are not of quite the same time."""

    oldest: float
    newest: float
    since: float  # what started before may run without being counted
    in_flight: Mapping[str, int]  # by address; those left out are idle


class LoadReports:
    """The latest report of every Envoy about one pool."""

    def __init__(self) -> None:
        self._nodes: dict[str, LoadReported] = {}
        self._changed_at = -inf  # when the cluster was
        self._replaced_at = -inf  # when the last Envoy heard of that
        self._unsettled: deque[Moment] = deque()

    def cluster_changed(self, at: float) -> None:
        """From soon after `at` Envoys count anew, while what was in flight runs on."""
        self._changed_at = at
        self._replaced_at = max(self._replaced_at, at)

    def take(self, report: LoadReported) -> None:
        known = self._nodes.get(report.node)
        if known is not None:
            if report.at < known.at:
                return
            if known.at < self._changed_at:  # if it was cut off meanwhile, it hears of the change only now
                self._replaced_at = max(self._replaced_at, report.at)
        self._nodes[report.node] = report
        if self._unsettled and report.at - self._unsettled[-1].newest < _COMPARE_EVERY_S:
            return
        if reports := self._known(report.at):
            total: Counter[str] = Counter()
            for one in reports:
                total.update(one.in_flight)
            since = self._replaced_at + REPLACE_S if report.at < self._replaced_at + UNCOUNTED_S else -inf
            self._unsettled.append(Moment(min(one.at for one in reports), report.at, since, total))

    def in_flight(self, now: float, address: str) -> int | None:
        """Requests in flight to an endpoint, over all Envoys; None where one does not tell."""
        reports = self._known(now)
        return sum(one.in_flight.get(address, 0) for one in reports) if reports else None

    def settled(self, now: float) -> list[Moment]:
        """The moments that may be compared now, each given once."""
        ready = []
        while self._unsettled and self._unsettled[0].newest <= now - SETTLE_S:
            ready.append(self._unsettled.popleft())
        return ready

    def _known(self, now: float) -> list[LoadReported]:
        """The latest reports, if every Envoy that has not ended has one; else none."""
        for node in [node for node, report in self._nodes.items() if report.at < now - NODE_GONE_S]:
            del self._nodes[node]
        reports = list(self._nodes.values())
        return reports if all(report.at >= now - NODE_SILENT_S for report in reports) else []


class Differences:
    """How the leases of one endpoint differed from the reports recently."""

    __slots__ = ("_line",)

    def __init__(self) -> None:
        self._line: list[tuple[float, int]] = []  # few: an empty deque is larger

    def note(self, at: float, difference: int) -> None:
        """The leases were `difference` more than was reported."""
        if self._line and at - self._line[-1][0] > LASTING_S:
            self.start_over()  # nothing was reported in between
        self._line.append((at, difference))
        while len(self._line) > 1 and self._line[1][0] <= at - LASTING_S:
            del self._line[0]

    def lasting(self, now: float) -> int:
        """What leases were above (+) or below (-) the reports all the time for `LASTING_S`; else 0."""
        if not self._line or self._line[-1][0] < now - NODE_SILENT_S - SETTLE_S:
            return 0
        if self._line[-1][0] - self._line[0][0] < LASTING_S:
            return 0
        differences = [difference for _, difference in self._line]
        return max(0, min(differences)) + min(0, max(differences))

    def start_over(self) -> None:
        """The leases were corrected: what was noted before no longer holds."""
        self._line.clear()
