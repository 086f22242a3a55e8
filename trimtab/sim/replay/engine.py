"""A simulated engine on the clock."""

from collections.abc import Callable

from trimtab.sim.batching import EngineModel, Event, Refusal, Sequence
from trimtab.sim.kinds import EngineKind
from trimtab.sim.replay.clock import Clock


class Engine:
    """Runs a model just as often as something happens in it. `on_event` hears of what does, in order.

    `on_event` must not call back into the engine; what it wants done is planned on the clock.
    """

    def __init__(self, clock: Clock, kind: EngineKind, on_event: Callable[[Event], None]) -> None:
        self.model = EngineModel(kind, on_step=self._stepped)
        self.on_step: Callable[[float], None] | None = None  # hears of each step's end, before what happened in it
        self._clock = clock
        self._on_event = on_event
        self._wakes_at: float | None = None
        self._busy_since: float | None = None
        self._busy_s = 0.0

    def submit(self, now: float, prompt_tokens: int, output_tokens: int, tag: object) -> Sequence | Refusal:
        """As `EngineModel.submit`."""
        outcome = self.model.submit(now, prompt_tokens, output_tokens, tag)
        self._follow(now)
        return outcome

    def cancel(self, now: float, sequence: Sequence) -> None:
        """As `EngineModel.cancel`."""
        self.model.cancel(now, sequence)
        self._follow(now)

    def catch_up(self, now: float) -> None:
        """Compute up to `now`, although nothing is due."""
        self._follow(now)

    def busy_s(self, now: float) -> float:
        """For how long it has computed anything, of all time up to `now`."""
        return self._busy_s + (now - self._busy_since if self._busy_since is not None else 0.0)

    def _follow(self, now: float) -> None:
        for event in self.model.advance(now):
            self._on_event(event)
        at = self.model.next_event_at()
        if at is None:
            if self._busy_since is not None:
                self._busy_s += now - self._busy_since
                self._busy_since = None
        elif self._busy_since is None:
            self._busy_since = now
        if at != self._wakes_at:
            self._wakes_at = at
            if at is not None:
                self._clock.call_at(at, self._wake, at)

    def _stepped(self, at: float, decoded: int, prefilled: int) -> None:
        if self.on_step is not None:
            self.on_step(at)

    def _wake(self, now: float, planned: float) -> None:
        if planned == self._wakes_at:
            self._follow(now)
