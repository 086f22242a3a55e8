"""From a strategy's scores and shares to the weights of a pool."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import isfinite
from random import Random

from trimtab.decision import ClassDecision, EndpointDecision, PoolDecision
from trimtab.endpoint.evidence import OutcomeSeen, ProbeSeen, TokenSeen
from trimtab.endpoint.failure_signals import FailureSignal, Suspected
from trimtab.endpoint.snapshot import EndpointId, EndpointView, PoolSnapshot
from trimtab.health.endpoint_health import EndpointHealth
from trimtab.health.exploration import Exploration
from trimtab.health.filters import (
    NO_LONG_PROMPTS,
    Objection,
    Objections,
    PoolHealth,
    default_filters,
    not_for_long_prompts,
    run,
)
from trimtab.health.probe_health import Watch
from trimtab.health.state import State
from trimtab.policy.model import Weighting
from trimtab.policy.prometheus import CustomSignal
from trimtab.scoring.capacity import capacities_of
from trimtab.scoring.contract import Eligible, Score, Strategy
from trimtab.weights.integers import floored, moved, to_weight
from trimtab.weights.slow_start import NEW_ENDPOINT, SlowStart

# The floor never gives an endpoint more than this part of what it would get by capacity alone, so that it
# stays a floor in a large pool and does not load a weak endpoint.
_FLOOR_OF_CAPACITY = 0.5
# An endpoint whose share of failures is that of the others, times less than this, is not to blame for it: callers
# whose requests fail everywhere would open every breaker.
_STANDS_OUT = 2.0
# All half-open endpoints together get no more than this by their floors: in a pool of many dead ones each try is
# an attempt that most likely fails, and a request has only so many.
_HALF_OPEN_TOTAL = 0.05
Pushed = Mapping[str, tuple[int, bool]]  # address -> weight, takes work


class Weigher:
    """The health of one pool's endpoints, and the weights that were pushed last."""

    def __init__(
        self, config: Weighting, rng: Random, limits: Sequence[CustomSignal] = (), watch: Watch | None = None
    ) -> None:
        self.config = config
        self.out: Mapping[str, str] = {}  # address -> why discovery wants it to take no new work
        self.limits = limits  # custom signals with a threshold
        self.watch = watch or Watch()
        self._rng = rng
        self._health: dict[EndpointId, EndpointHealth] = {}
        self._slow_starts: dict[EndpointId, SlowStart] = {}
        self._pushed: Sequence[Pushed] = ({},)  # of each length class, or of the whole pool
        self._has_decided = False
        self._serves = True
        self._filters = default_filters()
        self._exploration = Exploration()

    @property
    def health(self) -> Mapping[EndpointId, EndpointHealth]:
        return self._health

    @property
    def pushed(self) -> Pushed:
        """The weights in force, by the last decision that was changed; of length classes, those of the shortest."""
        return self._pushed[0]

    def enter(self, now: float, endpoint: EndpointId, score: float, health: EndpointHealth | None = None) -> None:
        """Let an endpoint in with a score to start from (0..100), and its health if that is known.

        One that nobody lets in begins as a new one.
        """
        self._health[endpoint] = health or EndpointHealth()
        self._slow_starts[endpoint] = SlowStart(now, score)

    def effective_score(self, endpoint: EndpointId) -> float:
        """The score of an endpoint at the last step, after slow start."""
        return self._slow_starts[endpoint].score

    def restore_pushed(self, pushed: Pushed) -> None:
        """Measure the first decision against the weights that Envoy most likely still has."""
        self._pushed = (pushed,)

    def observe(self, evidence: OutcomeSeen | TokenSeen | Suspected | ProbeSeen) -> None:
        """Take in what an attempt, or a probe, said of its endpoint."""
        match evidence:
            case OutcomeSeen():
                self._health_of(evidence.at, evidence.endpoint).judged(evidence, self.config, self._rng)
            case Suspected():
                self._health_of(evidence.at, evidence.endpoint).suspected(evidence, self.config)
            case TokenSeen():
                health = self._health_of(evidence.at, evidence.endpoint)
                health.token_seen(evidence.at, evidence.started_at, further=evidence.further)
            case ProbeSeen():
                self._health_of(evidence.probed.at, evidence.endpoint).probe_health.probed(evidence.probed)

    def note(self, at: float, endpoint: EndpointId, failure_signal: FailureSignal) -> None:
        """Take note of a failure signal that the strategy has found, and sees to."""
        self._health_of(at, endpoint).note(failure_signal)

    def decide(self, pool: PoolSnapshot, strategy: Strategy) -> PoolDecision:
        """Judge a pool by `strategy`, and shape what it says into weights."""
        now, views = pool.at, pool.endpoints
        self._health = {view.id: self._health_of(now, view.id) for view in views}
        self._slow_starts = {view.id: self._slow_starts[view.id] for view in views}
        self._open_breakers(now)
        pool_health = self._pool_health(now, views)
        objections = run(self._filters, pool_health)
        not_longest = not_for_long_prompts(pool_health, objections) if len(pool.classes) > 1 else frozenset()
        eligible = Eligible(frozenset(id for id, objection in objections.items() if objection is None), not_longest)
        strategy.advance(pool, eligible)
        judged = strategy.score(pool, eligible)
        scores = {id: _bounded(score) for id, score in judged.items()}
        effective = {
            id: self._effective_score(now, id, objection, scores[id].score, strategy)
            for id, objection in objections.items()
        }
        panic, serves = self._step_panic(objections)
        half_open = frozenset(
            id for id, it in objections.items() if it and it.state is State.HALF_OPEN and it.gets_floor
        )
        probe_shares = {} if panic else self._exploration.choose(now, views, half_open)
        by_class = [
            self._shares(pool, takers, scores, effective, asked, strategy, probe_shares)
            for takers, asked in _each_class(pool, objections, scores, not_longest)
        ]
        changed = self._push(
            [{view.id.address: shares.get(view.id) for view in views} for shares in by_class], strategy
        )

        decisions = []
        for view in views:
            score, objection = scores[view.id], objections[view.id]
            health = self._health[view.id]
            state, until, reason = self._say(now, objection, panic, health, effective[view.id], score)
            if view.id in not_longest and objection is None:
                reason = f"{reason}; no long prompts: {health.past_limit(NO_LONG_PROMPTS)}"
            shares = [of_class.get(view.id) for of_class in by_class]
            share = sum(part or 0.0 for part in shares) / len(shares)
            weights = [pushed[view.id.address] for pushed in self._pushed]
            decisions.append(
                EndpointDecision(
                    id=view.id,
                    view=view,
                    score=score.score,
                    breakdown=score.breakdown,
                    prediction_error=score.prediction_error,
                    effective_score=effective[view.id],
                    share=share,
                    weight=round(sum(weight for weight, _ in weights) / len(weights)),
                    takes_work=any(takes_work for _, takes_work in weights),
                    state=state,
                    until=until,
                    reason=reason,
                    probe=health.probe_health.view(now),
                    classes=tuple(
                        ClassDecision(one.name, part or 0.0, *weight)
                        for one, part, weight in zip(pool.classes, shares, weights, strict=False)
                    ),
                )
            )
        names = tuple(one.name for one in pool.classes)
        failure_signals = tuple(
            (id, failure_signal)
            for id, health in self._health.items()
            for failure_signal in health.take_failure_signals()
        )
        changed, self._serves = changed or serves is not self._serves, serves
        return PoolDecision(
            pool.pool, now, tuple(decisions), changed, names, pool.bytes_per_token, failure_signals, serves
        )

    def _step_panic(self, objections: Objections) -> tuple[bool, bool]:
        """Whether the pool is in panic, and whether it serves some requests at least."""
        panic = all(objections.values())
        # When all are out, those that may be dead stay out if another only says that it is full: it serves some, and
        # tells the others when to come again.
        full = panic and any(it is not None and it.state is State.COOLING for it in objections.values())
        for id, objection in objections.items():
            # What is going away for good keeps no part of its work when others are back.
            leaves = id.address in self.out and not panic
            is_needed = panic and not (full and objection is not None and objection.state.may_be_dead)
            self._health[id].panic.step(None if leaves or objection is None else objection.state, is_needed)
        return panic, full or not panic

    def _health_of(self, now: float, endpoint: EndpointId) -> EndpointHealth:
        if endpoint not in self._health:
            self.enter(now, endpoint, NEW_ENDPOINT)
        return self._health[endpoint]

    def _open_breakers(self, now: float) -> None:
        """Open the breakers of endpoints that fail for more than the policy's share, and more than the others."""
        config = self.config
        recent = {id: health.recent(now) for id, health in self._health.items()}
        all_failed = sum(failed for failed, _ in recent.values())
        all_sent = sum(sent for _, sent in recent.values())
        for id, (failed, sent) in recent.items():
            if sent < config.breaker_error_sample or failed <= config.breaker_error_share * sent:
                continue
            others_failed, others_sent = all_failed - failed, all_sent - sent
            if failed * others_sent > _STANDS_OUT * others_failed * sent or others_sent < 1:
                why = f"{failed / sent:.0%} of its latest {sent:.0f} attempts failed"
                self._health[id].open(now, FailureSignal.ERROR_SHARE, why, config)

    def _pool_health(self, now: float, views: Sequence[EndpointView]) -> PoolHealth:
        for view in views:
            health = self._health[view.id]
            health.probe_health.watch(now, view, self.watch)
            if view.id.address not in self.out:
                health.read_limits(view.custom, self.limits)
        return PoolHealth(now, views, self._health, self.out, self.limits, self.config)

    def _effective_score(
        self, now: float, id: EndpointId, objection: Objection | None, score: float, strategy: Strategy
    ) -> float:
        slow_start = self._slow_starts[id]
        if objection is not None and not objection.state.keeps_score:
            slow_start.hold(now if objection.until is None else objection.until)
            return 0.0
        return (
            slow_start.let(now, score, self.config.slow_start_points_per_s)
            if strategy.slow_started
            else slow_start.follow(now, score)
        )

    def _shares(
        self,
        pool: PoolSnapshot,
        objections: Objections,
        scores: Mapping[EndpointId, Score],
        effective: Mapping[EndpointId, float],
        asked: Mapping[EndpointId, float],
        strategy: Strategy,
        probe_shares: Mapping[EndpointId, float],
    ) -> dict[EndpointId, float]:
        """The shares of the endpoints that take work, when a strategy asks for some; they sum to 1."""
        capacities = capacities_of(pool.endpoints)
        free = [id for id, objection in objections.items() if objection is None]
        takers = [id for id, objection in objections.items() if self._takes_work(id, objection)]
        # A strategy measures shares as it likes. Those that are in although they are held get theirs by capacity, in
        # that measure: as much as the strategy gives where the score is 100.
        by_score = sum(capacities[id] * scores[id].score / 100 for id in free)
        scale = _ratio(sum(asked[id] for id in free), by_score)
        raw = [
            scale * capacities[id] * self._leniency(pool.at, id, objection)
            if (objection := objections[id])
            else _wanted(asked[id], scores[id], effective[id], strategy)
            for id in takers
        ]
        if not any(raw):
            raw = [0.0 if objections[id] else capacities[id] for id in takers]
        total = sum(capacities[id] for id in takers)
        held_floor = _HALF_OPEN_TOTAL / max(1, len(takers) - len(free))
        # One that is half open or consolidated gets no more than its floor, so it always has one.
        floors = [
            probe_shares[id]
            if id in probe_shares
            else min(
                self.config.floor_share,
                _FLOOR_OF_CAPACITY * capacities[id] / total,
                held_floor if objections[id] else 1.0,
            )
            if strategy.floored or objections[id]
            else 0.0
            for id in takers
        ]
        return dict(zip(takers, floored(raw, floors), strict=True))

    def _takes_work(self, id: EndpointId, objection: Objection | None) -> bool:
        return objection is None or objection.gets_floor or self._health[id].panic.part > 0

    def _leniency(self, now: float, id: EndpointId, objection: Objection) -> float:
        """0..1: less for one that is out for longer than an ordinary cool-down."""
        left = 0.0 if objection.until is None else objection.until - now
        return self._health[id].panic.part / max(1.0, left / self.config.cool_down_max_s)

    def _push(self, by_class: Sequence[Mapping[str, float | None]], strategy: Strategy) -> bool:
        """Put shares (None: takes no work) in force where they differ enough, and say whether to push any."""
        hysteresis = self.config.hysteresis if strategy.damped else 0.0
        before = self._pushed if len(self._pushed) == len(by_class) else [{}] * len(by_class)
        self._pushed = [_followed(pushed, shares, hysteresis) for pushed, shares in zip(before, by_class, strict=True)]
        differs = any(new is not old for new, old in zip(self._pushed, before, strict=True))
        first, self._has_decided = not self._has_decided, True
        return differs or first

    def _say(
        self,
        now: float,
        objection: Objection | None,
        panic: bool,
        health: EndpointHealth,
        effective: float,
        score: Score,
    ) -> tuple[State, float | None, str]:
        """The state of an endpoint, when it ends by itself, and a line for people."""
        if objection is not None:
            if objection.state.keeps_floor or not health.panic.part:
                return objection.state, objection.until, objection.reason
            so = "are out, so it is in" if panic else f"were out, so it keeps {health.panic.part:.0%} of its work"
            return State.PANIC, objection.until, f"all endpoints {so}; {objection.reason}"
        if health.probe_health.state is State.SUSPECT:
            return State.SUSPECT, None, health.probe_health.reason
        if effective < score.score:
            left = (score.score - effective) / self.config.slow_start_points_per_s
            points = f"{effective:.0f} of {score.score:.0f} points"
            return State.SLOW_START, now + left, f"slow-start: {points}, {left:.1f} s left"
        lost = sorted(((points, term) for term, points in score.breakdown.items() if points >= 0.05), reverse=True)
        terms = ", ".join(f"{points:.1f} by {term}" for points, term in lost)
        lost_by = f", lost {terms}" if terms else ""
        why = f"; {score.why}" if score.why else ""
        return State.UP, None, f"up: {score.score:.0f} points{lost_by}{why}"


def _each_class(
    pool: PoolSnapshot, objections: Objections, scores: Mapping[EndpointId, Score], not_longest: frozenset[EndpointId]
) -> Iterator[tuple[Objections, Mapping[EndpointId, float]]]:
    """For each length class, short to long, the endpoints that may take of it, and the shares that the strategy asks
    for.

    A pool that has no classes is one.
    """
    last = len(pool.classes) - 1
    for number in range(max(1, len(pool.classes))):
        takers = {id: objection for id, objection in objections.items() if number < last or id not in not_longest}
        asked = {id: score.class_shares[number] if score.class_shares else score.share for id, score in scores.items()}
        yield takers, asked


def _followed(pushed: Pushed, shares: Mapping[str, float | None], hysteresis: float) -> Pushed:
    """The weights of `shares`, or those that were pushed if they are much the same."""
    new = {address: (to_weight(share or 0.0, len(shares)), share is not None) for address, share in shares.items()}
    differs = new.keys() != pushed.keys() or any(
        takes_work != pushed[address][1] or moved(weight, pushed[address][0], hysteresis)
        for address, (weight, takes_work) in new.items()
    )
    return new if differs else pushed


def _ratio(part: float, whole: float) -> float:
    return part / whole if part > 0 and whole > 0 else 1.0


def _bounded(score: Score) -> Score:
    """A score within its range: one bad number of a strategy must not spoil the whole pool."""
    points = min(100.0, max(0.0, score.score)) if isfinite(score.score) else 0.0
    class_shares = tuple(map(_bounded_share, score.class_shares))
    return replace(score, score=points, share=_bounded_share(score.share), class_shares=class_shares)


def _bounded_share(share: float) -> float:
    return max(0.0, share) if isfinite(share) else 0.0


def _wanted(share: float, score: Score, effective: float, strategy: Strategy) -> float:
    """The share that a strategy asks for, as far as slow start lets its score through."""
    return share * effective / score.score if strategy.slow_started and score.score > 0 else share
