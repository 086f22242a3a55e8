"""Water filling: work poured over endpoints until all that get some are at one level."""

from collections.abc import Sequence


def pour(work: float, waits: Sequence[float], rates: Sequence[float]) -> list[float]:
    """The part of `work` for each endpoint that levels predicted TTFT.

    `waits` [s] are the levels now, `rates` [work per second] how much work raises an endpoint's level by a second.
    The level L solves Σ max(0, (L - wait)·rate) = work; the parts sum to `work`.
    """
    if not waits:
        return []
    # With no work to come, a trace of it still says where it would go.
    work = max(work, 1e-6)
    width, filled, level = 0.0, 0.0, 0.0
    by_wait = sorted(zip(waits, rates, strict=True))
    for index, (wait, rate) in enumerate(by_wait):
        filled += wait * rate
        width += rate
        level = (work + filled) / width
        if index + 1 == len(by_wait) or level <= by_wait[index + 1][0]:
            break
    return [max(0.0, level - wait) * rate for wait, rate in zip(waits, rates, strict=True)]
