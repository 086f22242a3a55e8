"""Virtual time."""

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

Action = Callable[[float, Any], None]


class Clock:
    """Calls what was planned, in the order of time; what falls on one moment, in the order in which it was planned.

    Seconds from 0 on. An action is called with its time and what it was planned with.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self._plans: list[tuple[float, int, Action, Any]] = []
        self._count = 0

    def call_at(self, at: float, action: Action, subject: Any = None) -> None:
        """Plan a call; a time that has passed is now."""
        self._count += 1
        heappush(self._plans, (max(at, self.now), self._count, action, subject))

    def run(self, goes_on: Callable[[], bool]) -> None:
        """Call what is planned while `goes_on()`, or until nothing is."""
        plans = self._plans
        while plans and goes_on():
            at, _, action, subject = heappop(plans)
            self.now = at
            action(at, subject)
