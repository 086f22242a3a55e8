"""Whether the ext_proc workers are alive: each of them is heard of twice a second."""

OVERDUE_S = 1.5


class Heartbeats:
    """When each ext_proc worker was last heard of. One that is stopped, or starved of CPU, is overdue."""

    def __init__(self) -> None:
        self._heard_at: dict[str, float] = {}

    def heard(self, now: float, worker: str) -> bool:
        """Note that it was heard of. False if it was awaited: the ext_proc worker is new, or was overdue."""
        last = self._heard_at.get(worker)
        self._heard_at[worker] = now
        return last is not None and now - last <= OVERDUE_S

    def gone(self, worker: str) -> None:
        """It is not awaited any more."""
        self._heard_at.pop(worker, None)

    def overdue(self, now: float) -> bool:
        """Whether one is."""
        return any(now - at > OVERDUE_S for at in self._heard_at.values())
