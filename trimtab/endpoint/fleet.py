"""What is known of a pool's endpoints: observations are the only way in, a frozen snapshot the way out."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite
from types import MappingProxyType

from trimtab.endpoint.early_ends import AnswerTimes
from trimtab.endpoint.engine_readings import plausible
from trimtab.endpoint.evidence import Evidence
from trimtab.endpoint.failure_signals import FailureSignal, Suspected
from trimtab.endpoint.lrs import LoadReports
from trimtab.endpoint.output_clock import SilenceLimits
from trimtab.endpoint.peers import Peers
from trimtab.endpoint.profile import Profile, ProfileMemory
from trimtab.endpoint.prometheus_readings import NOTHING_ASKED, Trust
from trimtab.endpoint.request_classes import Classes
from trimtab.endpoint.sampling_confidence import SamplingConfidence
from trimtab.endpoint.snapshot import EndpointId, PoolSnapshot
from trimtab.endpoint.spec import EndpointSpec
from trimtab.endpoint.token_ratio import TokenRatio
from trimtab.observation.kinds import (
    AnswerRead,
    AttemptEnded,
    AttemptStarted,
    ClusterChanged,
    FirstToken,
    LoadReported,
    Observation,
    Probed,
    PrometheusSample,
    Rejected,
    SignalsRead,
    StreamRead,
    WorkerMissed,
)
from trimtab.observation.order import in_order

_NO_CLASSES: Mapping[str, float] = MappingProxyType({})
# Of so many addresses that are gone the incarnation is kept: where none is used twice, they would fill the
# memory.
_DEPARTED_MAX = 1024

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Departed:
    incarnation: int
    open_requests: frozenset[str]


_NEVER_THERE = _Departed(-1, frozenset())


class Fleet:
    """The profiles of one pool's endpoints. Not thread-safe: one owner calls it. `now` is Unix seconds."""

    def __init__(
        self,
        pool: str,
        *,
        ttft_alpha: float,
        stale_after_s: float,
        silence_limits: SilenceLimits,
        trust: Trust = NOTHING_ASKED,
        class_limits: Mapping[str, float] = _NO_CLASSES,
    ) -> None:
        self._pool = pool
        self._classes = Classes(class_limits)
        self._ttft_alpha = ttft_alpha
        self._stale_after_s = stale_after_s
        self._silence_limits = silence_limits
        self._trust = trust
        self._sampling_confidence = SamplingConfidence()
        self._peers = Peers()
        self._answer_times = AnswerTimes()
        self._load = LoadReports()
        self.token_ratio = TokenRatio()
        self._profiles: dict[str, Profile] = {}
        self._departed: dict[str, _Departed] = {}
        self._evidence: list[Evidence] = []

    def reconfigure(
        self,
        *,
        ttft_alpha: float,
        stale_after_s: float,
        silence_limits: SilenceLimits,
        trust: Trust = NOTHING_ASKED,
        class_limits: Mapping[str, float] = _NO_CLASSES,
    ) -> None:
        """Take new numbers; they hold for samples and readings from now on."""
        if class_limits != self._classes.limits:
            self._classes = Classes(class_limits)
        self._ttft_alpha, self._stale_after_s, self._trust = ttft_alpha, stale_after_s, trust
        self._silence_limits = silence_limits
        for profile in self._profiles.values():
            profile.tracker.ttft.alpha = ttft_alpha

    @property
    def ids(self) -> tuple[EndpointId, ...]:
        return tuple(sorted(profile.id for profile in self._profiles.values()))

    def set_endpoints(self, now: float, specs: Sequence[EndpointSpec]) -> None:
        """Replace the set of endpoints. One that stays keeps all that is known of it, whatever else changed.

        One that comes back after it was gone is a new incarnation: what it was, and what still ends of
        that, is not its own.
        """
        wanted = {spec.address: spec for spec in specs}
        # Before the first set there was nothing to end: attempts that are older than the control plane count.
        born_at = now if self._profiles or self._departed else -inf
        for address in [address for address in self._profiles if address not in wanted]:
            self._depart(self._profiles.pop(address))
        for address, spec in wanted.items():
            if (known := self._profiles.get(address)) is not None:
                known.spec = spec
            else:
                self._enter(born_at, spec)

    def restore(self, at: float, address: str, memory: ProfileMemory) -> None:
        """Let an endpoint begin with what was remembered of it at `at`."""
        self._profiles[address].restore(at, memory)
        if memory.ttft_samples:
            self._peers.prove(self._profiles[address].id)

    def dump(self, now: float) -> Mapping[str, ProfileMemory]:
        """What is worth keeping over a restart, by address."""
        return {address: profile.dump(now) for address, profile in sorted(self._profiles.items())}

    def observe(self, now: float, observations: Sequence[Observation]) -> Sequence[Evidence]:
        """Take in observations, in any order, and tell what they say to weighting and to the strategy.

        Those of another pool, of unknown endpoints, or of an earlier incarnation say nothing.
        """
        batch = in_order(now, observations)
        if len(batch) < len(observations):
            _log.warning("%s: %d observations of an impossible time", self._pool, len(observations) - len(batch))
        for observation in batch:
            if observation.pool != self._pool:
                continue
            if (profile := self._profiles.get(observation.address)) is not None:
                self._apply(now, profile, observation)
            else:
                self._apply_to_all(observation)
        for profile in self._profiles.values():
            profile.tracker.join_held(now)
        return self._tell_all()

    def settle(self, now: float) -> Sequence[Evidence]:
        """Draw what follows from the passing of time: verdicts that did not come, ends that were lost, silence."""
        moments = self._load.settled(now)
        profiles = [profile for _, profile in sorted(self._profiles.items())]
        for profile in profiles:
            profile.settle(now, moments)
        # What is not known of an endpoint itself is taken from the slowest of the others.
        ttfts_s = [profile.usual_ttft_s(now) for profile in profiles]
        answers_s = [profile.tracker.output_clock.usual_answer_s(now) for profile in profiles]
        slowest_ttft_s = max((ttft_s for ttft_s in ttfts_s if ttft_s is not None), default=None)
        slowest_answer_s = max((answer_s for answer_s in answers_s if answer_s is not None), default=None)
        longest_answer_s = max(
            (profile.tracker.output_clock.longest_answer_s(now) for profile in profiles), default=0.0
        )
        for profile, ttft_s, answer_s in zip(profiles, ttfts_s, answers_s, strict=True):
            profile.tracker.silence.suspect(
                now,
                self._silence_limits,
                slowest_ttft_s if ttft_s is None else ttft_s,
                slowest_answer_s if answer_s is None else answer_s,
                longest_answer_s,
            )
        for endpoint, why in self._peers.suspects():
            self._evidence.append(Suspected(endpoint, now, now, FailureSignal.NO_OUTPUT, why))
        return self._tell_all()

    def snapshot(self, now: float) -> PoolSnapshot:
        """All that is known at `now`, frozen."""
        views = [
            profile.view(now, self._stale_after_s, self._trust, self._load.in_flight(now, address))
            for address, profile in self._profiles.items()
        ]
        endpoints = tuple(sorted(views, key=lambda view: view.id))
        return PoolSnapshot(
            self._pool, now, endpoints, classes=self._classes.view(), bytes_per_token=self.token_ratio.value
        )

    def _apply(self, now: float, profile: Profile, observation: Observation) -> None:
        match observation:
            case AttemptStarted():
                if profile.tracker.started(observation):
                    self._classes.sent(observation.prompt_bytes)
            case FirstToken() | AnswerRead() | Rejected() | StreamRead():
                profile.tracker.heard(now, observation)
            case AttemptEnded():
                if isfinite(observation.started_at):
                    profile.tracker.ended(now, observation)
            case Probed():
                profile.probed(observation)
            case SignalsRead():
                self._read(now, profile, observation)
            case PrometheusSample():
                self._take_prometheus(now, profile, observation)

    def _apply_to_all(self, observation: Observation) -> None:
        match observation:
            case LoadReported():
                self._load.take(observation)
            case ClusterChanged():
                self._load.cluster_changed(observation.at)
            case WorkerMissed():
                self._sampling_confidence.miss(observation.at)
                for profile in self._profiles.values():
                    profile.tracker.doubt()

    def _read(self, now: float, profile: Profile, read: SignalsRead) -> None:
        read = plausible(read)
        if profile.shows_restart(read):
            profile = self._restart(read.at, profile)
        profile.read(now, read)

    def _take_prometheus(self, now: float, profile: Profile, seen: PrometheusSample) -> None:
        if profile.prometheus_shows_restart(seen):
            profile = self._restart(seen.sampled_at, profile)
        profile.prometheus_readings(now, seen)

    def _restart(self, at: float, profile: Profile) -> Profile:
        _log.info("%s: %s was restarted", self._pool, profile.id)
        self._depart(self._profiles.pop(profile.id.address))
        return self._enter(at, profile.spec)

    def _enter(self, born_at: float, spec: EndpointSpec) -> Profile:
        departed = self._departed.pop(spec.address, _NEVER_THERE)
        profile = Profile(
            EndpointId(spec.address, departed.incarnation + 1),
            spec,
            born_at=born_at,
            ttft_alpha=self._ttft_alpha,
            sampling_confidence=self._sampling_confidence,
            peers=self._peers,
            answer_times=self._answer_times,
            token_ratio=self.token_ratio,
            departed=departed.open_requests,
            notify=self._evidence.append,
        )
        self._profiles[spec.address] = profile
        return profile

    def _depart(self, profile: Profile) -> None:
        self._peers.forget(profile.id)
        self._departed[profile.id.address] = _Departed(profile.id.incarnation, profile.tracker.leases.request_ids)
        while len(self._departed) > _DEPARTED_MAX:
            del self._departed[next(iter(self._departed))]

    def _tell_all(self) -> Sequence[Evidence]:
        evidence = tuple(self._evidence)
        self._evidence.clear()
        return evidence
