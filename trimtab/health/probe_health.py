"""Whether an endpoint generates at all: up, suspect, down or half-open, by probes and by counters that stand still."""

from dataclasses import dataclass
from enum import StrEnum
from math import inf

from pydantic import BaseModel, ConfigDict

from trimtab.endpoint.snapshot import EndpointView
from trimtab.health.state import ProbeView, State
from trimtab.observation.kinds import Probed, ProbeResult

# An engine that says it is idle so long after work was sent to it knows nothing of that work: it hangs, and what it
# shows is from before. The time is that of a reading and of a connection.
_UNAWARE_S = 5.0


class Cause(StrEnum):
    """What speaks against an endpoint."""

    SILENT = "silent"  # a probe got no token
    WRONG = "wrong"  # a probe got an answer that is of no use
    FROZEN = "frozen"  # its counters stand still


@dataclass(frozen=True, slots=True)
class Watch:
    """What a pool's endpoints are watched by."""

    probing: bool = False
    frozen_s: float = 0.0  # counters that stand still for so long are a failure signal; 0: never


class ProbeHealthMemory(BaseModel):
    """What is kept over a restart of an endpoint that was out, or half-open."""

    model_config = ConfigDict(frozen=True)

    is_down: bool
    cause: Cause
    why: str


class ProbeHealth:
    """One endpoint's state: one failure signal makes it suspect, the next one puts it out.

    Whatever shows that it generates takes back what silence said: a probe's token, the first token of an attempt, a
    counter that moves. A wrong answer is only taken back by a right one.
    """

    __slots__ = ("_alive_at", "_cause", "_last", "_since", "_unaware_since", "_why", "state")

    def __init__(self) -> None:
        self.state = State.UP
        self._since = -inf  # of the state
        self._cause = Cause.SILENT  # of a state that is not up, as the next
        self._why = ""
        self._alive_at = -inf  # when it was last seen to generate
        self._last: Probed | None = None
        self._unaware_since: float | None = None

    @property
    def reason(self) -> str:
        """Why it is not up, in a line; empty if it is."""
        match self.state:
            case State.UP:
                return ""
            case State.HALF_OPEN:
                return f"{State.HALF_OPEN}: it was down ({self._why}); the next token decides"
            case _:
                return f"{self.state}: {self._why}"

    def probed(self, probed: Probed) -> None:
        """Take in what a probe found."""
        self._last = probed
        match probed.result:
            case ProbeResult.TOKEN:
                self._alive_at = max(self._alive_at, probed.at)
                self._better(probed.at, probed.started_at)
            case ProbeResult.SILENT if self._alive_at < probed.started_at:
                self._worse(probed.at, Cause.SILENT, f"a probe: {probed.reason}")
            case ProbeResult.WRONG:
                self._worse(probed.at, Cause.WRONG, f"a probe: {probed.reason}")
            case _:
                pass  # undecided, or silent only because it was at work for others

    def token_seen(self, at: float, started_at: float) -> None:
        """An attempt that was sent at `started_at` showed its first token."""
        self._alive_at = max(self._alive_at, at)
        if self._cause is not Cause.WRONG and at > self._since:
            self._better(at, started_at)

    def watch(self, now: float, view: EndpointView, watch: Watch) -> None:
        """Draw what follows from the engine's own numbers as they are now."""
        if not watch.probing and self._cause is not Cause.FROZEN:
            self._better(now)  # what put it out is asked no longer
        if view.moved_at is not None and view.moved_at > self._alive_at:
            self._alive_at = view.moved_at
            if self._cause is not Cause.WRONG and view.moved_at > self._since:
                self._better(view.moved_at)
        self._count_frozen(now, view, watch.frozen_s)
        idle = view.signals.running == 0 and not view.signals.waiting
        if view.in_flight and idle:
            self._unaware_since = now if self._unaware_since is None else self._unaware_since
        else:
            self._unaware_since = None

    def view(self, now: float) -> ProbeView:
        last = self._last
        return ProbeView(
            state=self.state,
            by_probe=self._cause is not Cause.FROZEN,
            alive_at=None if self._alive_at == -inf else self._alive_at,
            unaware=self._unaware_since is not None and now - self._unaware_since >= _UNAWARE_S,
            at=last.at if last else None,
            result=last.result if last else None,
            ttft_s=last.ttft_s if last else None,
            reason=last.reason if last else "",
        )

    def dump(self) -> ProbeHealthMemory | None:
        if self.state not in (State.DOWN, State.HALF_OPEN):
            return None
        return ProbeHealthMemory(is_down=self.state is State.DOWN, cause=self._cause, why=self._why)

    @classmethod
    def restore(cls, now: float, memory: ProbeHealthMemory | None) -> "ProbeHealth":
        """Go on where `remember` left off; only what is seen from now on changes it."""
        probe_health = cls()
        if memory is not None:
            probe_health.state = State.DOWN if memory.is_down else State.HALF_OPEN
            probe_health._since, probe_health._cause, probe_health._why = now, memory.cause, memory.why
        return probe_health

    def _count_frozen(self, now: float, view: EndpointView, limit_s: float) -> None:
        # Tokens that clients were seen to get prove a counter wrong.
        frozen_s = 0.0 if view.frozen_s is None else min(view.frozen_s, now - self._alive_at)
        by_this = self._cause is Cause.FROZEN
        if limit_s and frozen_s >= limit_s:
            is_known = (self.state is State.DOWN and not by_this) or (self.state is State.SUSPECT and by_this)
            if not is_known or (by_this and frozen_s >= 2 * limit_s):
                why = f"its counters have stood still for {frozen_s:.0f} s although it has work"
                self._worse(now, Cause.FROZEN, why)
        elif by_this and self.state is not State.UP:
            self._better(now)

    def _worse(self, at: float, cause: Cause, why: str) -> None:
        state = State.SUSPECT if self.state is State.UP else State.DOWN
        if state is not self.state:
            self.state, self._since = state, at
        self._cause, self._why = cause, why

    def _better(self, at: float, started_at: float = -inf) -> None:
        """It was seen to generate at `at`, what was asked of it at `started_at`."""
        match self.state:
            case State.DOWN:
                self.state, self._since = State.HALF_OPEN, at
                self._cause = Cause.SILENT  # tokens count again, even after an answer that was wrong
            case State.SUSPECT:
                self.state, self._since = State.UP, at
            case State.HALF_OPEN if started_at > self._since:
                self.state, self._since = State.UP, at
