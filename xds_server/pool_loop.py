"""A pool that is in force: its controller, stepped by the clock, which is not to be trusted."""

import asyncio
import logging
import random
import time
from collections.abc import Callable, Sequence

from trimtab.observation.kinds import Observation, WorkerMissed
from trimtab.policy.model import Pool
from trimtab.pool import EndpointSpec, PoolController, PoolDecision
from xds_server.admin.metrics import Metrics
from xds_server.heartbeats import Heartbeats

log = logging.getLogger(__name__)

# A clock that is set back by more than time services slew.
_CLOCK_STEP_S = 2.0


class RunningPool:
    """A pool's controller and the task that steps it."""

    def __init__(
        self,
        policy: Pool,
        memory: object,
        on_decision: Callable[[PoolDecision, float], None],
        metrics: Metrics,
        heartbeats: Heartbeats,
    ) -> None:
        self.policy = policy
        self.controller = PoolController(policy, random.Random(), memory if isinstance(memory, dict) else None)
        self.is_located = False
        self._endpoints: Sequence[EndpointSpec] = ()
        self._clock = time.time()
        self._on_decision = on_decision
        self._metrics = metrics
        self._heartbeats = heartbeats
        self.task = asyncio.create_task(self._run(), name=f"pool {policy.name}")

    def set_endpoints(self, now: float, endpoints: Sequence[EndpointSpec]) -> None:
        self._endpoints = endpoints
        self.controller.set_endpoints(now, endpoints)
        self.is_located = True

    def reconfigure(self, now: float, policy: Pool) -> None:
        self.policy = policy
        self.controller.reconfigure(now, policy)

    def observe(self, observations: Sequence[Observation]) -> None:
        now = self._now()  # which may put another controller in place
        self.controller.observe(now, observations)

    def step(self) -> PoolDecision:
        began = time.perf_counter()
        now = self._now()
        decision = self.controller.step(now)
        self._on_decision(decision, time.perf_counter() - began)
        return decision

    def _now(self) -> float:
        """The time; before anything is judged by it, what was not seen meanwhile is told."""
        now = time.time()
        if now < self._clock - _CLOCK_STEP_S:
            # All that is known carries times that are now to come: nothing new would count beside it.
            log.warning(
                "pool %s: the clock was set back by %.0f s; what was learned is begun anew",
                self.policy.name,
                self._clock - now,
            )
            self.controller = PoolController(self.policy, random.Random(), None)
            self.controller.set_endpoints(now, self._endpoints)
        self._clock = now
        if self._heartbeats.overdue(now):
            self.controller.observe(now, [WorkerMissed(now, self.policy.name)])
        return now

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            due = max(due + self.policy.interval_ms / 1000, loop.time())
            await asyncio.sleep(due - loop.time())
            if not self.is_located:
                continue
            try:
                self.step()
            except Exception:
                # Envoy goes on with the last weights; the next interval may do better than no control at all.
                log.exception("pool %s: a step failed", self.policy.name)
                self._metrics.fault("step")
