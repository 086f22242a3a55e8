"""The two protocol variants: how a request is read, and how a push is put into words."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from envoy.service.discovery.v3.discovery_pb2 import (
    DeltaDiscoveryRequest,
    DeltaDiscoveryResponse,
    DiscoveryRequest,
    DiscoveryResponse,
)

from xds_server.ads.client import Client
from xds_server.ads.snapshot import TypeUrl
from xds_server.ads.subscription import Push, Subscription


@dataclass(frozen=True, slots=True)
class XdsProtocol:
    """One way of speaking xDS. Node, type URL, nonce and error are called the same in both requests."""

    name: str
    new_client: Callable[[], Client]
    read_wants: Callable[[Subscription, Any], None]  # (subscription, request)
    respond: Callable[[Push], Any]


def _read_state_of_the_world(subscription: Subscription, request: DiscoveryRequest) -> None:
    subscription.want_exactly(request.resource_names)


def _respond_state_of_the_world(push: Push) -> DiscoveryResponse:
    response = DiscoveryResponse(version_info=push.version, type_url=push.type_url, nonce=push.nonce)
    for resource in push.resources:
        response.resources.add(type_url=push.type_url, value=resource.body)
    return response


def _read_delta(subscription: Subscription, request: DeltaDiscoveryRequest) -> None:
    subscription.want(
        request.resource_names_subscribe,
        request.resource_names_unsubscribe,
        request.initial_resource_versions,
    )


def _respond_delta(push: Push) -> DeltaDiscoveryResponse:
    response = DeltaDiscoveryResponse(
        system_version_info=push.version,
        type_url=push.type_url,
        nonce=push.nonce,
        removed_resources=push.removed,
    )
    for resource in push.resources:
        added = response.resources.add(name=resource.name, version=resource.version)
        added.resource.type_url = push.type_url
        added.resource.value = resource.body
    return response


STATE_OF_THE_WORLD = XdsProtocol(
    "sotw",
    lambda: Client(full=(TypeUrl.CDS, TypeUrl.LDS), tells_absence=False),
    _read_state_of_the_world,
    _respond_state_of_the_world,
)
DELTA = XdsProtocol("delta", lambda: Client(full=(), tells_absence=True), _read_delta, _respond_delta)
