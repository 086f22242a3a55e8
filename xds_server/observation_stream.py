"""The control plane's end of the stream of observations between processes."""

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import grpc

from trimtab.observation.kinds import Observation
from trimtab.observation.wire import from_proto
from trimtab.pool import PoolDecision
from trimtab.v1 import observation_stream_pb2 as pb
from trimtab.v1.observation_stream_pb2_grpc import ObservationStreamServicer

logger = logging.getLogger(__name__)

# An ext_proc worker that comes back after so many others came does not find its place again, and its repetitions
# count twice.
_REMEMBERED_WORKERS = 256


@dataclass(slots=True)
class _Worker:
    """What was received of one ext_proc worker, over all its connections."""

    run: int
    received: int = 0  # every observation with a lower number was taken in, or dropped by the ext_proc worker
    malformed: int = 0


@dataclass(slots=True, eq=False)
class _Stream:
    """What one connection has yet to be told: only the newest, so a slow ext_proc worker holds nothing up."""

    states: pb.PoolStates | None
    received: int = 0
    news: asyncio.Event = field(default_factory=asyncio.Event)


class ObservationStreamService(ObservationStreamServicer):
    """Serves `ObservationStream.Exchange` to any number of ext_proc workers.

    `on_observations` gets every observation once and in order per ext_proc worker. `on_usage(worker,
    cpu_seconds, watched, dropped, faults, gated)` gets the counters of an ext_proc worker's process, at least twice a
    second; `dropped` includes observations that came malformed. `on_gone(worker)` is told when its connection ended.
    Everything runs on the event loop of the `grpc.aio` server.
    """

    def __init__(
        self,
        on_observations: Callable[[Sequence[Observation]], None],
        on_usage: Callable[[str, float, int, int, int, Mapping[str, int]], None],
        on_gone: Callable[[str], None],
    ) -> None:
        self._on_observations = on_observations
        self._on_usage = on_usage
        self._on_gone = on_gone
        self._workers: dict[str, _Worker] = {}
        self._streams: set[_Stream] = set()
        self._states: pb.PoolStates | None = None
        self._closed = False

    def publish(self, decisions: Iterable[PoolDecision]) -> pb.PoolStates:
        """Tell all ext_proc workers the newest decision of every pool. Returns what they are told."""
        self._states = states_to_proto(decisions)
        for stream in self._streams:
            stream.states = self._states
            stream.news.set()
        return self._states

    def close(self) -> None:
        """End all streams in good order, so that a server's stop need not wait for its grace."""
        self._closed = True
        for stream in self._streams:
            stream.news.set()

    async def Exchange(
        self, request_iterator: AsyncIterator[pb.ObservationBatch], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.PoolStates]:
        stream = _Stream(self._states)
        self._streams.add(stream)
        reader = asyncio.create_task(self._read(request_iterator, stream))
        try:
            while not (self._closed or reader.done()):
                await stream.news.wait()
                stream.news.clear()
                answer = pb.PoolStates(received=stream.received)
                if stream.states is not None:
                    answer.MergeFrom(stream.states)
                    stream.states = None
                yield answer
        finally:
            self._streams.discard(stream)
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)

    async def _read(self, batches: AsyncIterator[pb.ObservationBatch], stream: _Stream) -> None:
        worker = ""
        try:
            async for batch in batches:
                if not worker:
                    worker = batch.worker
                    logger.info("%s reports", worker)
                stream.received = self._take(batch)
                stream.news.set()
        finally:
            if worker and not self._closed:
                logger.warning("%s is gone: what it watched is not seen until it reports again", worker)
                self._on_gone(worker)
            stream.news.set()

    def _take(self, batch: pb.ObservationBatch) -> int:
        """Take in what is new in a batch. Returns how much of the ext_proc worker's run has been received."""
        worker = self._workers.pop(batch.worker, None)
        if worker is None or worker.run != batch.run:
            worker = _Worker(batch.run)
        self._workers[batch.worker] = worker
        if len(self._workers) > _REMEMBERED_WORKERS:
            del self._workers[next(iter(self._workers))]

        known = max(0, worker.received - batch.first)
        decoded = [from_proto(message) for message in batch.observations[known:]]
        observations = [observation for observation in decoded if observation is not None]
        worker.malformed += len(decoded) - len(observations)
        worker.received = max(worker.received, batch.first + len(batch.observations))
        try:
            # First of all: that an ext_proc worker is back is to be known before what it brings is judged.
            if math.isfinite(batch.cpu_seconds):
                lost = batch.dropped + worker.malformed
                self._on_usage(batch.worker, batch.cpu_seconds, batch.watched, lost, batch.faults, dict(batch.gated))
            if observations:
                self._on_observations(observations)
        except Exception:
            logger.exception("a batch of %s was not taken in", batch.worker)
        return worker.received


def states_to_proto(decisions: Iterable[PoolDecision]) -> pb.PoolStates:
    """The state of all pools, for the ext_proc workers."""
    return pb.PoolStates(
        pools=[
            pb.PoolState(
                pool=decision.pool,
                at=decision.at,
                endpoints=[
                    pb.EndpointState(
                        address=endpoint.id.address,
                        name=endpoint.view.name,
                        incarnation=endpoint.id.incarnation,
                        weight=endpoint.weight,
                        share=endpoint.share,
                        score=endpoint.score,
                        takes_work=endpoint.takes_work,
                        state=endpoint.state,
                    )
                    for endpoint in decision.endpoints
                ],
            )
            for decision in decisions
        ]
    )
