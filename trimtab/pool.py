"""One pool's control loop, pure: observations in, weights out."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from random import Random
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from trimtab.decision import EndpointDecision, PoolDecision
from trimtab.endpoint.attempt_tracker import MEMORY_S
from trimtab.endpoint.evidence import Evidence
from trimtab.endpoint.fleet import Fleet
from trimtab.endpoint.output_clock import SilenceLimits
from trimtab.endpoint.profile import ProfileMemory
from trimtab.endpoint.prometheus_readings import NOTHING_ASKED, Trust
from trimtab.endpoint.snapshot import EndpointId, TokenSample
from trimtab.endpoint.spec import EndpointSpec
from trimtab.health.endpoint_health import EndpointHealth, EndpointHealthMemory
from trimtab.health.probe_health import Watch
from trimtab.observation.kinds import Observation
from trimtab.policy.model import Pool
from trimtab.policy.prometheus import CustomSignal
from trimtab.scoring import make_strategy
from trimtab.weights.slow_start import NEW_ENDPOINT
from trimtab.weights.weighting import Weigher

__all__ = ["EndpointDecision", "EndpointSpec", "PoolController", "PoolDecision"]

_log = logging.getLogger(__name__)


class _Memory(BaseModel):
    """What is kept of one endpoint over a restart, as of `at`."""

    model_config = ConfigDict(frozen=True, allow_inf_nan=False)

    at: float
    uid: str = ""
    weight: int = Field(ge=1)
    takes_work: bool
    effective_score: float = Field(ge=0, le=100)
    profile: ProfileMemory
    health: EndpointHealthMemory

    def is_fresh(self, now: float) -> bool:
        return now - MEMORY_S <= self.at <= now


class PoolController:
    """Fleet, strategy and weighting of one pool. Not thread-safe: one owner calls it. `now` is Unix seconds."""

    def __init__(self, policy: Pool, rng: Random, memory: Mapping[str, Any] | None = None) -> None:
        """`memory` is what `remember` of an earlier controller gave; what is malformed or old is ignored."""
        self._policy = policy
        self._strategy = make_strategy(policy.scoring)
        self._fleet = Fleet(
            policy.name,
            ttft_alpha=self._strategy.ttft_alpha,
            stale_after_s=policy.signals.stale_after_s,
            silence_limits=_silence_limits(policy),
            trust=_trust(policy),
            class_limits=policy.class_limits,
        )
        self._weigher = Weigher(policy.weighting, rng, limits=_limits(policy), watch=_watch(policy))
        self._uids: Mapping[str, str] = {}
        self._judged: frozenset[EndpointId] = frozenset()  # the endpoints of the last step
        memory = memory if isinstance(memory, Mapping) else {}
        self._memories = _parse(memory.get("endpoints"))
        self._memory: Mapping[str, Any] = memory

    def set_endpoints(self, now: float, endpoints: Sequence[EndpointSpec]) -> None:
        """Replace the set of endpoints. One that comes back after it was gone is a new incarnation."""
        before = self._fleet.ids
        uids = {spec.address: spec.uid for spec in endpoints}
        replaced = {address for address, uid in uids.items() if _are_two(self._uids.get(address, ""), uid)}
        if replaced:
            # The fleet knows an endpoint by its address: the one that was there goes before the other comes.
            self._fleet.set_endpoints(now, [spec for spec in endpoints if spec.address not in replaced])
        self._uids = uids
        self._weigher.out = {spec.address: spec.out for spec in endpoints if spec.out}
        self._fleet.set_endpoints(now, endpoints)
        self._restore_learned(now)
        memories = dict(self._claim(now, (id for id in self._fleet.ids if id not in before)))
        # A pool that starts as a whole has nothing to be compared with, and does not start slowly.
        start = 100.0 if not before and not memories else NEW_ENDPOINT
        for id in self._fleet.ids:
            if id in memories:
                self._fleet.restore(memories[id].at, id.address, memories[id].profile)
                health = EndpointHealth.restore(now, memories[id].health, self._policy.weighting)
                self._weigher.enter(now, id, memories[id].effective_score, health)
            elif id not in before:
                self._weigher.enter(now, id, start)
        if not before:
            pushed = {id.address: (memory.weight, memory.takes_work) for id, memory in memories.items()}
            self._weigher.restore_pushed(pushed)

    def reconfigure(self, now: float, policy: Pool) -> None:
        """Take a new policy of the same pool; what is known of the endpoints is kept."""
        if policy.scoring != self._policy.scoring:
            strategy = make_strategy(policy.scoring)
            if strategy.name == self._strategy.name:
                strategy.restore(self._strategy.dump())
            self._strategy = strategy
        self._policy = policy
        self._fleet.reconfigure(
            ttft_alpha=self._strategy.ttft_alpha,
            stale_after_s=policy.signals.stale_after_s,
            silence_limits=_silence_limits(policy),
            trust=_trust(policy),
            class_limits=policy.class_limits,
        )
        self._weigher.config, self._weigher.limits = policy.weighting, _limits(policy)
        self._weigher.watch = _watch(policy)

    def observe(self, now: float, observations: Sequence[Observation]) -> None:
        """Take in observations of this pool, in any order; those of equal time have a defined order."""
        self._observe_all(self._fleet.observe(now, observations))

    def step(self, now: float) -> PoolDecision:
        """Compute the weights for the next interval."""
        self._observe_all(self._fleet.settle(now))
        pool = self._fleet.snapshot(now)
        ids = frozenset(view.id for view in pool.endpoints)
        for gone in sorted(self._judged - ids):
            self._strategy.forget(gone)
        self._judged = ids
        return self._weigher.decide(pool, self._strategy)

    def dump(self, now: float) -> dict[str, Any]:
        """What was learned, JSON-able, for the state file."""
        # Those of endpoints that discovery has not found again yet are kept for the next time.
        memories = {address: memory for address, memory in self._memories.items() if memory.is_fresh(now)}
        profiles = self._fleet.dump(now)
        for id in self._fleet.ids:
            health, pushed = self._weigher.health.get(id), self._weigher.pushed.get(id.address)
            if health and pushed:
                memories[id.address] = _Memory(
                    at=now,
                    uid=self._uids.get(id.address, ""),
                    weight=pushed[0],
                    takes_work=pushed[1],
                    effective_score=self._weigher.effective_score(id),
                    profile=profiles[id.address],
                    health=health.dump(),
                )
        learned = {address: what for address, what in self._strategy.dump().items() if address in memories}
        return {
            "at": now,
            "endpoints": {address: memory.model_dump(mode="json") for address, memory in sorted(memories.items())},
            "strategy": {"name": self._strategy.name, "memory": learned},
            "bytes_per_token": self._fleet.token_ratio.value,
        }

    def _observe_all(self, evidence: Iterable[Evidence]) -> None:
        for piece in evidence:
            if isinstance(piece, TokenSample):
                if (failure_signal := self._strategy.learn(piece)) is not None:
                    self._weigher.note(piece.at, piece.endpoint, failure_signal)
            else:
                self._weigher.observe(piece)

    def _claim(self, now: float, entered: Iterable[EndpointId]) -> Iterable[tuple[EndpointId, _Memory]]:
        """The memories of endpoints that come in. Each is used once: a later incarnation has none."""
        for id in entered:
            memory = self._memories.pop(id.address, None)
            if memory is None or _are_two(memory.uid, self._uids.get(id.address, "")):
                continue
            if memory.is_fresh(now):
                yield id, memory

    def _restore_learned(self, now: float) -> None:
        """What was learned of the pool as a whole, once."""
        memory, self._memory = self._memory, {}
        match memory:
            case {"at": int() | float() as at} if now - MEMORY_S <= at <= now:
                pass
            case _:
                return
        match memory:
            case {"strategy": {"name": self._strategy.name, "memory": Mapping() as learned}}:
                self._strategy.restore(learned)
        match memory:
            case {"bytes_per_token": int() | float() as ratio}:
                self._fleet.token_ratio.restore(ratio)


def _are_two(uid: str, other: str) -> bool:
    """Whether these are surely not the same process; an empty one is unknown."""
    return bool(uid and other and uid != other)


def _trust(policy: Pool) -> Trust:
    section = policy.signals.prometheus
    if section is None:
        return NOTHING_ASKED
    return Trust(
        asked=frozenset(section.texts(policy.engine)),
        preferred=frozenset(section.preferred),
        stale_after_s=section.stale_after_s,
    )


def _silence_limits(policy: Pool) -> SilenceLimits:
    failure_signals = policy.failure_signals
    return SilenceLimits(failure_signals.silent_after_s, failure_signals.silent_factor, failure_signals.stalled_after_s)


def _limits(policy: Pool) -> tuple[CustomSignal, ...]:
    section = policy.signals.prometheus
    return () if section is None else tuple(signal for signal in section.custom if signal.action != "term")


def _watch(policy: Pool) -> Watch:
    probe = policy.probe
    return Watch(probing=probe.interval_s > 0, frozen_s=probe.frozen_after_s(policy.engine))


def _parse(entries: object) -> dict[str, _Memory]:
    memories = {}
    for address, entry in entries.items() if isinstance(entries, Mapping) else ():
        try:
            memories[str(address)] = _Memory.model_validate(entry)
        except ValidationError as error:
            _log.warning("what was remembered of %s is ignored: %s", address, error.errors()[0]["msg"])
    return memories
