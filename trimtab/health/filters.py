"""Which endpoints take no new work, and why: named filters in one ordered list.

The first filter that objects to an endpoint decides its state, so the order of `default_filters` is the one place where
precedence is decided. To add a rule, write a filter and put it into that list.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from trimtab.endpoint.attempt import AttemptOutcome
from trimtab.endpoint.snapshot import EndpointId, EndpointView
from trimtab.health.breaker import BreakerState
from trimtab.health.consolidation import Consolidation
from trimtab.health.endpoint_health import EndpointHealth
from trimtab.health.state import State
from trimtab.policy.model import Weighting
from trimtab.policy.prometheus import CustomSignal

NO_LONG_PROMPTS = "no_long_prompts"  # a custom signal's action


@dataclass(frozen=True, slots=True)
class Objection:
    """Why an endpoint gets less than its share: nothing at all, or the floor."""

    state: State
    until: float | None  # when it ends by itself, Unix seconds
    reason: str  # one line for people
    gets_floor: bool = False  # consolidated, or half-open and the attempt that decides is yet to be sent


Objections = Mapping[EndpointId, Objection | None]


@dataclass(frozen=True, slots=True)
class PoolHealth:
    """What filters go by: the endpoints of a pool at one moment, and what is held about each."""

    now: float
    views: Sequence[EndpointView]
    health: Mapping[EndpointId, EndpointHealth]
    out: Mapping[str, str]  # address -> why discovery wants it to take no new work
    limits: Sequence[CustomSignal]  # custom signals with a threshold
    config: Weighting


class Filter(ABC):
    """One reason for endpoints to take no new work."""

    @abstractmethod
    def objections(
        self, pool: PoolHealth, candidates: Sequence[EndpointView]
    ) -> Iterable[tuple[EndpointId, Objection]]:
        """To which of `candidates` it objects: the endpoints of `pool` to which no filter before it has objected."""


class PerEndpoint(Filter):
    """A filter that looks at each endpoint by itself."""

    def objections(
        self, pool: PoolHealth, candidates: Sequence[EndpointView]
    ) -> Iterator[tuple[EndpointId, Objection]]:
        for view in candidates:
            if (objection := self.objection(pool, view, pool.health[view.id])) is not None:
                yield view.id, objection

    @abstractmethod
    def objection(self, pool: PoolHealth, view: EndpointView, health: EndpointHealth) -> Objection | None:
        """Why `view` takes no new work; None if this filter does not mind."""


class TakenOut(PerEndpoint):
    """Discovery wants it out: it is going away, or not ready."""

    def objection(self, pool: PoolHealth, view: EndpointView, health: EndpointHealth) -> Objection | None:
        why = pool.out.get(view.id.address)
        return Objection(State.DRAINING, None, f"{State.DRAINING}: {why}") if why else None


class Drained(PerEndpoint):
    """A custom signal with `action: drain` is past its limit."""

    def objection(self, pool: PoolHealth, view: EndpointView, health: EndpointHealth) -> Objection | None:
        why = health.past_limit("drain")
        return Objection(State.DRAINING, None, f"{State.DRAINING}: {why}") if why else None


class Leaving(PerEndpoint):
    """An answer said that the engine is shutting down."""

    def objection(self, pool: PoolHealth, view: EndpointView, health: EndpointHealth) -> Objection | None:
        return _until(pool.now, State.DRAINING, health.leaving_until, health.why(AttemptOutcome.LEAVING))


class Ejected(PerEndpoint):
    """The breaker is open."""

    def objection(self, pool: PoolHealth, view: EndpointView, health: EndpointHealth) -> Objection | None:
        if health.breaker.state(pool.now) is not BreakerState.OPEN:
            return None
        return _until(pool.now, State.OPEN, health.breaker.until, health.why(AttemptOutcome.FAILURE))


class Down(PerEndpoint):
    """Probes, or counters that stand still, say that it does not generate."""

    def objection(self, pool: PoolHealth, view: EndpointView, health: EndpointHealth) -> Objection | None:
        is_down = health.probe_health.state is State.DOWN
        return Objection(State.DOWN, None, health.probe_health.reason) if is_down else None


class Cooling(PerEndpoint):
    """It said that it was saturated."""

    def objection(self, pool: PoolHealth, view: EndpointView, health: EndpointHealth) -> Objection | None:
        if not health.cool_down.active(pool.now):
            return None
        return _until(pool.now, State.COOLING, health.cool_down.until, health.why(AttemptOutcome.REFUSED))


class HalfOpen(PerEndpoint):
    """The breaker was open: the next attempt decides."""

    def objection(self, pool: PoolHealth, view: EndpointView, health: EndpointHealth) -> Objection | None:
        if health.breaker.state(pool.now) is not BreakerState.HALF_OPEN:
            return None
        is_awaited = view.newest_sent_at is None or view.newest_sent_at <= health.breaker.until
        decides = "the next attempt decides" if is_awaited else "an attempt under way decides"
        why = health.why(AttemptOutcome.FAILURE)
        return Objection(State.HALF_OPEN, None, f"half-open: {why}; {decides}", is_awaited)


class HalfOpenByProbe(PerEndpoint):
    """It was down, and a probe or a counter shows that it generates again: the next token decides."""

    def objection(self, pool: PoolHealth, view: EndpointView, health: EndpointHealth) -> Objection | None:
        is_half_open = health.probe_health.state is State.HALF_OPEN
        return Objection(State.HALF_OPEN, None, health.probe_health.reason, gets_floor=True) if is_half_open else None


class KvCacheFull(Filter):
    """Its KV cache is at the limit, and another endpoint is known to have room."""

    def objections(
        self, pool: PoolHealth, candidates: Sequence[EndpointView]
    ) -> Iterator[tuple[EndpointId, Objection]]:
        usage = {view.id: view.signals.kv_usage for view in candidates}
        full = {id for id, used in usage.items() if pool.health[id].is_full(used, pool.config.kv_limit)}
        room = any(used is not None and id not in full for id, used in usage.items())
        for id, health in pool.health.items():
            health.was_full = room and id in full
            if health.was_full:
                what = f"KV usage {usage[id]:.2f}, the limit is {pool.config.kv_limit:g}"
                yield id, Objection(State.FULL, None, f"full: {what}, and another endpoint has room")


class Consolidated(Filter):
    """The whole pool has little to do, and others do its work."""

    def __init__(self) -> None:
        self._consolidation = Consolidation()

    def objections(
        self, pool: PoolHealth, candidates: Sequence[EndpointView]
    ) -> Iterator[tuple[EndpointId, Objection]]:
        signal = next((limit for limit in pool.limits if limit.action == "consolidate"), None)
        if signal is None:
            return
        readings = {view.id: view.custom.get(signal.name) for view in pool.views}
        used = {id: reading.value if reading else None for id, reading in readings.items()}
        is_whole = len(candidates) == len(pool.views)
        for id in self._consolidation.consolidate(pool.now, used, signal, is_whole=is_whole):
            reason = f"{State.CONSOLIDATED}: {signal.name} of all endpoints is below {signal.below:g}"
            yield id, Objection(State.CONSOLIDATED, None, reason, gets_floor=True)


def default_filters() -> Sequence[Filter]:
    """The filters of one pool, the strongest reason first. Some keep state: each pool has its own."""
    return (
        TakenOut(),
        Drained(),
        Leaving(),
        Ejected(),
        Down(),
        Cooling(),
        HalfOpen(),
        HalfOpenByProbe(),
        KvCacheFull(),
        Consolidated(),
    )


def run(filters: Sequence[Filter], pool: PoolHealth) -> Objections:
    """What the first filter that objects has to say of each endpoint; None of one that is eligible."""
    found: dict[EndpointId, Objection | None] = {view.id: None for view in pool.views}
    for each in filters:
        candidates = [view for view in pool.views if found[view.id] is None]
        found.update(each.objections(pool, candidates))
    return found


def not_for_long_prompts(pool: PoolHealth, objections: Objections) -> frozenset[EndpointId]:
    """Those that take nothing of the longest class, as long as one that is eligible is not among them."""
    past = frozenset(id for id in objections if pool.health[id].past_limit(NO_LONG_PROMPTS))
    others = any(objection is None and id not in past for id, objection in objections.items())
    return past if others else frozenset()


def _until(now: float, state: State, until: float, why: str) -> Objection | None:
    return Objection(state, until, f"{state}: {why}, {until - now:.1f} s left") if now < until else None
