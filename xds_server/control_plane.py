"""The control plane: signals and observations in, weights out to every Envoy. Everything but the observing itself."""

import asyncio
import logging
import random
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Self

import grpc.aio

from ext_proc.sampling import SampleShare
from trimtab.datapath import pool_of_cluster
from trimtab.health.state import State
from trimtab.observation.kinds import ClusterChanged, Observation, WorkerMissed
from trimtab.policy import Policy, PolicyFile
from trimtab.pool import EndpointDecision, EndpointSpec, PoolDecision
from trimtab.process.listening import bind, serve_http
from trimtab.process.policy_follower import follow
from trimtab.v1.observation_stream_pb2 import PoolStates
from trimtab.v1.observation_stream_pb2_grpc import add_ObservationStreamServicer_to_server
from xds_server.admin.metrics import Metrics
from xds_server.admin.server import AdminState, admin_app
from xds_server.ads.server import AdsService, ClientRow
from xds_server.ads.snapshot import Resource, SnapshotCache, TypeUrl
from xds_server.ads.transport import SERVER_OPTIONS
from xds_server.config import RUNTIME_NAME, runtime_resource, static_resources
from xds_server.config.assignments import assignments_of
from xds_server.discovery import DiscoveryCollector
from xds_server.heartbeats import Heartbeats
from xds_server.kept_file import kept_path
from xds_server.lrs import LrsService
from xds_server.observation_stream import ObservationStreamService
from xds_server.pool_loop import RunningPool
from xds_server.readers import Readers
from xds_server.removal_delay import RemovalDelay
from xds_server.runtime_layer import RuntimeLayer
from xds_server.state_file import StateFile

log = logging.getLogger(__name__)

_REMEMBER_PERIOD_S = 5.0
_REMEMBER_PAUSE_S = 0.5
_SAMPLING_PERIOD_S = 1.0
_REMOVAL_PERIOD_S = 1.0
_WORKERS_MAX = 256  # of those that ended, the latest so many still count

_READ_AT_START: Mapping[str, Callable[[Policy], object]] = {
    "services": lambda policy: policy.services,
    "state_file": lambda policy: policy.state_file,
    "ext_proc.workers": lambda policy: policy.ext_proc.workers,
}


class ControlPlane:
    """Owns the pools and serves ADS, LRS, the observation stream and the admin pages while its context lasts.

    Lives on one event loop. `on_policy` hears of each new policy that comes into force meanwhile, `on_states` of
    what becomes of the endpoints. Raises PolicyError if the policy's state file cannot be written.
    """

    def __init__(
        self,
        policy_file: PolicyFile,
        policy: Policy,
        on_policy: Callable[[Policy], None] = lambda policy: None,
        on_states: Callable[[PoolStates], None] = lambda states: None,
    ) -> None:
        self._file = policy_file
        self._policy = self._first_policy = policy
        self._on_policy = on_policy
        self._on_states = on_states
        self._state_file = _state_file(self._policy, policy_file.path)
        self._memory = self._state_file.read() if self._state_file else {}
        self._holds_changed = asyncio.Event()
        self._pools: dict[str, RunningPool] = {}
        self._share = SampleShare(self._policy.ext_proc.cpu_budget_cores, self._policy.ext_proc.sample_percent)
        self._usage: dict[str, tuple[float, int]] = {}
        self._heartbeats = Heartbeats()
        self._cache = SnapshotCache()
        self._rng = random.Random()
        self._removal_delay = RemovalDelay()
        self._state = AdminState(policy=self._policy)
        self.metrics = Metrics(self._state)
        self._ads = AdsService(self._cache, self.metrics)
        self._state.clients = self._ads.clients
        self._lrs = LrsService(self.observe, is_pool=self._pools.__contains__)
        self._observation_stream = ObservationStreamService(self.observe, self.take_usage, self._lose_worker)
        found_before = {name: memory.get("found") for name, memory in self._memory.items()}
        self._readers = Readers(
            self.observe, self._take_endpoints, self._decision_of, self.metrics.prometheus_readings, known=found_before
        )
        discovery = self._readers.discovery
        self._state.sources, self._state.unresolved = discovery.statuses, discovery.unresolved
        self.metrics.registry.register(DiscoveryCollector(discovery.statuses))
        self._runtime_layer = RuntimeLayer(self._state, self._readers.reachability.is_reachable)
        self._stack = AsyncExitStack()

    @property
    def policy(self) -> Policy:
        """The policy in force."""
        return self._policy

    @property
    def clients(self) -> Sequence[ClientRow]:
        """The Envoys that are connected."""
        return self._ads.clients()

    @property
    def decisions(self) -> Mapping[str, PoolDecision]:
        """The latest decision of each pool."""
        return self._state.decisions

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._readers)
            stack.callback(self._stop_pools)
            await self._serve_grpc(stack)
            runner = await serve_http(
                admin_app(self._state, self.metrics), self._policy.services.admin, "services.admin"
            )
            stack.push_async_callback(runner.cleanup)
            self._put_in_force(self._policy)
            for job in (
                follow(self._file, self._take_policy, self.metrics.policy_refused),
                _repeat(self._remember_when_due, _REMEMBER_PAUSE_S),
                _repeat(self._sample, _SAMPLING_PERIOD_S),
                _repeat(self._remove_when_due, _REMOVAL_PERIOD_S),
            ):
                stack.callback(asyncio.create_task(job).cancel)
            stack.push_async_callback(self._dump)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._stack.aclose()

    def observe(self, observations: Sequence[Observation]) -> None:
        """Take in observations of any pools. Never blocks, and never raises: Envoy's streams hang on the caller."""
        by_pool: dict[str, list[Observation]] = defaultdict(list)
        for observation in observations:
            by_pool[observation.pool].append(observation)
        try:
            for name, of_pool in by_pool.items():
                if (pool := self._pools.get(name)) is not None:
                    pool.observe(of_pool)
            self.metrics.observe(observations)
        except Exception:
            log.exception("observations were not taken in")
            self.metrics.fault("observe")

    def begin_to_drain(self) -> None:
        """Say on /readyz that this process is about to end."""
        self._state.draining = True

    def take_usage(
        self, worker: str, cpu_seconds: float, watched: int, dropped: int, faults: int, gated: Mapping[str, int]
    ) -> None:
        """Take in the counters of one observing process, each since its start; to be called twice a second."""
        if not self._heartbeats.heard(time.time(), worker):
            self._worker_missed()
        self._usage.pop(worker, None)
        self._usage[worker] = (cpu_seconds, watched)
        if len(self._usage) > _WORKERS_MAX:
            del self._usage[next(iter(self._usage))]
        self.metrics.worker(worker, cpu_seconds, watched, dropped, faults, gated)

    def _lose_worker(self, worker: str) -> None:
        self._heartbeats.gone(worker)
        self._worker_missed()

    def _worker_missed(self) -> None:
        """What any ext_proc worker missed may be of any pool."""
        for pool in self._pools.values():
            pool.observe([WorkerMissed(time.time(), pool.policy.name)])

    def _take_policy(self, policy: Policy) -> None:
        for key, of in _READ_AT_START.items():
            if of(policy) != of(self._first_policy):
                log.warning("a change of %s comes into force at the next start", key)
        policy = _as_read_at_start(policy, self._first_policy)
        self._put_in_force(policy)
        self._on_policy(policy)
        log.info("a new policy was taken up, and is sent to the Envoys; /clients shows what they accept")

    def _put_in_force(self, policy: Policy) -> None:
        now = time.time()
        self._policy = self._state.policy = policy
        self._share.limit(policy.ext_proc.cpu_budget_cores, policy.ext_proc.sample_percent)
        wanted = {pool.name: pool for pool in policy.pools}
        for name in self._pools.keys() - wanted.keys():
            self._pools.pop(name).task.cancel()
            self._state.decisions.pop(name, None)
        self._runtime_layer.drop_gone()
        for name, pool in wanted.items():
            if name in self._pools:
                self._pools[name].reconfigure(now, pool)
            else:
                self._pools[name] = RunningPool(
                    pool, self._memory.get(name), self._take_decision, self.metrics, self._heartbeats
                )
        self._readers.put_in_force(policy)
        self._publish()
        self.metrics.policy_accepted()

    def _take_endpoints(self, name: str, endpoints: Sequence[EndpointSpec]) -> None:
        if (pool := self._pools.get(name)) is None:
            return
        pool.set_endpoints(time.time(), endpoints)
        self._readers.update(pool.policy, endpoints)
        self._publish()

    def _publish(self) -> None:
        """Publish everything, once the endpoints of every pool are known: an Envoy is never told of a pool without."""
        if not all(pool.is_located for pool in self._pools.values()):
            return
        resources: dict[str, Mapping[str, bytes]] = dict(static_resources(self._policy).items())
        resources[TypeUrl.EDS] = {
            cluster: body for pool in self._pools.values() for cluster, body in assignments_of(pool.step(), self._rng)
        }
        resources[TypeUrl.RTDS] = {RUNTIME_NAME: self._runtime()}
        before = self._clusters
        # Envoy gives up a request that has waited for so long.
        wait_s = max(pool.timeouts.within(self._policy.listen)[0] for pool in self._policy.pools)
        self._cache.publish(self._removal_delay.keep(time.time(), self._cache.snapshot, resources, wait_s))
        self._state.ready = True
        changed = {pool_of_cluster(name) for name, was in before.items() if self._clusters.get(name) != was}
        for name in changed & self._pools.keys():
            self._pools[name].observe([ClusterChanged(time.time(), name)])

    @property
    def _clusters(self) -> Mapping[str, Resource]:
        """As they were published last."""
        return self._cache.snapshot[TypeUrl.CDS] if self._cache.snapshot else {}

    def _decision_of(self, pool: str, address: str) -> EndpointDecision | None:
        decision = self._state.decisions.get(pool)
        endpoints = decision.endpoints if decision else ()
        return next((endpoint for endpoint in endpoints if endpoint.id.address == address), None)

    def _take_decision(self, decision: PoolDecision, step_s: float) -> None:
        if holds_changed := _tell_changes(self._state.decisions.get(decision.pool), decision):
            self._holds_changed.set()
        self._state.decisions[decision.pool] = decision
        self.metrics.decided(decision, step_s)
        if self._runtime_layer.decided(decision):
            self._push_runtime()
        if self._cache.snapshot is None:
            return
        if decision.changed:
            for cluster, body in assignments_of(decision, self._rng):
                if cluster in self._cache.snapshot[TypeUrl.EDS]:
                    self._cache.assign(cluster, body)
        if decision.changed or holds_changed:
            self._on_states(self._observation_stream.publish(self._state.decisions.values()))

    def _push_runtime(self) -> None:
        if self._cache.snapshot is not None:
            self._cache.set_runtime(RUNTIME_NAME, self._runtime())

    def _runtime(self) -> bytes:
        return runtime_resource(self._share.percent, self._runtime_layer.entries)

    async def _sample(self) -> None:
        if not self._usage:
            return
        cpu_seconds = sum(cpu for cpu, _ in self._usage.values())
        watched = sum(count for _, count in self._usage.values())
        percent = self._share.update(time.time(), cpu_seconds, watched)
        self.metrics.watch_share(percent)
        self._push_runtime()

    async def _remove_when_due(self) -> None:
        if self._removal_delay.is_due(time.time()):
            self._publish()

    async def _remember_when_due(self) -> None:
        """A hold that a restart forgets is lifted by it, so those are written at once."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._holds_changed.wait(), _REMEMBER_PERIOD_S - _REMEMBER_PAUSE_S)
        self._holds_changed.clear()
        await self._dump()

    async def _dump(self) -> None:
        if self._state_file is not None:
            now = time.time()
            pools = {
                name: {**pool.controller.dump(now), "found": self._readers.discovery.dump(name)}
                for name, pool in self._pools.items()
            }
            self._state_file.write(pools)

    def _stop_pools(self) -> None:
        for pool in self._pools.values():
            pool.task.cancel()

    async def _serve_grpc(self, stack: AsyncExitStack) -> None:
        server = grpc.aio.server(options=SERVER_OPTIONS)
        self._ads.add_to(server)
        self._lrs.add_to(server)
        add_ObservationStreamServicer_to_server(self._observation_stream, server)  # type: ignore[no-untyped-call]
        bind(server, self._policy.services.xds, "services.xds")
        await server.start()
        stack.push_async_callback(server.stop, 1.0)
        for service in (self._ads, self._lrs, self._observation_stream):
            stack.callback(service.close)


async def _repeat(job: Callable[[], Awaitable[None]], period_s: float) -> None:
    while True:
        await asyncio.sleep(period_s)
        try:
            await job()
        except Exception:
            log.exception("%s failed", job.__name__)


def _tell_changes(before: PoolDecision | None, decision: PoolDecision) -> bool:
    """Log which endpoints are out, and which are back. Returns whether there are any."""
    changed = False
    states = {endpoint.id: endpoint.state for endpoint in before.endpoints} if before else {}
    for endpoint in decision.endpoints:
        was, now = states.get(endpoint.id, State.UP), endpoint.state
        if was is not now and not (was.is_ordinary and now.is_ordinary):
            log.info("pool %s: %s: %s", decision.pool, endpoint.view.name, endpoint.reason)
            changed = True
    return changed


def _state_file(policy: Policy, policy_path: Path) -> StateFile | None:
    path = kept_path(policy, policy_path)
    return None if path is None else StateFile(path)


def _as_read_at_start(policy: Policy, first: Policy) -> Policy:
    """`policy`, with what is read only at the start as it was then."""
    workers = {"workers": first.ext_proc.workers}
    return policy.model_copy(
        update={
            "services": first.services,
            "state_file": first.state_file,
            "ext_proc": policy.ext_proc.model_copy(update=workers),
        }
    )
