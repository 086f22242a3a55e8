"""The length classes of a pool, and how much was sent in each of them."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence

from trimtab.endpoint.snapshot import ClassView


def class_of(up_to_bytes: Sequence[float], prompt_bytes: int | None) -> int:
    """Which class a request is in, by the longest body of each; one without a body is in the shortest."""
    return bisect_left(up_to_bytes, prompt_bytes or 0)


class Classes:
    """What was sent to a pool, class by class. `limits` are names with the longest body [bytes], short to long."""

    def __init__(self, limits: Mapping[str, float]) -> None:
        self.limits = limits
        self._up_to_bytes = tuple(limits.values())
        self._sent = [0] * len(limits)

    def sent(self, prompt_bytes: int | None) -> None:
        """Take in an attempt that was sent."""
        if self.limits:
            self._sent[class_of(self._up_to_bytes, prompt_bytes)] += prompt_bytes or 0

    def view(self) -> tuple[ClassView, ...]:
        return tuple(
            ClassView(name, limit, sent) for (name, limit), sent in zip(self.limits.items(), self._sent, strict=True)
        )
