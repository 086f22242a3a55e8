"""Whether the observers are alive: each of them is heard of twice a second."""

OVERDUE_S = 1.5


class Heartbeats:
    """When each observer was last heard of. An observer that is stopped, or starved of CPU, is overdue."""

    def __init__(self) -> None:
        self._heard_at: dict[str, float] = {}

    def heard(self, now: float, observer: str) -> bool:
        """Note a sign of life. False if it was awaited: the observer is new, or was overdue."""
        last = self._heard_at.get(observer)
        self._heard_at[observer] = now
        return last is not None and now - last <= OVERDUE_S

    def gone(self, observer: str) -> None:
        """It is not awaited any more."""
        self._heard_at.pop(observer, None)

    def overdue(self, now: float) -> bool:
        """Whether one is."""
        return any(now - at > OVERDUE_S for at in self._heard_at.values())
