"""Everything that is counted, for Prometheus."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import prometheus_client
from prometheus_client import CollectorRegistry, Counter
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
from xds_server.admin.families import MetricFamilies
from xds_server.admin.first_tokens import FirstTokens
from xds_server.admin.state import AdminState
from xds_server.ads.events import XdsEvents
from xds_server.ads.snapshot import TypeUrl

# An observing process that was not heard of while so many others were has ended.
_WORKERS_MAX = 256


@dataclass(frozen=True, slots=True)
class _Pool:
    """The latest decision of a pool, by address."""

    decision: PoolDecision
    strategy: str
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
        self._workers: dict[str, dict[Counter, float]] = {}
        self._control_loop_latencies = LoopTimes()
        self._counted: set[tuple[str, str]] = set()  # pool and name of endpoints that may have series
        self._stepped: set[str] = set()  # pools that may have series
        self._asked: set[str] = set()  # those that may have series of queries
        self.registry = CollectorRegistry()
        self.registry.register(DecisionCollector(state))
        self._families = MetricFamilies(self.registry)

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
                self._control_loop_latencies.seen(seen)
            if pool and endpoint:
                self._counted.add((seen.pool, endpoint.view.name))
                self._count(pool, endpoint, seen)

    def decided(self, decision: PoolDecision, step_seconds: float) -> None:
        """A step was made, and took so long; if it `changed`, it is about to be pushed."""
        self._stepped.add(decision.pool)
        self._families.step.labels(decision.pool).observe(step_seconds)
        if decision.failure_signals:
            names = {endpoint.id: endpoint.view.name for endpoint in decision.endpoints}
            for id, failure_signal in decision.failure_signals:
                self._counted.add((decision.pool, names[id]))
                self._families.failure_signals.labels(decision.pool, names[id], failure_signal).inc()
        self._control_loop_latencies.decided(decision.pool, changed=decision.changed)

    def worker(
        self, worker: str, cpu_seconds: float, watched: int, dropped: int, faults: int, gated: Mapping[str, int]
    ) -> None:
        """The counters of an observing process since its start; one that falls has begun anew."""
        last = self._workers.pop(worker, {})
        self._workers[worker] = {
            self._families.observation_cpu: cpu_seconds,
            self._families.watched: watched,
            self._families.dropped: dropped,
            self._families.faults.labels("observation"): faults,
            **{self._families.gated.labels(release): count for release, count in gated.items()},
        }
        if len(self._workers) > _WORKERS_MAX:
            del self._workers[next(iter(self._workers))]
        for counter, value in self._workers[worker].items():
            before = last.get(counter, 0)
            counter.inc(value - before if value >= before else value)

    def watch_share(self, percent: float) -> None:
        """Streamed attempts that are watched, 0 to 100."""
        self._families.watch_share.set(percent / 100)

    def policy_accepted(self) -> None:
        """A policy has come into force."""
        self._families.reloads.labels("ok").inc()
        self._families.policy_valid.set(1)

    def policy_refused(self) -> None:
        """The policy file was changed and is not valid: the last good policy stays in force."""
        self._families.reloads.labels("failed").inc()
        self._families.policy_valid.set(0)

    def fault(self, part: str) -> None:
        """A part of the control plane failed and was caught; `part` is one of a few fixed words."""
        self._families.faults.labels(part).inc()

    def prometheus_readings(self, pool: str, signal: str, error: str) -> None:
        """A Prometheus server was asked for a signal; `error` is "" if it answered."""
        self._families.queries.labels(pool, signal).inc()
        failed = self._families.query_errors.labels(pool, signal)
        if error:
            failed.inc()
        self._asked.add(pool)

    def connected(self, node: str, protocol: str) -> None:
        self._families.envoys.labels(protocol).inc()

    def disconnected(self, node: str, protocol: str) -> None:
        self._control_loop_latencies.gone(node)
        self._families.envoys.labels(protocol).dec()

    def pushed(self, node: str, type_url: str, version: str, resources: int, size_bytes: int) -> None:
        kind = _type_name(type_url)
        self._families.pushes.labels(kind).inc()
        self._families.pushed_resources.labels(kind).inc(resources)
        self._families.pushed_bytes.labels(kind).inc(size_bytes)
        if kind == "EDS":
            self._control_loop_latencies.pushed(node, version)

    def acked(self, node: str, type_url: str, version: str, seconds: float) -> None:
        kind = _type_name(type_url)
        self._families.acks.labels(kind).inc()
        self._families.ack_delay.labels(kind).observe(seconds)
        if kind == "EDS":
            for evidence in self._control_loop_latencies.acked(node, version):
                if evidence.pool in self._stepped:
                    took = self._now() - evidence.at
                    self._families.loop.labels(evidence.pool, evidence.source).observe(max(0.0, took))

    def nacked(self, node: str, type_url: str, version: str, reason: str) -> None:
        kind = _type_name(type_url)
        self._families.nacks.labels(kind).inc()
        if kind == "EDS":
            self._control_loop_latencies.nacked(node, version)

    def _count(self, pool: _Pool, endpoint: EndpointDecision, seen: Observation) -> None:
        where = (seen.pool, endpoint.view.name)
        ttft_s = None
        match seen:
            case AttemptStarted():
                self._families.routed.labels(*where, pool.strategy, endpoint.state).inc()
                ttft_s = self._first_tokens.started(seen)
            case FirstToken():
                ttft_s = self._first_tokens.token(seen)
            case AttemptEnded():
                self._families.attempts.labels(*where, seen.outcome, seen.status).inc()
                if seen.outcome is Outcome.UNREACHABLE:
                    self._families.routed.labels(*where, pool.strategy, endpoint.state).inc()
                else:
                    self._families.latency.labels(*where).observe(max(0.0, seen.at - seen.started_at))
                ttft_s = self._first_tokens.ended(seen)
            case Rejected():
                self._families.rejections.labels(*where, seen.verdict).inc()
            case AnswerRead():
                self._families.answers.labels(*where, seen.output).inc()
            case Probed():
                self._families.probes.labels(*where, seen.result).inc()
                if seen.ttft_s is not None:
                    self._families.probe_ttft.labels(*where).observe(seen.ttft_s)
            case SignalsRead() if seen.source == SCRAPE:
                self._families.scrapes.labels(*where).inc()
                if seen.error:
                    self._families.scrape_errors.labels(*where).inc()
        if ttft_s is not None:
            self._families.ttft.labels(*where).observe(ttft_s)

    def _pool(self, name: str) -> _Pool | None:
        decision = self._state.decisions.get(name)
        if decision is None:
            return None
        known = self._pools.get(name)
        if known is None or known.decision is not decision:
            strategies = (pool.scoring.strategy for pool in self._state.policy.pools if pool.name == name)
            endpoints = {endpoint.id.address: endpoint for endpoint in decision.endpoints}
            known = self._pools[name] = _Pool(decision, next(strategies, ""), endpoints)
        return known

    def _prune(self) -> None:
        """Take out the series of endpoints that are gone."""
        decisions = self._state.decisions
        present = {(name, e.view.name) for name, decision in decisions.items() for e in decision.endpoints}
        for pool, name in self._counted - present:
            for metric in (
                self._families.ttft,
                self._families.attempts,
                self._families.rejections,
                self._families.answers,
                self._families.failure_signals,
                self._families.scrapes,
                self._families.scrape_errors,
                self._families.probes,
                self._families.probe_ttft,
            ):
                metric.remove_by_labels({"pool": pool, "endpoint": name})
            for metric in (self._families.routed, self._families.latency):
                metric.remove_by_labels({"pool": pool, "backend": name})
        self._counted &= present
        for gone in self._stepped - decisions.keys():
            for metric in (self._families.step, self._families.loop):
                metric.remove_by_labels({"pool": gone})
        self._stepped &= decisions.keys()
        for gone in self._asked - decisions.keys():
            for metric in (self._families.queries, self._families.query_errors):
                metric.remove_by_labels({"pool": gone})
        self._asked &= decisions.keys()
        for gone in self._pools.keys() - decisions.keys():
            del self._pools[gone]


def _type_name(type_url: str) -> str:
    try:
        return TypeUrl(type_url).name
    except ValueError:
        return "other"
