"""Slow start: a score falls at once and rises slowly, so an endpoint that comes back is not flooded."""

# Where a new endpoint, or a new incarnation, begins: it is not known to be bad, but its caches are cold.
NEW_ENDPOINT = 30.0


class SlowStart:
    """The highest score that one endpoint may show."""

    __slots__ = ("_at", "score")

    def __init__(self, at: float, score: float) -> None:
        self._at = at
        self.score = score  # as it was last let through

    def let(self, now: float, score: float, points_per_s: float) -> float:
        """Let a score through as far as it may have risen by `now`."""
        self.score = min(score, self.score + points_per_s * max(0.0, now - self._at))
        self._at = now  # which may be before `hold` expected it: a token has closed the breaker
        return self.score

    def follow(self, now: float, score: float) -> float:
        """Let a score through as it is."""
        self.score, self._at = score, now
        return score

    def hold(self, until: float) -> None:
        """Begin again from nothing at `until`."""
        self.score, self._at = 0.0, until
