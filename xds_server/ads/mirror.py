"""A client of an xDS server that keeps a copy of all that it serves."""

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress

import grpc.aio
from envoy.service.discovery.v3.ads_pb2_grpc import AggregatedDiscoveryServiceStub
from envoy.service.discovery.v3.discovery_pb2 import DeltaDiscoveryRequest, DeltaDiscoveryResponse

from trimtab.process.grpc_channel import own_channel
from xds_server.ads.nack import one_line
from xds_server.ads.snapshot import TypeUrl
from xds_server.ads.subscription import WILDCARD

_log = logging.getLogger(__name__)

USER_AGENT = "trimtab-standby"
"""What tells it from an Envoy."""

_PAUSE_S = 0.5
_CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    # A server that is stopped, or whose machine is gone, is noticed.
    ("grpc.keepalive_time_ms", 5_000),
    ("grpc.keepalive_timeout_ms", 5_000),
)

Resources = Mapping[str, Mapping[str, bytes]]
"""Type URL → name → serialised message."""


class Mirror:
    """Follows the xDS server at `target` (`host:port` or `unix:/path`); `node_id` is what it calls itself there."""

    def __init__(self, target: str, node_id: str) -> None:
        self._target = target
        self._node_id = node_id
        self._resources: dict[str, dict[str, bytes]] | None = None
        self._answers = False
        self._is_missed = False

    @property
    def resources(self) -> Resources | None:
        """All that the server serves, or served last; None until it has told of every type once.

        In the middle of a change they need not fit together.
        """
        return self._resources

    @property
    def answers(self) -> bool:
        """Whether `resources` are what the server serves now."""
        return self._answers

    async def follow(self) -> None:
        """Keep the copy up to date, over as many connections as it takes, until cancelled."""
        async with own_channel(self._target, *_CHANNEL_OPTIONS) as channel:
            stub = AggregatedDiscoveryServiceStub(channel)
            while True:
                try:
                    await self._converse(stub)
                    self._miss("it ended the stream")
                except grpc.aio.AioRpcError as error:
                    self._miss(one_line(error.details() or error.code().name))
                await asyncio.sleep(_PAUSE_S)

    async def _converse(self, stub: AggregatedDiscoveryServiceStub) -> None:
        call = stub.DeltaAggregatedResources()

        async def send(request: DeltaDiscoveryRequest) -> None:
            with suppress(asyncio.InvalidStateError):  # the call has ended; the next read tells why
                await call.write(request)

        for type_url in TypeUrl:
            request = DeltaDiscoveryRequest(type_url=type_url, resource_names_subscribe=[WILDCARD])
            request.node.id, request.node.user_agent_name = self._node_id, USER_AGENT
            await send(request)
        copy: dict[str, dict[str, bytes]] = {}
        while (response := await call.read()) is not grpc.aio.EOF:
            _apply(response, copy)
            if len(copy) == len(TypeUrl):
                self._resources, self._answers, self._is_missed = copy, True, False
            await send(DeltaDiscoveryRequest(type_url=response.type_url, response_nonce=response.nonce))

    def _miss(self, why: str) -> None:
        self._answers = False
        if not self._is_missed:
            _log.warning("the control plane at %s does not answer: %s", self._target, why)
        self._is_missed = True


def _apply(response: DeltaDiscoveryResponse, copy: dict[str, dict[str, bytes]]) -> None:
    resources = copy.setdefault(response.type_url, {})
    for name in response.removed_resources:
        resources.pop(name, None)
    for added in response.resources:
        resources[added.name] = added.resource.value
