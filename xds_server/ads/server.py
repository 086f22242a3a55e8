"""The aggregated discovery service: brings the newest snapshot to every client, over either protocol."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

import grpc.aio
from envoy.service.discovery.v3 import ads_pb2_grpc

from trimtab.process.grpc_health import add_health
from xds_server.ads.events import XdsEvents
from xds_server.ads.mirror import USER_AGENT
from xds_server.ads.nack import one_line
from xds_server.ads.protocol import DELTA, STATE_OF_THE_WORLD, XdsProtocol
from xds_server.ads.snapshot import SnapshotCache, TypeUrl
from xds_server.ads.subscription import Push

_log = logging.getLogger(__name__)

_UNTOLD = XdsEvents()


@dataclass(frozen=True, slots=True)
class TypeRow:
    """One type as one client has it."""

    accepted_version: str  # of the last response that was accepted; empty if none was
    refusal: str  # why something of what is served now was refused; empty if nothing was


@dataclass(frozen=True, slots=True)
class ClientRow:
    """One connected client, for the state page."""

    node: str
    protocol: str
    since: float  # Unix seconds
    types: Mapping[TypeUrl, TypeRow]


class _Stream:
    """One open stream: who is at the other end, what it has, and the bell that wakes its sender."""

    def __init__(self, protocol: XdsProtocol) -> None:
        self.protocol = protocol
        self.client = protocol.new_client()
        self.node = ""  # until the first request has named it
        self.is_mirror = False
        self.since = time.time()
        self.bell = asyncio.Event()
        self.at_end = False


class AdsService(ads_pb2_grpc.AggregatedDiscoveryServiceServicer):  # type: ignore[misc]
    """Serves `cache` to any number of clients. Lives on one event loop, that on which the cache is changed.

    Each stream has its own sender, which asks what is due only when the transport has taken the last
    response. So a client that reads slowly gets the newest snapshot next, not every snapshot late, and delays
    nobody.
    """

    def __init__(self, cache: SnapshotCache, events: XdsEvents | None = None) -> None:
        self._cache = cache
        self._events = events or XdsEvents()
        self._streams: set[_Stream] = set()
        self._closed = False
        cache.on_change(self._wake_all)

    def add_to(self, server: grpc.aio.Server) -> None:
        """Register with `server`, which should have been made with `transport.SERVER_OPTIONS`.

        It says that it is healthy from the first publish on: what has nothing to say must not keep a client.
        """
        add_health(server, lambda: self._cache.snapshot is not None)
        ads_pb2_grpc.add_AggregatedDiscoveryServiceServicer_to_server(self, server)

    def clients(self) -> list[ClientRow]:
        """The Envoys connected now that have named themselves, oldest first."""
        snapshot = self._cache.snapshot
        envoys = (stream for stream in self._streams if stream.node and not stream.is_mirror)
        return [
            ClientRow(
                stream.node,
                stream.protocol.name,
                stream.since,
                {
                    type_url: TypeRow(
                        subscription.accepted_version, subscription.refusal(snapshot[type_url]) if snapshot else ""
                    )
                    for type_url, subscription in stream.client.subscriptions.items()
                },
            )
            for stream in sorted(envoys, key=lambda stream: stream.since)
        ]

    def hang_up(self, older_than_s: float) -> None:
        """End the streams that are older. Their clients keep what they have, and may come again."""
        for stream in self._streams:
            if time.time() - stream.since > older_than_s:
                stream.at_end = True
                stream.bell.set()

    def close(self) -> None:
        """End every stream, so that the server can stop at once. Clients keep what they have."""
        self._closed = True
        self._wake_all()

    async def StreamAggregatedResources(self, requests: AsyncIterator[Any], context: grpc.aio.ServicerContext) -> None:
        await self._converse(_Stream(STATE_OF_THE_WORLD), requests, context)

    async def DeltaAggregatedResources(self, requests: AsyncIterator[Any], context: grpc.aio.ServicerContext) -> None:
        await self._converse(_Stream(DELTA), requests, context)

    def _events_of(self, stream: _Stream) -> XdsEvents:
        return _UNTOLD if stream.is_mirror else self._events

    def _wake_all(self) -> None:
        for stream in self._streams:
            stream.bell.set()

    async def _converse(self, stream: _Stream, requests: AsyncIterator[Any], context: grpc.aio.ServicerContext) -> None:
        self._streams.add(stream)
        try:
            async with asyncio.TaskGroup() as tasks:
                listener = tasks.create_task(self._listen(stream, requests, context))
                await self._send(stream, context)
                listener.cancel()
        finally:
            self._streams.discard(stream)
            if stream.node:
                self._events_of(stream).disconnected(stream.node, stream.protocol.name)

    async def _send(self, stream: _Stream, context: grpc.aio.ServicerContext) -> None:
        while not (self._closed or stream.at_end):
            stream.bell.clear()
            push = self._due(stream)
            if push is None:
                await stream.bell.wait()
                continue
            response = stream.protocol.respond(push)
            # Told before the write, during which there may be newer weights that it does not hold.
            size_bytes = response.ByteSize()
            self._events_of(stream).pushed(stream.node, push.type_url, push.version, len(push.resources), size_bytes)
            await context.write(response)

    def _due(self, stream: _Stream) -> Push | None:
        # Before the first publish there is nothing to say: emptiness would be taken for the truth.
        snapshot = self._cache.snapshot
        return None if snapshot is None else stream.client.next_push(snapshot, time.monotonic())

    async def _listen(self, stream: _Stream, requests: AsyncIterator[Any], context: grpc.aio.ServicerContext) -> None:
        async for request in requests:
            if not stream.node:
                # Later requests may leave the node out.
                stream.node = request.node.id or context.peer()
                stream.is_mirror = request.node.user_agent_name == USER_AGENT
                if stream.is_mirror:
                    _log.info("%s follows", stream.node)
                self._events_of(stream).connected(stream.node, stream.protocol.name)
            self._take(stream, request)
            stream.bell.set()
        stream.at_end = True
        stream.bell.set()

    def _take(self, stream: _Stream, request: Any) -> None:
        try:
            subscription = stream.client.subscriptions[TypeUrl(request.type_url)]
        except ValueError:
            _log.warning("%s asks for %s, which is not served", stream.node, request.type_url)
            return
        refusal = one_line(request.error_detail.message) if request.HasField("error_detail") else None
        answered = subscription.settle(request.response_nonce, refusal)
        stream.protocol.read_wants(subscription, request)
        if answered is None:
            return
        if refusal is None:
            seconds = time.monotonic() - answered.at
            self._events_of(stream).acked(stream.node, request.type_url, answered.version, seconds)
        else:
            _log.warning(
                "%s refuses %s %s, version %s, and keeps its last good: %s",
                stream.node,
                subscription.type_url.name,
                ", ".join(resource.name for resource in answered.fresh[:3]),
                answered.version,
                refusal,
            )
            self._events_of(stream).nacked(stream.node, request.type_url, answered.version, refusal)
