"""Sends what an ext_proc worker has seen to the control plane in another process."""

import asyncio
import contextlib
import itertools
import logging
import random
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping

import grpc

from trimtab.observation.kinds import Observation
from trimtab.observation.wire import to_proto
from trimtab.process.grpc_channel import own_channel
from trimtab.v1 import observation_stream_pb2 as pb
from trimtab.v1.observation_stream_pb2_grpc import ObservationStreamStub

logger = logging.getLogger(__name__)

_BATCH = 512  # observations in one message
_GATHER_S = 0.02  # a message waits so long for company
_COUNTERS_S = 0.5  # the counters are sent at least so often
_SILENCE_S = 10.0  # every message is acknowledged: a control plane that is silent for so long is gone
_FIRST_PAUSE_S = 0.1  # before a new connection; doubled each time
_LONGEST_PAUSE_S = 2.0


class Reporter:
    """Reports observations to the control plane's `ObservationStream.Exchange`, for ever.

    `report` never blocks and never raises. What it takes is kept until the control plane has acknowledged
    it, and repeated over a new connection, so each observation arrives once and in order; beyond
    `capacity` the oldest are dropped and counted. `on_states` gets the state of all pools whenever it is
    news.

    `target` is the control plane's gRPC address (`host:port` or `unix:/path`), `worker` the name of
    this process; `watched`, `faults`, `gated` and `cpu_seconds` are counters since its start that go with every
    message. Everything runs on one event loop; `report` is to be called on it.
    """

    def __init__(
        self,
        target: str,
        worker: str,
        *,
        on_states: Callable[[pb.PoolStates], None] = lambda states: None,
        watched: Callable[[], int] = lambda: 0,
        faults: Callable[[], int] = lambda: 0,
        gated: Callable[[], Mapping[str, int]] = dict,
        cpu_seconds: Callable[[], float] = time.process_time,
        capacity: int = 65_536,
        rng: random.Random | None = None,
    ) -> None:
        self._target = target
        self._worker = worker
        self._on_states = on_states
        self._watched = watched
        self._faults = faults
        self._gated = gated
        self._cpu_seconds = cpu_seconds
        self._capacity = capacity
        self._rng = rng or random.Random()
        self._run_id = random.SystemRandom().getrandbits(63)
        self._buffer: deque[pb.Observation] = deque()
        self._first = 0  # number of the buffer's first observation
        self._next = 0  # number of the next one to send
        self._dropped = 0
        self._complained = False
        self._connected: bool | None = None  # None: not tried yet
        self._pause_s = _FIRST_PAUSE_S
        self._news = asyncio.Event()
        self._acknowledged = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def dropped(self) -> int:
        """Observations lost since the start, to a full buffer or because no message can hold them.

        One that was sent but not acknowledged when the buffer overflowed counts too, although it may have
        arrived.
        """
        return self._dropped

    def report(self, observations: Iterable[Observation]) -> None:
        """Take observations to be sent, in this order."""
        for observation in observations:
            try:
                message = to_proto(observation)
            except (TypeError, ValueError, KeyError) as error:
                self._dropped += 1
                if not self._complained:
                    self._complained = True
                    logger.warning("dropped %r: %s (said once)", observation, error)
                continue
            if len(self._buffer) == self._capacity:
                self._forget_first()
                self._dropped += 1
            self._buffer.append(message)
        self._news.set()

    def start(self) -> None:
        """Begin to connect and to send."""
        self._task = asyncio.create_task(self._run(), name="reporter")

    async def close(self, grace_s: float) -> None:
        """Send what is left, for at most `grace_s` seconds, and stop."""
        if self._task is None:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                while self._buffer:
                    self._acknowledged.clear()
                    await self._acknowledged.wait()
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        if self._buffer:
            logger.warning("%d observations were not delivered", len(self._buffer))

    async def _run(self) -> None:
        async with own_channel(self._target) as channel:
            stub = ObservationStreamStub(channel)  # type: ignore[no-untyped-call]
            while True:
                reason = await self._exchange(stub)
                if self._connected is not False:
                    what = "lost" if self._connected else "no answer yet from"
                    logger.warning("%s the control plane at %s: %s", what, self._target, reason)
                    self._connected = False
                await asyncio.sleep(self._pause_s * self._rng.uniform(0.5, 1))
                self._pause_s = min(self._pause_s * 2, _LONGEST_PAUSE_S)

    async def _exchange(self, stub: ObservationStreamStub) -> str:
        """One connection, to its end. Returns why it ended."""
        self._next = self._first
        call = stub.Exchange()
        tasks = (asyncio.create_task(self._receive(call)), asyncio.create_task(self._send(call)))
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            call.cancel()
            for task in tasks:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
        for error in results:
            if isinstance(error, grpc.aio.AioRpcError):
                return f"{error.code().name}: {error.details()}"
            if isinstance(error, TimeoutError):
                return f"silent for {_SILENCE_S:g} s"
            if isinstance(error, Exception) and not isinstance(error, asyncio.InvalidStateError):
                logger.error("reporting failed", exc_info=error)
                return str(error)
        return "it ended the stream"

    async def _receive(self, call: grpc.aio.StreamStreamCall) -> None:
        while True:
            async with asyncio.timeout(_SILENCE_S):
                states = await call.read()
            if not isinstance(states, pb.PoolStates):
                return
            if not self._connected:
                self._connected = True
                self._pause_s = _FIRST_PAUSE_S
                logger.info("reporting to the control plane at %s", self._target)
            while self._buffer and self._first < states.received:
                self._forget_first()
            self._acknowledged.set()
            if states.pools:
                self._on_states(states)

    async def _send(self, call: grpc.aio.StreamStreamCall) -> None:
        while True:
            batch = self._batch()
            await call.write(batch)
            self._next = max(self._next, batch.first + len(batch.observations))
            if self._unsent() < _BATCH:
                if not self._unsent():
                    self._news.clear()
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(_COUNTERS_S):
                            await self._news.wait()
                await asyncio.sleep(_GATHER_S)

    def _batch(self) -> pb.ObservationBatch:
        start = self._next - self._first
        return pb.ObservationBatch(
            worker=self._worker,
            observations=itertools.islice(self._buffer, start, start + _BATCH),
            dropped=self._dropped,
            cpu_seconds=self._cpu_seconds(),
            watched=self._watched(),
            faults=self._faults(),
            gated=self._gated(),
            run=self._run_id,
            first=self._next,
        )

    def _unsent(self) -> int:
        return self._first + len(self._buffer) - self._next

    def _forget_first(self) -> None:
        self._buffer.popleft()
        self._first += 1
        self._next = max(self._next, self._first)
