"""How much of a pool's work its fallbacks get while part of it, or all, is out."""

from collections.abc import Sequence

from trimtab.decision import PoolDecision
from trimtab.health.state import State
from trimtab.scoring.capacity import capacities_of

# What a pool that is out keeps, or gets as a fallback, while one of its endpoints is half-open: no attempt, no return.
_TRIED_WITH = 0.02


def can_take(decision: PoolDecision | None, failover_below: float) -> float:
    """The part, 0..1, of what comes to a pool that it can take; None is a pool of which nothing is known yet."""
    part = _part_in(decision) if decision else 0.0
    return 1.0 if part > 0 and part >= failover_below else part / (failover_below or 1.0)


def _part_in(decision: PoolDecision) -> float:
    """The part, 0..1, of a pool's capacity whose endpoints are in."""
    capacities = capacities_of([endpoint.view for endpoint in decision.endpoints])
    part = sum(capacities[endpoint.id] for endpoint in decision.endpoints if endpoint.state.counts_as_capacity)
    return part / sum(capacities.values()) if part else 0.0


def wants_exploration(decision: PoolDecision) -> bool:
    """Whether an attempt could bring an endpoint back."""
    return any(endpoint.state is State.HALF_OPEN for endpoint in decision.endpoints)


def takes_over(decision: PoolDecision | None, failover_below: float) -> float:
    """The part, 0..1, of what comes to a fallback that it gets: what it can take, or tries that could bring it back.

    One that nobody asks for by its name would never come back without.
    """
    takes = can_take(decision, failover_below)
    return max(takes, _TRIED_WITH) if decision and wants_exploration(decision) else takes


def last_resort(decisions: Sequence[PoolDecision | None]) -> int:
    """Which of a pool (the first) and its fallbacks gets what none can take: the first that serves some at least.

    None is one of which nothing is known, or that is no pool. If none serves, it is the pool itself.
    """
    return next((number for number, decision in enumerate(decisions) if decision and decision.serves), 0)


class Failover:
    """One pool's split. What it keeps falls at once, and rises slowly: who comes back is not flooded."""

    def __init__(self) -> None:
        self._at = 0.0
        self._keeps: float | None = None

    def split(
        self,
        now: float,
        keeps: float,
        fallbacks: Sequence[float],
        *,
        tries: bool,
        rise_per_s: float,
        last_resort: int = 0,
    ) -> tuple[float, ...]:
        """The parts of the pool itself and of each fallback; they sum to 1.

        `keeps` (0..1) is what the pool can take, `fallbacks` what each can take of what comes to it; what none of them
        takes goes to the part of the number `last_resort`. `tries`: an attempt could bring an endpoint back.
        """
        if self._keeps is not None and keeps > self._keeps:
            keeps = min(keeps, self._keeps + rise_per_s * max(0.0, now - self._at))
        self._at, self._keeps = now, keeps
        if tries:
            keeps = max(keeps, _TRIED_WITH)
        left, parts = 1.0 - keeps, [keeps]
        for takes in fallbacks:
            parts.append(left * takes)
            left -= parts[-1]
        parts[last_resort] += left
        return tuple(parts)
