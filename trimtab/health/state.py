"""The states of an endpoint, and what follows from each: written here once."""

from dataclasses import dataclass
from enum import StrEnum

from trimtab.observation.kinds import ProbeResult


class State(StrEnum):
    """What weighting does with an endpoint, and the word shown for it."""

    UP = "up"
    SLOW_START = "slow-start"  # its score may not rise faster than slow start lets it
    COOLING = "cooling"  # it said it was saturated
    SUSPECT = "suspect"  # one failure signal says that it does not generate; it takes work as ever
    DOWN = "down"  # it does not generate, by probes or by counters that stand still
    FULL = "full"  # KV usage at the limit while another has room
    CONSOLIDATED = "consolidated"  # the whole pool has little to do, and others do its work
    OPEN = "open"  # the breaker is open
    HALF_OPEN = "half-open"
    DRAINING = "draining"  # it, or discovery, said that it is going away, or is not ready
    PANIC = "panic"  # every endpoint would be out, so all are in, by capacity

    @property
    def is_ordinary(self) -> bool:
        """Whether the endpoint gets the share that its score asks for, as far as slow start lets it."""
        return self in _ORDINARY

    @property
    def counts_as_capacity(self) -> bool:
        """Whether a pool can reckon with the endpoint. One that is full or consolidated is not out of order."""
        return self in _CAPACITY

    @property
    def keeps_score(self) -> bool:
        """Whether slow start goes on where it was when the state ends."""
        return self in _NOT_OUT_OF_ORDER

    @property
    def keeps_floor(self) -> bool:
        """Whether the endpoint gets a floor, and no more, even in panic."""
        return self in _AT_THE_FLOOR

    @property
    def may_be_dead(self) -> bool:
        """Whether the endpoint may give no answer at all."""
        return self in _MAY_BE_DEAD

    @property
    def keeps_part_after_panic(self) -> bool:
        """Whether the endpoint keeps a part of its work when panic ends. What does not generate keeps none."""
        return self is not State.DOWN and self not in _NOT_OUT_OF_ORDER


_NOT_OUT_OF_ORDER = frozenset({State.FULL, State.CONSOLIDATED})
_ORDINARY = frozenset({State.UP, State.SLOW_START})
_CAPACITY = _ORDINARY | _NOT_OUT_OF_ORDER | {State.SUSPECT}
_AT_THE_FLOOR = frozenset({State.HALF_OPEN, State.CONSOLIDATED})
_MAY_BE_DEAD = frozenset({State.OPEN, State.DOWN})


@dataclass(frozen=True, slots=True)
class ProbeView:
    """Whether an endpoint generates, and what its last probe found. None is never."""

    state: State = State.UP  # or suspect, down, half-open
    by_probe: bool = True  # False: it is suspect or down by its counters
    alive_at: float | None = None  # when it was last seen to generate, Unix seconds
    unaware: bool = False  # it says that it is idle although it was given work: what it says is old
    at: float | None = None  # of the last probe, Unix seconds
    result: ProbeResult | None = None
    ttft_s: float | None = None
    reason: str = ""  # where the result is no token
