"""Work of attempts that ended early and without output: it counts as under way for as long as an answer takes.

An endpoint that fails fast is always idle. By its load alone it would draw all work.
"""

from trimtab.stats.fading import FadingMean

# How long an answer takes while the pool has given none.
_FIRST_GUESS_S = 1.0
_LONGEST_S = 30.0
_HALF_LIFE_S = 30.0
_MEMORY_S = 600.0
_MAX = 4096


class AnswerTimes:
    """How long a pool's answers with output take, from the attempt's start to its end."""

    def __init__(self) -> None:
        self._mean_s = FadingMean(_HALF_LIFE_S, _MEMORY_S)

    def add(self, at: float, took_s: float) -> None:
        """Take in an answer that ended at `at`."""
        self._mean_s.add(at, took_s)

    def usual_s(self, now: float) -> float:
        """What an answer takes, in seconds, 30 at most."""
        mean_s = self._mean_s.value(now)
        return _FIRST_GUESS_S if mean_s is None else min(mean_s, _LONGEST_S)


class EarlyEnds:
    """The attempts of one endpoint that ended before an answer would have. Times are Unix seconds."""

    __slots__ = ("_held", "prompt_bytes")

    def __init__(self) -> None:
        self._held: dict[str, tuple[float, int]] = {}  # by request: until when, and the size of its prompt
        self.prompt_bytes = 0

    def __len__(self) -> int:
        return len(self._held)

    def add(self, until: float, request_id: str, prompt_bytes: int) -> None:
        """Count an attempt as under way until a time."""
        self.drop(request_id)
        if len(self._held) < _MAX:
            self._held[request_id] = until, prompt_bytes
            self.prompt_bytes += prompt_bytes

    def drop(self, request_id: str) -> None:
        """Count an attempt no longer: its answer had output after all."""
        _, prompt_bytes = self._held.pop(request_id, (0.0, 0))
        self.prompt_bytes -= prompt_bytes

    def tidy(self, now: float) -> None:
        """Let go of those whose answers would have ended by now."""
        for request_id in [request_id for request_id, (until, _) in self._held.items() if until <= now]:
            self.drop(request_id)
