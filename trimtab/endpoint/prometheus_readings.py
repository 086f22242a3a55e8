"""What a Prometheus server knows of an endpoint, each value with an age of its own."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf
from typing import Any, get_type_hints

from trimtab.endpoint.engine_rates import Rates
from trimtab.endpoint.engine_readings import NOT_READ, PROCESS_START_JITTER_S, Origin, ReadingsView, fault_of
from trimtab.observation.kinds import PrometheusSample, Signals

PROMETHEUS = "prometheus"

_SIGNALS, _RATES = (
    tuple(name for name, hint in get_type_hints(kind).items() if hint == float | None) for kind in (Signals, Rates)
)
ASKABLE = frozenset(_SIGNALS + _RATES)
"""The signals and rates that are one number, so that a query can give them."""


@dataclass(frozen=True, slots=True)
class CustomReading:
    """A custom signal of an endpoint. `value` None is UNKNOWN, and `why` says why."""

    value: float | None
    at: float | None = None  # of the newest sample behind the value, Unix seconds
    why: str = ""


@dataclass(frozen=True, slots=True)
class Trust:
    """How far what Prometheus says is believed."""

    asked: frozenset[str] = frozenset()  # signals; an answer about any other comes too late
    preferred: frozenset[str] = frozenset()  # those that count before the engine's own page
    stale_after_s: float = 0.0


NOTHING_ASKED = Trust()


@dataclass(frozen=True, slots=True)
class PrometheusView:
    """What is known with the help of Prometheus."""

    readings: ReadingsView
    custom: Mapping[str, CustomReading]  # in the order of their names


class PrometheusReadings:
    """The latest values of one incarnation."""

    __slots__ = ("_latest", "_made_of", "_stale_at", "_view", "_why")

    def __init__(self) -> None:
        self._latest: dict[str, PrometheusSample] = {}  # with a value
        self._why: dict[str, str] = {}  # of those whose last answer gave no value, or failed
        # Pools are looked at several times a second, and answers come every few seconds.
        self._view: PrometheusView | None = None
        self._made_of: tuple[ReadingsView, Trust] | None = None
        self._stale_at = inf  # when the first of its values is too old

    def shows_restart(self, seen: PrometheusSample) -> bool:
        """Whether a value comes from a later process than the one before it."""
        before = self._latest.get(seen.signal)
        if before is None or before.value is None or seen.value is None or seen.sampled_at <= before.sampled_at:
            return False
        if seen.signal == "process_start":
            return seen.value > before.value + PROCESS_START_JITTER_S
        return seen.signal in ("generated_tokens", "preemptions") and seen.value < before.value

    def take(self, seen: PrometheusSample) -> bool:
        """Take in an answer; whether it has a value. One that failed leaves the value that was known before."""
        self._view = None
        why = seen.error
        if seen.value is not None and seen.signal in ASKABLE:
            why = fault_of(seen.signal, seen.value)
        if why:
            self._why[seen.signal] = why
            if seen.answered:
                self._latest.pop(seen.signal, None)
            return False
        self._why.pop(seen.signal, None)
        before = self._latest.get(seen.signal)
        # Of two servers behind one address one may lag behind.
        if before is None or seen.sampled_at >= before.sampled_at:
            self._latest[seen.signal] = seen
        return seen.value is not None

    def view(self, readings: ReadingsView, now: float, trust: Trust) -> PrometheusView:
        """What other sources say, with what Prometheus knows beside it, or before it where it is preferred."""
        made_of = self._made_of
        if (
            self._view is not None
            and made_of is not None
            and made_of[0] is readings
            and made_of[1] is trust
            and now <= self._stale_at
        ):
            return self._view
        fresh = {name: seen for name in trust.asked if (seen := self._fresh(name, now, trust))}
        self._stale_at = min((seen.sampled_at + trust.stale_after_s for seen in fresh.values()), default=inf)
        self._view = PrometheusView(self._added_to(readings, fresh, trust), self._custom(fresh, trust))
        self._made_of = (readings, trust)
        return self._view

    def _added_to(self, readings: ReadingsView, fresh: Mapping[str, PrometheusSample], trust: Trust) -> ReadingsView:
        if not trust.asked:
            return readings
        taken = {
            name: seen
            for name, seen in fresh.items()
            if name in ASKABLE and (name in trust.preferred or _lacks(readings, name))
        }
        unknown = {
            name: self._and_why(name, why) if name in trust.asked else why
            for name, why in readings.unknown.items()
            if name not in taken
        }
        origins = {name: Origin(PROMETHEUS, "", seen.sampled_at) for name, seen in taken.items() if name in _SIGNALS}
        values: dict[str, Any] = {name: seen.value for name, seen in taken.items()}
        return ReadingsView(
            replace(readings.signals, **{name: values[name] for name in _SIGNALS if name in values}),
            replace(readings.rates, **{name: values[name] for name in _RATES if name in values}),
            {**readings.origins, **origins},
            unknown,
        )

    def _custom(self, fresh: Mapping[str, PrometheusSample], trust: Trust) -> Mapping[str, CustomReading]:
        readings = {}
        for name in sorted(trust.asked - ASKABLE):
            seen = self._latest.get(name)
            at = seen.sampled_at if seen is not None else None
            if seen is not None and name in fresh:
                readings[name] = CustomReading(seen.value, at)
            else:
                readings[name] = CustomReading(None, at, self._why_unknown(name))
        return readings

    def _fresh(self, name: str, now: float, trust: Trust) -> PrometheusSample | None:
        seen = self._latest.get(name)
        return seen if seen is not None and now - seen.sampled_at <= trust.stale_after_s else None

    def _and_why(self, name: str, why: str) -> str:
        own = f"{PROMETHEUS}: {self._why_unknown(name)}"
        return own if why == NOT_READ else f"{why}; {own}"

    def _why_unknown(self, name: str) -> str:
        why = self._why.get(name, "")
        if name in self._latest:
            return f"its newest sample is too old{f': {why}' if why else ''}"
        return why or "not asked yet"


def _lacks(readings: ReadingsView, name: str) -> bool:
    return getattr(readings.signals if name in _SIGNALS else readings.rates, name) is None
