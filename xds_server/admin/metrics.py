"""Everything that is counted, for Prometheus."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import prometheus_client
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import choose_encoder

from trimtab.observation.kinds import (
    SCRAPE,
    AnswerRead,
    AttemptEnded,
    AttemptStarted,
    FirstToken,
    Observation,
    Outcome,
    Probed,
    Rejected,
    SignalsRead,
)
from trimtab.pool import EndpointDecision, PoolDecision
from xds_server.admin.control_loop_latency import LoopTimes
from xds_server.admin.decision_metrics import DecisionCollector
from xds_server.admin.first_tokens import FirstTokens
from xds_server.admin.state import AdminState
from xds_server.ads.events import XdsEvents
from xds_server.ads.snapshot import TypeUrl

# From a cached prompt on a fast machine to a long one behind a full queue.
_TTFT_BUCKETS = (
    0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1, 1.5, 2, 3, 5, 7.5, 10, 15, 20, 40, 80, 160,
)  # fmt: skip
_LATENCY_BUCKETS = (0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160, 320, 640)
_LOOP_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.15, 0.2, 0.25, 0.35, 0.5, 0.75, 1, 2.5, 5, 10)
_ACK_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5)
_STEP_BUCKETS = (0.0001, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1)

# An observing process that was not heard of while so many others were has ended.
_OBSERVERS_MAX = 256


@dataclass(frozen=True, slots=True)
class _Pool:
    """The latest decision of a pool, by address."""

    decision: PoolDecision
    law: str
    endpoints: Mapping[str, EndpointDecision]


class Metrics(XdsEvents):
    """Counts what happens, and shows the latest decisions of `state` beside it.

    The label `endpoint` (or `backend`) is the name in the policy. All series of an endpoint vanish with
    the decision that no longer has it, and what is still heard of it is not counted. `now` is Unix
    seconds. Belongs to the event loop that owns `state`.
    """

    def __init__(self, state: AdminState, *, now: Callable[[], float] = time.time) -> None:
        # They would double our series for nothing, and this process exports no others.
        prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]
        self._state = state
        self._now = now
        self._pools: dict[str, _Pool] = {}
        self._first_tokens = FirstTokens()
        self._observers: dict[str, dict[Counter, float]] = {}
        self._loop_times = LoopTimes()
        self._counted: set[tuple[str, str]] = set()  # pool and name of endpoints that may have series
        self._stepped: set[str] = set()  # pools that may have series
        self._asked: set[str] = set()  # those that may have series of queries
        self.registry = CollectorRegistry()
        self.registry.register(DecisionCollector(state))
        self._declare()

    async def render(self, accept: str) -> tuple[bytes, str]:
        """The page and its content type, in the format that the Accept header asks for.

        Formatting happens in a thread: a thousand endpoints take longer than a step of the weight loop.
        """
        self._prune()
        encode, content_type = choose_encoder(accept)
        return await asyncio.to_thread(encode, self.registry), content_type

    def observe(self, observations: Sequence[Observation]) -> None:
        """Count observations of any pools."""
        for seen in observations:
            pool = self._pool(seen.pool)
            endpoint = pool and pool.endpoints.get(seen.address)
            if endpoint or (pool and not seen.address):
                self._loop_times.seen(seen)
            if pool and endpoint:
                self._counted.add((seen.pool, endpoint.view.name))
                self._count(pool, endpoint, seen)

    def decided(self, decision: PoolDecision, step_seconds: float) -> None:
        """A step was made, and took so long; if it `changed`, it is about to be pushed."""
        self._stepped.add(decision.pool)
        self._step.labels(decision.pool).observe(step_seconds)
        if decision.signs:
            names = {endpoint.id: endpoint.view.name for endpoint in decision.endpoints}
            for id, sign in decision.signs:
                self._counted.add((decision.pool, names[id]))
                self._signs.labels(decision.pool, names[id], sign).inc()
        self._loop_times.decided(decision.pool, changed=decision.changed)

    def observer(
        self, observer: str, cpu_seconds: float, watched: int, dropped: int, faults: int, gated: Mapping[str, int]
    ) -> None:
        """The counters of an observing process since its start; one that falls has begun anew."""
        last = self._observers.pop(observer, {})
        self._observers[observer] = {
            self._observation_cpu: cpu_seconds,
            self._watched: watched,
            self._dropped: dropped,
            self._faults.labels("observation"): faults,
            **{self._gated.labels(release): count for release, count in gated.items()},
        }
        if len(self._observers) > _OBSERVERS_MAX:
            del self._observers[next(iter(self._observers))]
        for counter, value in self._observers[observer].items():
            before = last.get(counter, 0)
            counter.inc(value - before if value >= before else value)

    def watch_share(self, percent: float) -> None:
        """Streamed attempts that are watched, 0 to 100."""
        self._watch_share.set(percent / 100)

    def policy_accepted(self) -> None:
        """A policy has come into force."""
        self._reloads.labels("ok").inc()
        self._policy_valid.set(1)

    def policy_refused(self) -> None:
        """The policy file was changed and is not valid: the last good policy stays in force."""
        self._reloads.labels("failed").inc()
        self._policy_valid.set(0)

    def fault(self, part: str) -> None:
        """A part of the control plane failed and was caught; `part` is one of a few fixed words."""
        self._faults.labels(part).inc()

    def queried(self, pool: str, signal: str, error: str) -> None:
        """A Prometheus server was asked for a signal; `error` is "" if it answered."""
        self._queries.labels(pool, signal).inc()
        failed = self._query_errors.labels(pool, signal)
        if error:
            failed.inc()
        self._asked.add(pool)

    def connected(self, node: str, variant: str) -> None:
        self._envoys.labels(variant).inc()

    def disconnected(self, node: str, variant: str) -> None:
        self._loop_times.gone(node)
        self._envoys.labels(variant).dec()

    def pushed(self, node: str, type_url: str, version: str, resources: int, size_bytes: int) -> None:
        kind = _type_name(type_url)
        self._pushes.labels(kind).inc()
        self._pushed_resources.labels(kind).inc(resources)
        self._pushed_bytes.labels(kind).inc(size_bytes)
        if kind == "EDS":
            self._loop_times.pushed(node, version)

    def acked(self, node: str, type_url: str, version: str, seconds: float) -> None:
        kind = _type_name(type_url)
        self._acks.labels(kind).inc()
        self._ack_delay.labels(kind).observe(seconds)
        if kind == "EDS":
            for evidence in self._loop_times.acked(node, version):
                if evidence.pool in self._stepped:
                    took = self._now() - evidence.at
                    self._loop.labels(evidence.pool, evidence.source).observe(max(0.0, took))

    def nacked(self, node: str, type_url: str, version: str, reason: str) -> None:
        kind = _type_name(type_url)
        self._nacks.labels(kind).inc()
        if kind == "EDS":
            self._loop_times.nacked(node, version)

    def _count(self, pool: _Pool, endpoint: EndpointDecision, seen: Observation) -> None:
        where = (seen.pool, endpoint.view.name)
        ttft_s = None
        match seen:
            case AttemptStarted():
                self._routed.labels(*where, pool.law, endpoint.state).inc()
                ttft_s = self._first_tokens.started(seen)
            case FirstToken():
                ttft_s = self._first_tokens.token(seen)
            case AttemptEnded():
                self._attempts.labels(*where, seen.outcome, seen.status).inc()
                if seen.outcome is Outcome.UNREACHABLE:
                    self._routed.labels(*where, pool.law, endpoint.state).inc()
                else:
                    self._latency.labels(*where).observe(max(0.0, seen.at - seen.started_at))
                ttft_s = self._first_tokens.ended(seen)
            case Rejected():
                self._rejections.labels(*where, seen.verdict).inc()
            case AnswerRead():
                self._answers.labels(*where, seen.output).inc()
            case Probed():
                self._probes.labels(*where, seen.result).inc()
                if seen.ttft_s is not None:
                    self._probe_ttft.labels(*where).observe(seen.ttft_s)
            case SignalsRead() if seen.source == SCRAPE:
                self._scrapes.labels(*where).inc()
                if seen.error:
                    self._scrape_errors.labels(*where).inc()
        if ttft_s is not None:
            self._ttft.labels(*where).observe(ttft_s)

    def _pool(self, name: str) -> _Pool | None:
        decision = self._state.decisions.get(name)
        if decision is None:
            return None
        known = self._pools.get(name)
        if known is None or known.decision is not decision:
            laws = (pool.scoring.law for pool in self._state.policy.pools if pool.name == name)
            endpoints = {endpoint.id.address: endpoint for endpoint in decision.endpoints}
            known = self._pools[name] = _Pool(decision, next(laws, ""), endpoints)
        return known

    def _prune(self) -> None:
        """Take out the series of endpoints that are gone."""
        decisions = self._state.decisions
        present = {(name, e.view.name) for name, decision in decisions.items() for e in decision.endpoints}
        for pool, name in self._counted - present:
            for metric in (
                self._ttft,
                self._attempts,
                self._rejections,
                self._answers,
                self._signs,
                self._scrapes,
                self._scrape_errors,
                self._probes,
                self._probe_ttft,
            ):
                metric.remove_by_labels({"pool": pool, "endpoint": name})
            for metric in (self._routed, self._latency):
                metric.remove_by_labels({"pool": pool, "backend": name})
        self._counted &= present
        for gone in self._stepped - decisions.keys():
            for metric in (self._step, self._loop):
                metric.remove_by_labels({"pool": gone})
        self._stepped &= decisions.keys()
        for gone in self._asked - decisions.keys():
            for metric in (self._queries, self._query_errors):
                metric.remove_by_labels({"pool": gone})
        self._asked &= decisions.keys()
        for gone in self._pools.keys() - decisions.keys():
            del self._pools[gone]

    def _declare(self) -> None:
        registry = self.registry
        endpoint = ("pool", "endpoint")
        self._ttft = Histogram(
            "trimtab_ttft_seconds",
            "From the start of an attempt to the first chunk with generated content.",
            endpoint,
            registry=registry,
            buckets=_TTFT_BUCKETS,
        )
        self._attempts = Counter(
            "trimtab_attempts",
            "Attempts that have ended, by outcome and status code; 0 is none.",
            (*endpoint, "outcome", "code"),
            registry=registry,
        )
        self._rejections = Counter(
            "trimtab_rejections",
            "Error answers that were read, by verdict.",
            (*endpoint, "verdict"),
            registry=registry,
        )
        self._answers = Counter(
            "trimtab_answers_read",
            "Unary answers, and streams without a token, that were read, by whether they carry model output.",
            (*endpoint, "output"),
            registry=registry,
        )
        self._signs = Counter(
            "trimtab_signs",
            "Signs of death of an endpoint, by kind; docs/failures.md says what follows from each.",
            (*endpoint, "sign"),
            registry=registry,
        )
        self._scrapes = Counter(
            "trimtab_scrapes",
            "Readings of the engine's own metrics, the failed ones too.",
            endpoint,
            registry=registry,
        )
        self._scrape_errors = Counter(
            "trimtab_scrape_errors",
            "Readings of the engine's own metrics that failed.",
            endpoint,
            registry=registry,
        )
        self._probes = Counter(
            "trimtab_probes",
            "Probes that were answered or given up, by what they found.",
            (*endpoint, "result"),
            registry=registry,
        )
        self._probe_ttft = Histogram(
            "trimtab_probe_ttft_seconds",
            "From the start of a probe to its token. Probes are not in trimtab_ttft_seconds.",
            endpoint,
            registry=registry,
            buckets=_TTFT_BUCKETS,
        )
        self._queries = Counter(
            "trimtab_prometheus_queries",
            "Questions to a Prometheus server, the failed ones too.",
            ("pool", "signal"),
            registry=registry,
        )
        self._query_errors = Counter(
            "trimtab_prometheus_query_errors",
            "Questions to a Prometheus server that failed.",
            ("pool", "signal"),
            registry=registry,
        )
        self._routed = Counter(
            "lb_route_decision",
            "Attempts sent to a backend, by the law that weighs it (method) and its state (reason).",
            ("pool", "backend", "method", "reason"),
            registry=registry,
        )
        self._latency = Histogram(
            "lb_upstream_latency_seconds",
            "From the start of an attempt to its end.",
            ("pool", "backend"),
            registry=registry,
            buckets=_LATENCY_BUCKETS,
        )
        self._step = Histogram(
            "trimtab_step_seconds",
            "Duration of one computation of a pool's weights.",
            ("pool",),
            registry=registry,
            buckets=_STEP_BUCKETS,
        )
        self._loop = Histogram(
            "trimtab_loop_seconds",
            "From the oldest evidence of a source that a pushed decision took in to the ACK of each Envoy.",
            ("pool", "source"),
            registry=registry,
            buckets=_LOOP_BUCKETS,
        )
        self._envoys = Gauge(
            "trimtab_envoys_connected",
            "Open discovery streams, by protocol.",
            ("variant",),
            registry=registry,
        )
        self._pushes = Counter("trimtab_xds_pushes", "Responses sent, by type.", ("type",), registry=registry)
        self._pushed_resources = Counter(
            "trimtab_xds_pushed_resources", "Resources sent, by type.", ("type",), registry=registry
        )
        self._pushed_bytes = Counter("trimtab_xds_pushed_bytes", "Bytes sent, by type.", ("type",), registry=registry)
        self._acks = Counter(
            "trimtab_xds_acks", "Responses that an Envoy has accepted, by type.", ("type",), registry=registry
        )
        self._nacks = Counter(
            "trimtab_xds_nacks", "Responses that an Envoy has refused, by type.", ("type",), registry=registry
        )
        self._ack_delay = Histogram(
            "trimtab_xds_ack_seconds",
            "From a push to its ACK, by type.",
            ("type",),
            registry=registry,
            buckets=_ACK_BUCKETS,
        )
        # A series that begins at 1 has not increased, for Prometheus: the first refusal would raise no alert.
        for kind in TypeUrl:
            for counter in (self._pushes, self._acks, self._nacks):
                counter.labels(kind.name)
        self._watch_share = Gauge(
            "trimtab_watch_share_ratio", "Part of the attempts that is watched.", registry=registry
        )
        self._observation_cpu = Counter(
            "trimtab_observation_cpu_seconds", "CPU time used by observing processes.", registry=registry
        )
        self._watched = Counter("trimtab_attempts_watched", "Answers that were watched.", registry=registry)
        self._gated = Counter(
            "trimtab_gate_releases",
            "Streamed answers that the first-token gate has held, by why it let go of them.",
            ("release",),
            registry=registry,
        )
        self._dropped = Counter(
            "trimtab_observations_dropped",
            "Observations lost to a full buffer, or dropped because they were malformed.",
            registry=registry,
        )
        self._reloads = Counter(
            "trimtab_policy_reloads",
            "Policies that came into force (ok) or were refused.",
            ("result",),
            registry=registry,
        )
        for result in ("ok", "failed"):
            self._reloads.labels(result)
        self._policy_valid = Gauge(
            "trimtab_policy_valid", "1 if the policy file as it is now is in force.", registry=registry
        )
        self._faults = Counter(
            "trimtab_faults",
            "Failures of our own that were caught, by part.",
            ("part",),
            registry=registry,
        )


def _type_name(type_url: str) -> str:
    try:
        return TypeUrl(type_url).name
    except ValueError:
        return "other"
