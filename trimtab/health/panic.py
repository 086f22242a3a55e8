"""Panic: where no endpoint of a pool may take work, all that might answer take it, by their capacities."""

from trimtab.health.state import State

# An endpoint that refuses or fails again keeps this part of its work, at each step,
_LESS = 0.5
# and none once it is below this part.
_LEAST = 0.05


class Panic:
    """How much of its work one endpoint keeps in panic, and after it: `part` is 0 (none) to 1.

    When the first endpoint is back, the others do not stop at once. That one alone would take all work, be flooded, and
    all would be out again. An endpoint loses its part by going on to refuse or to fail.
    """

    __slots__ = ("_is_accused", "part")

    def __init__(self, part: float = 0.0) -> None:
        self.part = part
        self._is_accused = False  # since the last step

    def accuse(self) -> None:
        """The endpoint has refused or failed again."""
        self._is_accused = True

    def step(self, state: State | None, is_needed: bool) -> None:
        """Go on by a step. `state` is why the endpoint takes no work, None if it takes some; `is_needed`: panic."""
        if is_needed:
            self.part = 1.0
        elif state is None or not state.keeps_part_after_panic:
            self.part = 0.0
        elif self._is_accused:
            less = self.part * _LESS
            self.part = less if less >= _LEAST else 0.0
        self._is_accused = False
