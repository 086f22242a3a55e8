"""The observing services, in this process or in workers of their own."""

import asyncio
import logging
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from ext_proc.access_log import AccessLogService
from ext_proc.retry_decision import RetryAdvice
from ext_proc.server import serve_ext_proc
from ext_proc.service import ExtProcService
from trimtab.llmapi.rejections import RejectionReader
from trimtab.observation.kinds import Observation
from trimtab.policy import Policy
from trimtab.process.child import tied
from trimtab.process.errors import PartFailedError
from trimtab.process.listening import CannotListenError, ensure_free, takes_connections
from trimtab.v1.observation_stream_pb2 import PoolStates

log = logging.getLogger(__name__)

_USAGE_PERIOD_S = 0.5
_START_S = 20.0
_FIRST_RESTART_S = 0.5
_LONGEST_RESTART_S = 10.0


class ObservationServices:
    """The ext_proc service and the access log's receiver. `report` is called on the event loop."""

    def __init__(self, policy: Policy, report: Callable[[Sequence[Observation]], None]) -> None:
        self._ext_proc = ExtProcService(
            report,
            RejectionReader.from_policy(policy.rejections),
            policy.ext_proc.full_stream_percent,
            policy.ext_proc.reject_timeout_ms / 1000,
            RetryAdvice(policy.pools),
        )
        self._access_log = AccessLogService(self._take_ends)
        self._report = report

    def take_policy(self, policy: Policy) -> None:
        """Go on with another policy; answers that are being watched are not disturbed."""
        self._ext_proc.rejections = RejectionReader.from_policy(policy.rejections)
        self._ext_proc.close_look.percent = policy.ext_proc.full_stream_percent
        self._ext_proc.reject_timeout_s = policy.ext_proc.reject_timeout_ms / 1000
        self._ext_proc.retries.take_policy(policy.pools)

    def take_states(self, states: PoolStates) -> None:
        """Take in what the control plane does with the endpoints."""
        self._ext_proc.retries.take_states(states)

    def _take_ends(self, observations: Sequence[Observation]) -> None:
        self._ext_proc.retries.observe(observations)
        self._report(observations)

    @property
    def watched(self) -> int:
        """Streamed answers watched since the start."""
        return self._ext_proc.counters.watched

    @property
    def gated(self) -> Mapping[str, int]:
        """Streamed answers that the gate has held since the start, by why it let go of them."""
        return self._ext_proc.counters.gated

    @property
    def faults(self) -> int:
        """Messages of Envoy that were not understood since the start."""
        return self._ext_proc.counters.faults + self._access_log.counters.faults

    @asynccontextmanager
    async def serving(self, address: str, *, shared_port: bool = False) -> AsyncIterator[None]:
        """Serve on the policy's `services.ext_proc`. Raises CannotListenError."""
        if not shared_port:
            ensure_free(address, "services.ext_proc")
        try:
            async with serve_ext_proc(address, self._ext_proc, self._access_log, shared_port=shared_port):
                yield
        except RuntimeError as error:
            raise CannotListenError(f"services.ext_proc {address} cannot be bound: {error}") from None


@asynccontextmanager
async def usage_told(
    services: ObservationServices, take_usage: Callable[[str, float, int, int, int, Mapping[str, int]], None]
) -> AsyncIterator[None]:
    """Tell a control plane in this process, twice a second, what observing costs."""

    async def notify() -> None:
        while True:
            take_usage("local", time.process_time(), services.watched, 0, services.faults, services.gated)
            await asyncio.sleep(_USAGE_PERIOD_S)

    task = asyncio.create_task(notify(), name="usage")
    try:
        yield
    finally:
        task.cancel()


class Workers:
    """Observing processes behind one address; one that ends is started again, ever more slowly."""

    def __init__(self, policy_path: Path, policy: Policy) -> None:
        self._command = [sys.executable, "-m", "trimtab.cli", "ext-proc", "--worker", "-p", str(policy_path)]
        self._count = policy.ext_proc.workers
        self._address = policy.services.ext_proc

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run them; one at least listens when the context is entered. Raises CannotListenError, PartFailedError."""
        ensure_free(self._address, "services.ext_proc")
        tasks = [asyncio.create_task(self._keep(number), name=f"worker {number}") for number in range(self._count)]
        try:
            await self._wait_listening()
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _wait_listening(self) -> None:
        """What Envoy serves before anyone observes is not seen."""
        try:
            async with asyncio.timeout(_START_S):
                while True:
                    if await takes_connections(self._address):
                        return
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise PartFailedError(f"no ext_proc worker listened on {self._address} within {_START_S:g} s") from None

    async def _keep(self, number: int) -> None:
        pause_s = _FIRST_RESTART_S
        while True:
            process = await asyncio.create_subprocess_exec(*tied(*self._command), start_new_session=True)
            started = time.monotonic()
            try:
                code = await process.wait()
            finally:
                if process.returncode is None:
                    process.terminate()
                    await process.wait()
            pause_s = _FIRST_RESTART_S if time.monotonic() - started > 60 else min(pause_s * 2, _LONGEST_RESTART_S)
            log.error("ext_proc worker %d ended with status %d; it is started again in %g s", number, code, pause_s)
            await asyncio.sleep(pause_s)
