"""`blend`: a weighted sum of readings of your own choice, each between a good and a bad value."""

from collections.abc import Callable, Iterator, Mapping
from enum import StrEnum
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from trimtab.endpoint.snapshot import EndpointId, EndpointView, PoolSnapshot
from trimtab.scoring.capacity import capacities_of
from trimtab.scoring.config import Positive
from trimtab.scoring.contract import Eligible, Need, Score, Strategy
from trimtab.scoring.points import points_lost
from trimtab.strict import Flaw, Strict

_Finite = Annotated[float, Field(allow_inf_nan=False)]


class Reading(StrEnum):
    """What a term can be made of, with its unit."""

    TTFT_MS = "ttft_ms"
    TTFT_P99_MS = "ttft_p99_ms"
    OLDEST_WAIT_MS = "oldest_wait_ms"
    ERROR_SHARE = "error_share"
    IN_FLIGHT = "in_flight"
    WAITING = "waiting"
    RUNNING = "running"
    KV_USAGE = "kv_usage"
    PREEMPTIONS_PER_S = "preemptions_per_s"
    INTER_TOKEN_MS = "inter_token_ms"
    INTER_TOKEN_P99_MS = "inter_token_p99_ms"
    TOKENS_PER_S = "tokens_per_s"


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else 1000.0 * seconds


_READINGS: Mapping[Reading, tuple[Need, Callable[[EndpointView], float | None]]] = {
    Reading.TTFT_MS: (Need.TTFT, lambda view: _ms(view.ttft_s)),
    Reading.TTFT_P99_MS: (Need.TTFT, lambda view: _ms(view.ttft_p99_s)),
    Reading.OLDEST_WAIT_MS: (Need.TTFT, lambda view: _ms(view.oldest_wait_s)),
    Reading.ERROR_SHARE: (Need.ERRORS, lambda view: view.error_share),
    Reading.IN_FLIGHT: (Need.LEASES, lambda view: view.load_attempts),
    Reading.WAITING: (Need.WAITING, lambda view: view.signals.waiting),
    Reading.RUNNING: (Need.RUNNING, lambda view: view.signals.running),
    Reading.KV_USAGE: (Need.KV_USAGE, lambda view: view.signals.kv_usage),
    Reading.PREEMPTIONS_PER_S: (Need.PREEMPTIONS, lambda view: view.preemptions_per_s),
    Reading.INTER_TOKEN_MS: (Need.INTER_TOKEN, lambda view: _ms(view.inter_token_s)),
    Reading.INTER_TOKEN_P99_MS: (Need.INTER_TOKEN, lambda view: _ms(view.inter_token_p99_s)),
    Reading.TOKENS_PER_S: (Need.TOKENS_PER_S, lambda view: view.tokens_per_s_best),
}


class BlendTerm(Strict):
    """One term of a `blend`: what is read, and the points that it can lose."""

    reading: Reading | None = Field(None, description="What is read of an endpoint.")
    custom: str | None = Field(
        None, description="Or, in its place, the name of a signal of `signals.prometheus.custom` with `action: term`."
    )
    weight: Positive = Field(1, description="Part of the points that it can lose, beside the other terms' weights.")
    good: _Finite = Field(0, description="The value that loses nothing.")
    bad: _Finite = Field(description="The value that loses all points of the term. Below `good`, less is worse.")

    @property
    def name(self) -> str:
        """What is read, as pages and metrics name the term."""
        return self.reading.value if self.reading is not None else self.custom or ""

    def flaws(self) -> Iterator[Flaw]:
        if (self.reading is None) == (self.custom is None):
            yield Flaw("a term needs either reading or custom", ("custom",), ("reading",))
        if self.good == self.bad:
            yield Flaw(
                f"good and bad are both {self.good:g}: points are lost on the way from one to the other", ("bad",)
            )

    def loss(self, view: EndpointView) -> float | None:
        """How far the endpoint is from good to bad, 0 to 1; None if the reading is UNKNOWN."""
        value = self._value(view)
        return None if value is None else min(1.0, max(0.0, (value - self.good) / (self.bad - self.good)))

    def _value(self, view: EndpointView) -> float | None:
        if self.reading is not None:
            return _READINGS[self.reading][1](view)
        known = view.custom.get(self.name)
        return None if known is None else known.value


class BlendPolicy(Strict):
    """Terms of the `blend` strategy."""

    strategy: Literal["blend"] = Field("blend", description="Names this strategy.")
    terms: tuple[BlendTerm, ...] = Field(min_length=1, description="What is summed up.")
    by_capacity: bool = Field(True, description="Multiply the score by the endpoint's capacity.")

    def flaws(self) -> Iterator[Flaw]:
        names = [term.name for term in self.terms]
        for index, name in enumerate(names):
            if name in names[:index]:
                yield Flaw(
                    f"{name} is already read by terms[{names.index(name)}]; remove one of them",
                    ("terms", index, "reading"),
                    ("terms", index, "custom"),
                )


class Blend(Strategy):
    """The strategy. See `docs/concepts/strategies/blend.md`."""

    name: ClassVar[str] = "blend"
    needs: ClassVar[frozenset[Need]] = frozenset(need for need, _ in _READINGS.values())

    def __init__(self, policy: BlendPolicy) -> None:
        self._policy = policy

    def required(self) -> frozenset[Need]:
        return frozenset(_READINGS[term.reading][0] for term in self._policy.terms if term.reading is not None)

    def score(self, pool: PoolSnapshot, eligible: Eligible) -> Mapping[EndpointId, Score]:
        capacities = capacities_of(pool.endpoints)
        scores = {}
        for view in pool.endpoints:
            lost = points_lost({term.name: (term.weight, term.loss(view)) for term in self._policy.terms})
            score = max(0.0, 100.0 - sum(lost.values()))
            share = score / 100.0 * (capacities[view.id] if self._policy.by_capacity else 1.0)
            scores[view.id] = Score(score, share, lost)
        return scores
