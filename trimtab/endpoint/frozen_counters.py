"""Whether an engine's own numbers move while it says that it has work."""

from trimtab.observation.kinds import Signals


class FrozenCounters:
    """What a working engine cannot help but change: generated tokens, tokens of prompts, and the KV cache in use.

    The cache is among them for the sake of long prompts. They generate nothing until they are computed, but fill it
    chunk by chunk.
    """

    __slots__ = ("_at", "_still_since", "_values", "moved_at")

    def __init__(self) -> None:
        self.moved_at: float | None = None  # of the last reading that showed it
        self._at = 0.0  # of the last reading
        self._still_since: float | None = None
        self._values: tuple[float | None, ...] = ()

    def take(self, at: float, signals: Signals) -> None:
        """Take in a reading. One that lacks the generated tokens, or what the engine has to do, says nothing."""
        work = [count for count in (signals.running, signals.waiting) if count is not None]
        if signals.generated_tokens is None or not work:
            return
        values = (signals.generated_tokens, signals.prompt_tokens, signals.kv_usage)
        pairs = zip(self._values, values, strict=False)  # there are none before the first reading
        moved = any(before is not None and after is not None and before != after for before, after in pairs)
        if moved:
            self.moved_at = at
        if moved or not any(work) or self._still_since is None:
            self._still_since = at
        self._at, self._values = at, values

    def frozen_s(self, now: float, stale_after_s: float) -> float | None:
        """For how long [s] nothing had moved at the last reading; 0 without work. None: it is not known now."""
        if self._still_since is None or now - self._at > stale_after_s:
            return None
        return self._at - self._still_since
