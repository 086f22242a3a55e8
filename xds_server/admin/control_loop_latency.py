"""How long evidence takes to come into force: over the next decision and its push to each Envoy's ACK."""

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from trimtab.observation.kinds import (
    AnswerRead,
    AttemptEnded,
    AttemptStarted,
    FirstToken,
    LoadReported,
    Observation,
    Probed,
    PrometheusSample,
    Rejected,
    SignalsRead,
    StreamRead,
)

# Of an Envoy that answers nothing, the latest so many pushes are remembered.
_UNANSWERED_MAX = 64


@dataclass(frozen=True, slots=True)
class Evidence:
    """The oldest piece of one source that went into a decision."""

    pool: str
    source: str  # see `source_of`
    at: float  # Unix seconds: when it was seen


@dataclass(slots=True)
class _Envoy:
    """What one Envoy has yet to be told, and what it was told and has not answered."""

    due: dict[tuple[str, str], Evidence] = field(default_factory=dict)  # by pool and source
    sent: deque[tuple[str, Sequence[Evidence]]] = field(default_factory=lambda: deque(maxlen=_UNANSWERED_MAX))


class LoopTimes:
    """Follows evidence through decisions and pushes, and hands it out when an Envoy has acknowledged.

    Evidence belongs to the next decision of its pool; if that changes no weight, nothing is on its way and nothing
    is measured. An Envoy counts from its first ACK on: what it is sent before is old news.
    """

    def __init__(self) -> None:
        self._fresh: dict[str, dict[str, Evidence]] = defaultdict(dict)  # since the last step, by pool and source
        self._envoys: dict[str, _Envoy] = {}

    def seen(self, observation: Observation) -> None:
        """An observation was given to its pool."""
        if (source := source_of(observation)) is None:
            return
        oldest = self._fresh[observation.pool].get(source)
        if oldest is None or observation.at < oldest.at:
            self._fresh[observation.pool][source] = Evidence(observation.pool, source, observation.at)

    def decided(self, pool: str, *, changed: bool) -> None:
        """A step took in all that was seen. If it `changed` weights, they are to be pushed."""
        evidence = self._fresh.pop(pool, {})
        if changed:
            for envoy in self._envoys.values():
                for source, piece in evidence.items():
                    # What an earlier decision left here, which this one replaces, is older.
                    envoy.due.setdefault((pool, source), piece)

    def pushed(self, node: str, version: str) -> None:
        """The newest weights are on their way to an Envoy."""
        if (envoy := self._envoys.get(node)) is not None:
            envoy.sent.append((version, tuple(envoy.due.values())))
            envoy.due = {}

    def acked(self, node: str, version: str) -> Sequence[Evidence]:
        """An Envoy has put weights in force. Returns the evidence that came into force with them."""
        return self._answered(self._envoys.setdefault(node, _Envoy()), version)

    def nacked(self, node: str, version: str) -> None:
        """An Envoy has refused weights."""
        if (envoy := self._envoys.get(node)) is not None:
            self._answered(envoy, version)

    def gone(self, node: str) -> None:
        """An Envoy has left."""
        self._envoys.pop(node, None)

    def _answered(self, envoy: _Envoy, version: str) -> Sequence[Evidence]:
        """The evidence of a push and, since one answer may stand for several, of those before it."""
        evidence: list[Evidence] = []
        if any(sent == version for sent, _ in envoy.sent):
            sent = ""
            while sent != version:
                sent, pieces = envoy.sent.popleft()
                evidence += pieces
        return evidence


def source_of(observation: Observation) -> str | None:
    """The channel over which it came: one of a few fixed words. None for what is no evidence of an endpoint."""
    match observation:
        case AttemptStarted() | AttemptEnded():
            return "access_log"
        case Rejected() if not observation.in_stream:
            return "reject"
        case FirstToken() | AnswerRead() | StreamRead() | Rejected():
            return "watch"
        case SignalsRead():
            return observation.source
        case PrometheusSample():
            return "prometheus"
        case LoadReported():
            return "lrs"
        case Probed():
            return "probe"
        case _:
            return None
