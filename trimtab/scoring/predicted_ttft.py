"""`predicted_ttft`: pour the work that is about to come so that every endpoint's first token comes equally soon."""

from collections.abc import Mapping, Sequence
from math import inf
from statistics import median
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from trimtab.endpoint.failure_signals import FailureSignal
from trimtab.endpoint.request_classes import class_of
from trimtab.endpoint.snapshot import ClassView, EndpointId, EndpointView, PoolSnapshot, TokenSample
from trimtab.scoring.capacity import capacities_of
from trimtab.scoring.config import Positive
from trimtab.scoring.contract import Eligible, Need, Score, Strategy
from trimtab.scoring.cost_model import CostModel, is_memory
from trimtab.scoring.water_filling import pour
from trimtab.strict import Strict
from trimtab.tokens import BYTES_PER_TOKEN

# The first costs of the largest endpoint, until it has answered a few times.
_FIRST_PER_KILOTOKEN_S = 0.1
_FIRST_PER_ATTEMPT_S = 0.001
# An endpoint is tried again if it is so many times slower than it was at its best recently.
_MUCH_SLOWER = 2.0
# It is a failure signal to be so many times slower than was predicted, by costs that so many answers had shown.
_FAR_SLOWER = 3.0
_PROVEN_SAMPLES = 20
_LEAST_TTFT_S = 0.001
_FIRST_SAMPLES = 3  # until then its costs are still a guess
_MOST_OF_A_TRY = 0.9
_LONGEST_POUR_S = 2.0
# Endpoints that join a pool that works get so much together at most, until each has shown that it answers.
_MOST_OF_NEWCOMERS = 0.1
_BEST_FADES = 0.01  # per sample: what was better for some hundred answers is the past


class PredictedTtftPolicy(Strict):
    """Numbers of the `predicted_ttft` strategy."""

    strategy: Literal["predicted_ttft"] = Field(default="predicted_ttft", description="Names this strategy.")
    bytes_per_token: Annotated[float, Field(ge=0.1, le=10_000)] = Field(
        default=BYTES_PER_TOKEN,
        description="Bytes of a request's body for each prompt token, until what the engines count has shown it.",
    )
    peak_half_life_s: Positive = Field(
        default=20, description="How fast the largest burst of an interval is forgotten."
    )
    floor: Annotated[float, Field(ge=0, le=0.1)] = Field(
        default=0.002, description="Share of the largest endpoint when it gets nothing; smaller ones get less."
    )
    form: Literal["water_filling", "power"] = Field(
        default="water_filling",
        description="How shares follow from predictions. `power`: (1 / predicted TTFT of a typical prompt) ** gamma.",
    )
    gamma: Annotated[float, Field(gt=0, le=10)] = Field(default=2, description="Exponent of the power form.")
    retry_s: Positive = Field(
        default=5, description="An endpoint that became much slower, or silent, is tried so often at most."
    )
    score_threshold_ms: Positive = Field(default=2000, description="A predicted TTFT that scores 50.")


class _Endpoint:
    """What is known of one endpoint's costs, now and at its best."""

    __slots__ = ("_best", "_sent", "_touched_at", "cost", "hopeful", "newcomer")

    def __init__(self, cost: CostModel, *, newcomer: bool) -> None:
        self.cost = cost
        self.newcomer = newcomer  # among others that have answered, it has not yet
        self.hopeful = False  # its last answer came much sooner than was predicted
        self._best: float | None = None
        self._sent: int | None = None
        self._touched_at: float | None = None  # when it was last sent something, or answered

    def sent(self, now: float, prompt_bytes: int) -> int:
        """Take in the total of what was ever sent there; returns what came since the last time."""
        before, self._sent = self._sent, prompt_bytes
        if before is None or prompt_bytes > before:
            self._touched_at = now
        return 0 if before is None else prompt_bytes - before

    def learn(self, at: float, kilotokens: float, attempts: float, ttft_s: float) -> bool:
        """Take in an answer. Returns whether the endpoint is found by it to have become far slower."""
        self.hopeful = ttft_s * _MUCH_SLOWER < self.cost.predict(kilotokens, attempts)
        self._touched_at = at
        self.newcomer = False
        was_proven = self.cost.samples >= _PROVEN_SAMPLES
        change = self.cost.learn(kilotokens, attempts, ttft_s)
        level = self._level()
        if self._best is None or self.cost.samples <= _FIRST_SAMPLES:
            self._best = level
        self._best = min(level, self._best + _BEST_FADES * (level - self._best))
        return was_proven and change is not None and change >= _FAR_SLOWER

    @property
    def slower(self) -> float:
        """How many times slower it is than it was at its best recently."""
        return self._level() / self._best if self._best else 1.0

    def wants_try(self, now: float, wait_s: float, retry_s: float) -> bool:
        """Whether an idle endpoint is worth a request to see if it is still as slow, or as silent, as it came to be.

        `wait_s` is what a request is believed to wait there, by its costs or by the silence that was seen.
        """
        silent = wait_s > _MUCH_SLOWER * self._level()
        if not (self.slower > _MUCH_SLOWER or silent) or self._touched_at is None:
            return False
        return self.hopeful or now - self._touched_at >= retry_s

    def _level(self) -> float:
        return self.cost.predict(1.0, 1.0)


class _Demand:
    """The work that comes in, of one length class or in all, in thousand prompt tokens."""

    __slots__ = ("_peak", "_sent", "mean", "typical")

    def __init__(self) -> None:
        self.typical = 0.0  # of a request
        self.mean = 0.0  # of an interval
        self._peak = 0.0  # the most that one interval has brought, fading
        self._sent: int | None = None

    @property
    def coming(self) -> float:
        """What the next interval may bring."""
        return max(self.typical, self._peak)

    def learn(self, kilotokens: float) -> None:
        """Take in a request that was answered."""
        self.typical += 0.05 * (kilotokens - self.typical) if self.typical else kilotokens

    def sent(self, prompt_bytes: int) -> int:
        """Take in the total of what was ever sent; returns what came since the last time."""
        before, self._sent = self._sent, prompt_bytes
        return 0 if before is None else max(0, prompt_bytes - before)

    def follow(self, kilotokens: float, kept: float) -> None:
        """Take in what the last interval brought; of what was before it, the part `kept` is left."""
        self._peak = max(self._peak * kept, kilotokens)
        self.mean += (1.0 - kept) * (kilotokens - self.mean)


class PredictedTtft(Strategy):
    """The strategy. See `docs/concepts/strategies/predicted_ttft.md`."""

    name: ClassVar[str] = "predicted_ttft"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.TTFT, Need.LEASES})
    # It moves shares on purpose at every interval, and keeps its own floor.
    slow_started: ClassVar[bool] = False
    damped: ClassVar[bool] = False
    request_bias: ClassVar[float] = 0.0
    floored: ClassVar[bool] = False

    def __init__(self, policy: PredictedTtftPolicy) -> None:
        self._policy = policy
        self._endpoints: dict[EndpointId, _Endpoint] = {}
        self._memory: dict[str, Mapping[str, float]] = {}
        self._up_to_bytes: tuple[float, ...] = (inf,)  # of each length class
        self._demands = [_Demand()]  # likewise
        self._advanced_at: float | None = None
        self._learned_ratio = policy.bytes_per_token

    def advance(self, pool: PoolSnapshot, eligible: Eligible) -> None:
        self._learned_ratio = pool.bytes_per_token or self._policy.bytes_per_token
        known = self._known(_relative_capacities(pool))
        self._endpoints |= {view.id: endpoint for view, endpoint in zip(pool.endpoints, known, strict=True)}
        for view in pool.endpoints:
            self._memory.pop(view.id.address, None)
        sent = [
            endpoint.sent(pool.at, view.prompt_bytes_sent) for view, endpoint in zip(pool.endpoints, known, strict=True)
        ]
        self._follow_demand(pool.classes, sum(sent), pool.at)

    def score(self, pool: PoolSnapshot, eligible: Eligible) -> Mapping[EndpointId, Score]:
        relative = _relative_capacities(pool)
        known = self._known(relative)
        waits = [self._wait(view, endpoint.cost) for view, endpoint in zip(pool.endpoints, known, strict=True)]
        # By capacity, not by the learned speed, which may be the very thing that is wrong.
        floors = [self._policy.floor * relative[view.id] for view in pool.endpoints]
        tried = [
            not view.in_flight and endpoint.wants_try(pool.at, wait, self._policy.retry_s)
            for view, endpoint, wait in zip(pool.endpoints, known, waits, strict=True)
        ]
        if (newcomer := _next_newcomer(pool, eligible, known)) is not None:
            tried[newcomer] = True
        by_class = self._parts(pool, eligible, known, waits, floors, tried)
        return {
            view.id: self._score(view, known[number], waits[number], [parts[number] for parts in by_class])
            for number, view in enumerate(pool.endpoints)
        }

    def learn(self, sample: TokenSample) -> FailureSignal | None:
        own = self._kilotokens(sample.prompt_bytes)
        self._demands[class_of(self._up_to_bytes, sample.prompt_bytes)].learn(own)
        endpoint = self._endpoints.get(sample.endpoint)
        if endpoint is None:
            return None
        ahead = self._kilotokens(sample.outstanding_prompt_bytes)
        return FailureSignal.SLOW if endpoint.learn(sample.at, ahead, sample.in_flight, sample.ttft_s) else None

    def forget(self, endpoint: EndpointId) -> None:
        self._endpoints.pop(endpoint, None)
        self._memory.pop(endpoint.address, None)

    def dump(self) -> dict[str, Any]:
        return self._memory | {id.address: known.cost.dump() for id, known in sorted(self._endpoints.items())}

    def restore(self, memory: Mapping[str, Any]) -> None:
        self._memory = {address: costs for address, costs in memory.items() if is_memory(costs)}

    def _first_costs(self, capacities: Mapping[EndpointId, float]) -> tuple[float, float] | None:
        """What the costs of the largest endpoint would be, if it were like those that have answered; None: none has.

        Who joins a pool and is taken for faster than all others gets all work, and might not answer at all.
        """
        proven = [
            (endpoint.cost.per_kilotoken_s * capacities[id], endpoint.cost.per_attempt_s * capacities[id])
            for id, endpoint in self._endpoints.items()
            if endpoint.cost.samples >= _FIRST_SAMPLES and id in capacities
        ]
        return (median(a for a, _ in proven), median(b for _, b in proven)) if proven else None

    def _known(self, capacities: Mapping[EndpointId, float]) -> Sequence[_Endpoint]:
        """What is known of each endpoint, a new one as its memory, or its peers, say. Capacities: relative."""
        is_new = not capacities.keys() <= self._endpoints.keys()
        first = self._first_costs(capacities) if is_new else None
        return [self._endpoints.get(id) or self._begin(id, capacity, first) for id, capacity in capacities.items()]

    def _begin(self, id: EndpointId, capacity: float, first: tuple[float, float] | None) -> _Endpoint:
        per_kilotoken_s, per_attempt_s = first or (_FIRST_PER_KILOTOKEN_S / self._unit, _FIRST_PER_ATTEMPT_S)
        cost = CostModel(per_kilotoken_s / capacity, per_attempt_s / capacity)
        if (memory := self._memory.get(id.address)) is not None:
            cost.restore(memory)
        return _Endpoint(cost, newcomer=first is not None and memory is None)

    def predict(self, endpoint: EndpointView, prompt_bytes: int) -> float | None:
        """The time to first token [s] of a request with so long a body, if the endpoint got it now; None: unknown."""
        known = self._endpoints.get(endpoint.id)
        if known is None:
            return None
        return self._wait(endpoint, known.cost) + known.cost.predict(self._kilotokens(prompt_bytes), 1.0)

    def _wait(self, view: EndpointView, cost: CostModel) -> float:
        """How long a request without a prompt would wait now, seconds.

        An attempt that has waited longer than it should have is believed before the model: the endpoint is slower
        than it was, or hangs.
        """
        wait = cost.predict(self._kilotokens(view.load_prompt_bytes), view.load_attempts)
        return max(wait, view.oldest_wait_s)

    def _parts(
        self,
        pool: PoolSnapshot,
        eligible: Eligible,
        known: Sequence[_Endpoint],
        waits: Sequence[float],
        floors: Sequence[float],
        tried: Sequence[bool],
    ) -> Sequence[Sequence[float]]:
        """For each length class, short to long, the part of each endpoint; those that take work sum to 1.

        The longest class is poured first, while there is room where it costs least. The next ones find the levels
        raised by what the longer ones are likely to bring in the same interval; by their peak it would be too much,
        and the best endpoints would stand idle for work that seldom comes.
        """
        by_class: list[Sequence[float]] = []
        levels = list(waits)
        for demand, takers in reversed(
            list(zip(self._demands, eligible.of_each_class(len(self._demands)), strict=True))
        ):
            # Nothing is poured over an endpoint that takes no new work: it would be lost.
            free = [number for number, view in enumerate(pool.endpoints) if view.id in takers]
            rates = [self._rate(known[number].cost, demand) for number in free]
            shares = dict(zip(free, self._shares(demand, [levels[number] for number in free], rates), strict=True))
            _bound_newcomers(shares, dict(zip(free, rates, strict=True)), known)
            for number, rate in zip(free, rates, strict=True):
                levels[number] += shares[number] * demand.mean / rate
            try_part = self._one_request(demand)
            parts = [
                max(shares.get(number, 0.0), floor, try_part if is_tried else 0.0)
                for number, (floor, is_tried) in enumerate(zip(floors, tried, strict=True))
            ]
            total = sum(parts[number] for number in free) or 1.0
            by_class.append([part / total for part in parts])
        return by_class[::-1]

    def _rate(self, cost: CostModel, demand: _Demand) -> float:
        """How many thousand prompt tokens, in typical requests, raise the endpoint's TTFT by a second."""
        typical = demand.typical or 1.0
        return typical / cost.predict(typical, 1.0)

    def _shares(self, demand: _Demand, waits: Sequence[float], rates: Sequence[float]) -> list[float]:
        """The part of what comes next for each endpoint that takes work; they sum to 1."""
        # What is levelled is the TTFT of a typical request, whose own prompt takes its time too.
        ttfts = [wait + demand.typical / rate for wait, rate in zip(waits, rates, strict=True)]
        if self._policy.form == "power":
            parts = [(1.0 / max(ttft, _LEAST_TTFT_S)) ** self._policy.gamma for ttft in ttfts]
        else:
            # A burst that takes longer than this to serve is spread over whoever is not much later than the others.
            # More would reach an endpoint that does not answer at all.
            parts = pour(min(demand.coming, _LONGEST_POUR_S * sum(rates)), ttfts, rates)
        total = sum(parts) or 1.0
        return [part / total for part in parts]

    def _one_request(self, demand: _Demand) -> float:
        """What beside the shares of all others, which sum to 1, is one typical request of what comes next.

        With little to come it is nearly all: each push makes Envoy begin its schedule anew, so between two pushes that
        are closer than the requests only the largest weights are picked.
        """
        coming = demand.coming
        part = min(_MOST_OF_A_TRY, demand.typical / coming) if coming else 0.0
        return part / (1.0 - part)

    def _score(self, view: EndpointView, known: _Endpoint, wait: float, shares: Sequence[float]) -> Score:
        """The score of an endpoint with its share of each length class, or of all."""
        cost = known.cost
        threshold = self._policy.score_threshold_ms / 1000.0
        score = 100.0 * threshold / (threshold + wait)
        prompt = cost.per_kilotoken_s * self._kilotokens(view.load_prompt_bytes)
        running = cost.per_attempt_s * view.load_attempts
        silence = max(0.0, wait - prompt - running)
        lost = (100.0 - score) / wait if wait > 0 else 0.0
        a, b = 1000 * cost.per_kilotoken_s * self._unit, 1000 * cost.per_attempt_s
        why = (
            f"{1000 * wait:.0f} ms to wait, gets {' / '.join(f'{share:.1%}' for share in shares)} of what comes next "
            f"({a:.0f} ms a thousand prompt tokens, {b:.1f} ms an attempt"
            f"{f', {known.slower:.0f} times slower than it was' if known.slower > _FAR_SLOWER else ''})"
        )
        breakdown = {"prompt": lost * prompt, "running": lost * running, "silence": lost * silence}
        share = sum(shares) / len(shares)
        class_shares = tuple(shares) if len(shares) > 1 else ()
        return Score(score, share, breakdown, why, cost.error, class_shares=class_shares)

    def _follow_demand(self, classes: Sequence[ClassView], prompt_bytes: int, now: float) -> None:
        """Follow what comes in, class by class; `prompt_bytes` came in all since the last time."""
        limits = tuple(one.up_to_bytes for one in classes) or (inf,)
        if limits != self._up_to_bytes:
            self._up_to_bytes, self._demands = limits, [_Demand() for _ in limits]
        brought = [demand.sent(one.prompt_bytes_sent) for demand, one in zip(self._demands, classes, strict=False)]
        elapsed = 0.0 if self._advanced_at is None else max(0.0, now - self._advanced_at)
        for demand, came in zip(self._demands, brought or [prompt_bytes], strict=True):
            demand.follow(self._kilotokens(came), kept=0.5 ** (elapsed / self._policy.peak_half_life_s))
        self._advanced_at = now

    @property
    def _unit(self) -> float:
        """What a prompt token is, by the ratio that was learned, in tokens by the policy's."""
        return self._learned_ratio / self._policy.bytes_per_token

    def _kilotokens(self, prompt_bytes: int) -> float:
        """Work by the policy's ratio, always: costs are learned in this unit, and one that moved would unlearn them."""
        return prompt_bytes / self._policy.bytes_per_token / 1000.0


def _relative_capacities(pool: PoolSnapshot) -> Mapping[EndpointId, float]:
    """Of each endpoint, as parts of the largest."""
    capacities = capacities_of(pool.endpoints)
    largest = max(capacities.values(), default=1.0)
    return {id: capacity / largest for id, capacity in capacities.items()}


def _next_newcomer(pool: PoolSnapshot, eligible: Eligible, known: Sequence[_Endpoint]) -> int | None:
    """The newcomer that is to show next whether it answers. One at a time: what it fails is retried on the others."""
    for number, (view, endpoint) in enumerate(zip(pool.endpoints, known, strict=True)):
        if endpoint.newcomer and not view.in_flight and view.id in eligible.ids:
            return number
    return None


def _bound_newcomers(shares: dict[int, float], rates: Mapping[int, float], known: Sequence[_Endpoint]) -> None:
    """Give those that have answered what newcomers have beyond their part: as it was poured, or else by their rates."""
    proven = [number for number in shares if not known[number].newcomer]
    poured = sum(shares[number] for number in proven)
    if not proven or poured >= 1.0 - _MOST_OF_NEWCOMERS:
        return
    parts = {number: shares[number] / poured for number in proven} if poured > 0 else rates
    total = sum(parts[number] for number in proven)
    for number in shares:
        if known[number].newcomer:
            shares[number] *= _MOST_OF_NEWCOMERS / (1.0 - poured)
        else:
            shares[number] = (1.0 - _MOST_OF_NEWCOMERS) * parts[number] / total
