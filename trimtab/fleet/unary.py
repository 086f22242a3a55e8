"""How long the first token of a unary answer took, which nobody sees: estimated from what is seen."""

_KEPT = 0.97  # of what was learned, per answer
# Lengths of answers that differ less than this, as a part of their mean, do not tell what a token costs.
_LEAST_SPREAD = 0.3
# Until they do, the first token is taken to cost as much as so many further ones.
_FIRST_IN_GAPS = 10.0
_LEAST_PART = 0.02  # of an answer's time that its first token takes
# An answer whose engine does not count tokens: bytes around its text, and bytes of text for each token.
_ENVELOPE_BYTES = 300
_BYTES_PER_TOKEN = 4.0


def tokens_of(body_bytes: int) -> float:
    """How many tokens a unary answer of a size has, about."""
    return max(1.0, (body_bytes - _ENVELOPE_BYTES) / _BYTES_PER_TOKEN)


class UnaryTimes:
    """The unary answers of one endpoint: how their time grows with their length.

    A line is fitted through times [s] and lengths [tokens], the newer ones counting more. It is pulled towards a guess
    as long as the lengths are alike.
    """

    __slots__ = ("_lengths", "_products", "_squares", "_times", "_weight")

    def __init__(self) -> None:
        self._weight = self._lengths = self._times = self._squares = self._products = 0.0

    def add(self, took_s: float, tokens: float) -> None:
        """Take in an answer."""
        self._weight = _KEPT * self._weight + 1.0
        self._lengths = _KEPT * self._lengths + tokens
        self._times = _KEPT * self._times + took_s
        self._squares = _KEPT * self._squares + tokens * tokens
        self._products = _KEPT * self._products + tokens * took_s

    @property
    def gap_s(self) -> float:
        """Seconds for each token after the first; 0 before the first answer."""
        if not self._weight:
            return 0.0
        length, time_s = self._lengths / self._weight, self._times / self._weight
        variance = max(0.0, self._squares / self._weight - length * length)
        covariance = self._products / self._weight - length * time_s
        prior = (_LEAST_SPREAD * length) ** 2
        guess_s = time_s / (length + _FIRST_IN_GAPS)
        gap_s = (covariance + prior * guess_s) / (variance + prior)
        return min(max(0.0, gap_s), time_s / length)


def ttft_of(took_s: float, tokens: float, gap_s: float) -> float:
    """The time to first token [s] of an answer that took so long, with `gap_s` for each further token."""
    return max(_LEAST_PART * took_s, took_s - gap_s * max(0.0, tokens - 1.0))
