"""Cool-down: an endpoint that said it was full gets no new work for a while."""

from math import inf
from random import Random

from trimtab.policy.model import Weighting

# A saturation that follows so soon after the last cool-down shows that it was too short.
REPEAT_WITHIN_S = 60.0


class CoolDown:
    """One endpoint's cool-downs. All refusals inside one of them are one event."""

    __slots__ = ("repeats", "until")

    def __init__(self) -> None:
        self.until = -inf
        self.repeats = 0  # cool-downs in a row that were followed by another

    def active(self, now: float) -> bool:
        return now < self.until

    def refused(self, at: float, retry_after_s: float | None, config: Weighting, rng: Random) -> None:
        """The engine said at `at` that it was full. A cool-down under way is at most made longer."""
        if not self.active(at):
            self.repeats = self.repeats + 1 if at <= self.until + REPEAT_WITHIN_S else 0
            length = rng.uniform(config.cool_down_min_s, config.cool_down_max_s)
            # The exponent is bounded because the power would overflow long before the cap is looked at.
            self._extend(at, length * config.cool_down_growth ** min(self.repeats, 64), config)
        if retry_after_s is not None:
            self._extend(at, retry_after_s, config)

    def _extend(self, at: float, length_s: float, config: Weighting) -> None:
        self.until = max(self.until, at + min(length_s, config.cool_down_cap_s))
