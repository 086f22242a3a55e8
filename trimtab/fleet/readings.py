"""What an engine says of itself, and what its numbers say of a restart."""

from collections.abc import Callable
from dataclasses import replace
from math import inf, isfinite

from trimtab.fleet.observation import Signals

# A kernel reckons a process's start from its boot time, which follows corrections of the clock by a second.
PROCESS_START_JITTER_S = 2.0

_PLAUSIBLE: dict[str, Callable[[float], bool]] = {
    "waiting": lambda x: 0 <= x < inf,
    "running": lambda x: 0 <= x < inf,
    "kv_usage": lambda x: 0 <= x <= 1,
    "generated_tokens": lambda x: 0 <= x < inf,
    "preemptions": lambda x: 0 <= x < inf,
    "process_start": isfinite,
}


def plausible(signals: Signals) -> Signals:
    """The same readings, with those that cannot be true as UNKNOWN."""
    values = {name: getattr(signals, name) for name in _PLAUSIBLE}
    wrong = {name: None for name, value in values.items() if value is not None and not _PLAUSIBLE[name](value)}
    return replace(signals, **wrong) if wrong else signals


class Readings:
    """The latest readings of one incarnation."""

    __slots__ = ("_at", "_signals", "generated_tokens", "preemptions", "process_start")

    def __init__(self) -> None:
        self._at: float | None = None
        self._signals = Signals()
        # The last that was known of what tells a restart; they outlive readings that lack them.
        self.process_start: float | None = None
        self.generated_tokens: float | None = None
        self.preemptions: float | None = None

    def is_news(self, at: float) -> bool:
        """Whether a reading of `at` is newer than the latest."""
        return self._at is None or at > self._at

    def show_restart(self, signals: Signals) -> bool:
        """Whether these readings come from another process than the earlier ones.

        A process start that moves back is no restart: several workers behind one port answer in turn.
        """

        def fell(before: float | None, after: float | None) -> bool:
            return before is not None and after is not None and after < before

        return (
            fell(self.generated_tokens, signals.generated_tokens)
            or fell(self.preemptions, signals.preemptions)
            or (
                self.process_start is not None
                and signals.process_start is not None
                and signals.process_start > self.process_start + PROCESS_START_JITTER_S
            )
        )

    def take(self, at: float, signals: Signals) -> None:
        self._at, self._signals = at, signals
        for name in ("process_start", "generated_tokens", "preemptions"):
            if (value := getattr(signals, name)) is not None:
                setattr(self, name, value)

    def view(self, now: float, stale_after_s: float) -> tuple[Signals, float | None]:
        """The readings, all UNKNOWN once they are stale, and their age [s]."""
        if self._at is None:
            return Signals(), None
        age = max(0.0, now - self._at)
        return (self._signals if age <= stale_after_s else Signals()), age
