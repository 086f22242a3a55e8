"""How many bytes of a request's body come to one prompt token: what was sent, against what engines count."""

from collections import deque
from statistics import median

# One prompt that an engine counts in the next window instead of this one must not matter much.
_WINDOW_PROMPTS = 50
_WINDOWS = 15
_LEAST_WINDOWS = 3
# Outside of this it was no text: base64 of an image has hundreds of bytes for a token, and an engine that also works
# for others counts tokens of which no byte was seen here.
LEAST, MOST = 1.0, 16.0
_OTHERS = 1.1  # an engine that counts so many times the prompts that it was given here works for others too


class PromptMeter:
    """One incarnation's prompts: the bytes that it was given, beside the tokens that it says it took in.

    They are compared over windows of fifty prompts, from one reading of the engine to another.
    """

    __slots__ = ("_bytes", "_prompts", "_requests", "_tokens")

    def __init__(self) -> None:
        # At the last window's end; None: not read yet, or of no use.
        self._tokens: float | None = None
        self._requests: float | None = None
        self._prompts = self._bytes = 0  # since then

    def served(self, prompt_bytes: int | None) -> None:
        """A prompt was taken in; None: its length is unknown, and so what the engine counts in this window is not
        all of known length."""
        self._prompts += 1
        if prompt_bytes is None:
            self._tokens = None
        self._bytes += prompt_bytes or 0

    def counted(self, tokens: float | None, requests: float | None) -> float | None:
        """Take in the engine's counters of prompt tokens, and of requests where it has one.

        The bytes for each token of the window that ends here; None where it goes on, or tells nothing.
        """
        if tokens is None:
            return None
        if self._tokens is None or tokens < self._tokens:
            self._begin(tokens, requests)
            return None
        if self._prompts < _WINDOW_PROMPTS:
            return None
        gained, given = tokens - self._tokens, self._bytes
        others = (
            requests is not None and self._requests is not None and requests - self._requests > _OTHERS * self._prompts
        )
        self._begin(tokens, requests)
        return given / gained if gained > 0 and not others else None

    def _begin(self, tokens: float | None, requests: float | None) -> None:
        self._tokens, self._requests = tokens, requests
        self._prompts = self._bytes = 0


class TokenRatio:
    """A pool's bytes per prompt token: the median of the latest windows of all its engines, which share a model."""

    __slots__ = ("_windows", "value")

    def __init__(self) -> None:
        self._windows: deque[float] = deque(maxlen=_WINDOWS)
        self.value: float | None = None  # None: unknown, too little was compared

    def add(self, bytes_per_token: float) -> None:
        """Take in what one window of one engine says; what cannot be text is left out."""
        if LEAST <= bytes_per_token <= MOST:
            self._windows.append(bytes_per_token)
            self.value = median(self._windows) if len(self._windows) >= _LEAST_WINDOWS else None

    def restore(self, bytes_per_token: float) -> None:
        """Begin with what was known before."""
        for _ in range(_LEAST_WINDOWS):
            self.add(bytes_per_token)
