"""What weighting holds against one incarnation of an endpoint."""

from collections.abc import Mapping, Sequence
from math import inf
from random import Random
from types import MappingProxyType
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from trimtab.endpoint.attempt import AttemptOutcome
from trimtab.endpoint.evidence import OutcomeSeen
from trimtab.endpoint.failure_signals import FailureSignal, Suspected
from trimtab.endpoint.prometheus_readings import CustomReading
from trimtab.health.breaker import Breaker
from trimtab.health.cooldown import CoolDown
from trimtab.health.panic import Panic
from trimtab.health.probe_health import ProbeHealth, ProbeHealthMemory
from trimtab.policy.model import Weighting
from trimtab.policy.prometheus import CustomSignal

# An endpoint that was out for a full KV cache comes back a little below the limit, or it would flap.
_KV_HYSTERESIS = 0.02
_NONE: Mapping[str, tuple[str, str]] = MappingProxyType({})

Count = Annotated[int, Field(ge=0)]


class EndpointHealthMemory(BaseModel):
    """What of an endpoint's health is kept over a restart of the control plane. None: never."""

    model_config = ConfigDict(frozen=True, allow_inf_nan=False)

    cooling_until: float | None = None
    cool_down_repeats: Count = 0
    leaving_until: float | None = None
    breaker_failures: Count = 0
    breaker_openings: Count = 0
    breaker_opened_at: float | None = None
    breaker_until: float | None = None
    why: dict[AttemptOutcome, str] = {}
    panic_part: float = Field(default=0, ge=0, le=1)
    probe_health: ProbeHealthMemory | None = None


class EndpointHealth:
    """Cool-down, drain, breaker, probes and KV rule of one incarnation of an endpoint."""

    __slots__ = (
        "_failure_signals",
        "_past",
        "_why",
        "breaker",
        "cool_down",
        "leaving_until",
        "panic",
        "probe_health",
        "was_full",
    )

    def __init__(self) -> None:
        self.cool_down = CoolDown()
        self.breaker = Breaker()
        self.probe_health = ProbeHealth()
        self.leaving_until = -inf
        self._why: dict[AttemptOutcome, str] = {}  # of the last one of a kind
        self.was_full = False  # out for it at the last step
        self._past = _NONE  # custom signals past their limits -> action, and why
        self.panic = Panic()
        self._failure_signals: list[FailureSignal] = []  # since they were taken last

    def judged(self, judged: OutcomeSeen, config: Weighting, rng: Random) -> None:
        """Take in what an attempt said of the endpoint."""
        match judged.judgement:
            case AttemptOutcome.REFUSED:
                self.cool_down.refused(judged.at, judged.retry_after_s, config, rng)
            case AttemptOutcome.LEAVING:
                self._failure_signals.append(FailureSignal.LEAVING)
                self.leaving_until = max(self.leaving_until, judged.at + config.cool_down_cap_s)
            case AttemptOutcome.FAILURE:
                if judged.failure_signal is not None:
                    self._failure_signals.append(judged.failure_signal)
                if self.breaker.failed(judged.at, judged.started_at, config, mid_answer=judged.generated):
                    self._failure_signals.append(FailureSignal.FAILURES)
            case AttemptOutcome.SUCCESS | AttemptOutcome.UNKNOWN:
                self.breaker.succeeded(judged.at, judged.started_at, generated=judged.generated)
                return
            case AttemptOutcome.NO_OUTPUT if judged.others_answer and self.breaker.tried(
                judged.at, judged.started_at, config
            ):
                self._failure_signals.append(FailureSignal.NO_OUTPUT)
                self._why[AttemptOutcome.FAILURE] = f"{judged.why}, and other endpoints give output to such requests"
            case _:
                return
        self.panic.accuse()
        self._why[judged.judgement] = judged.why

    def token_seen(self, at: float, started_at: float, *, further: bool) -> None:
        """An attempt that was sent at `started_at` showed its first token, or a further one after a suspicion."""
        self.breaker.token_seen(started_at, further=further)
        self.probe_health.token_seen(at, started_at)

    def suspected(self, suspected: Suspected, config: Weighting) -> None:
        """Take in that the endpoint is taken for dead."""
        mid_answer = suspected.failure_signal is FailureSignal.STALLED
        if self.breaker.suspect(suspected.at, suspected.since, config, mid_answer=mid_answer):
            self._failure_signals.append(suspected.failure_signal)
            self._why[AttemptOutcome.FAILURE] = suspected.why

    def recent(self, now: float) -> tuple[float, float]:
        """How many attempts failed recently, of how many."""
        return self.breaker.recent(now)

    def open(self, now: float, failure_signal: FailureSignal, why: str, config: Weighting) -> None:
        """Open the breaker, which is closed."""
        self._failure_signals.append(failure_signal)
        self._why[AttemptOutcome.FAILURE] = why
        self.breaker.open(now, config)

    def note(self, failure_signal: FailureSignal) -> None:
        """Take note of a failure signal from which nothing follows here."""
        self._failure_signals.append(failure_signal)

    def take_failure_signals(self) -> Sequence[FailureSignal]:
        """The failure signals that were seen since this was asked last."""
        failure_signals, self._failure_signals = self._failure_signals, []
        return failure_signals

    def why(self, outcome: AttemptOutcome) -> str:
        """What is said of the last attempt with an outcome."""
        return self._why.get(outcome, outcome.value)

    def is_full(self, kv_usage: float | None, limit: float) -> bool:
        """Whether the KV cache is at the limit; UNKNOWN is not."""
        if kv_usage is None:
            return False
        return kv_usage >= limit or (self.was_full and kv_usage >= limit - _KV_HYSTERESIS)

    def read_limits(self, custom: Mapping[str, CustomReading], limits: Sequence[CustomSignal]) -> None:
        """See which custom signals are past their limits; one that is UNKNOWN is not."""
        past: dict[str, tuple[str, str]] = {}
        for limit in limits:
            value = custom[limit.name].value if limit.name in custom else None
            if value is not None and limit.is_past(value, was_past=limit.name in self._past):
                unit = f" {limit.shown_unit}" if limit.shown_unit else ""
                side = f"above {limit.above:g}" if limit.above is not None else f"below {limit.below:g}"
                past[limit.name] = (limit.action, f"{limit.name} is {value:g}{unit}, the limit is {side}")
        self._past = past or _NONE

    def past_limit(self, action: str) -> str | None:
        """What is said of the first custom signal with this action that is past its limit."""
        return next((why for of, why in self._past.values() if of == action), None)

    def dump(self) -> EndpointHealthMemory:
        def when(at: float) -> float | None:
            return None if at == -inf else at

        return EndpointHealthMemory(
            cooling_until=when(self.cool_down.until),
            cool_down_repeats=self.cool_down.repeats,
            leaving_until=when(self.leaving_until),
            breaker_failures=self.breaker.failures,
            breaker_openings=self.breaker.openings,
            breaker_opened_at=when(self.breaker.opened_at),
            breaker_until=when(self.breaker.until),
            why=dict(self._why),
            panic_part=self.panic.part,
            probe_health=self.probe_health.dump(),
        )

    @classmethod
    def restore(cls, now: float, memory: EndpointHealthMemory, config: Weighting) -> "EndpointHealth":
        """Go on where `dump` left off; nothing lasts longer than if it had begun just now."""

        def when(at: float | None, at_most_s: float) -> float:
            return -inf if at is None else min(at, now + at_most_s)

        health = cls()
        health.cool_down.until = when(memory.cooling_until, config.cool_down_cap_s)
        health.cool_down.repeats = memory.cool_down_repeats
        health.leaving_until = when(memory.leaving_until, config.cool_down_cap_s)
        health.breaker.restore(
            failures=memory.breaker_failures,
            openings=memory.breaker_openings,
            opened_at=when(memory.breaker_opened_at, 0.0),
            until=when(memory.breaker_until, config.breaker_open_cap_s),
        )
        health._why = dict(memory.why)
        health.panic = Panic(memory.panic_part)
        health.probe_health = ProbeHealth.restore(now, memory.probe_health)
        return health
