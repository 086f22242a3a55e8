"""How long the first token of a unary answer took, which nobody sees: estimated from what is seen."""

# Where it is not known what a further token costs, the first one is taken to cost as much as so many of them.
_FIRST_IN_GAPS = 10.0
_LEAST_PART = 0.02  # of an answer's time that its first token takes
# An answer whose engine does not count tokens: bytes around its text, and bytes of text for each token.
_ENVELOPE_BYTES = 300
_BYTES_PER_TOKEN = 4.0


def tokens_of(body_bytes: int) -> float:
    """How many tokens a unary answer of a size has, about."""
    return max(1.0, (body_bytes - _ENVELOPE_BYTES) / _BYTES_PER_TOKEN)


def ttft_of(took_s: float, tokens: float, gap_s: float | None) -> float:
    """The time to first token [s] of a whole answer that took so long.

    `gap_s` is what each further token takes, seconds; None where nobody knows.
    """
    further = max(0.0, tokens - 1.0)
    if gap_s is None:
        return took_s * _FIRST_IN_GAPS / (_FIRST_IN_GAPS + further)
    return max(_LEAST_PART * took_s, took_s - gap_s * further)
