"""A client that gives up on a silent endpoint takes its attempt away, but not what it showed."""

from math import exp2

HALF_LIFE_S = 10.0


class AbandonedWaits:
    """The longest wait for a token that was given up, fading, until the endpoint speaks again."""

    __slots__ = ("_at", "_wait_s")

    def __init__(self) -> None:
        self._at = 0.0
        self._wait_s = 0.0

    def gave_up(self, at: float, wait_s: float) -> None:
        if wait_s >= self.wait(at):
            self._at, self._wait_s = at, wait_s

    def token_seen(self, at: float) -> None:
        if at >= self._at:
            self._wait_s = 0.0

    def wait(self, now: float) -> float:
        """What TTFT is at least, by this, in seconds."""
        return self._wait_s * exp2(-max(0.0, now - self._at) / HALF_LIFE_S)
