"""Two xDS clients as the protocol describes them, and a link that joins one to the service without a network.

They apply what they get and answer as Envoy does: a response with one bad resource is refused whole, and the
answer to a changed cluster is held back until a new assignment has come for it (the cluster is warming).
"""

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator, Callable, Set
from dataclasses import dataclass
from typing import Any

from envoy.config.cluster.v3.cluster_pb2 import Cluster
from envoy.config.endpoint.v3.endpoint_pb2 import ClusterLoadAssignment
from envoy.config.listener.v3.listener_pb2 import Listener
from envoy.config.route.v3.route_pb2 import RouteConfiguration
from envoy.service.discovery.v3.discovery_pb2 import (
    DeltaDiscoveryRequest,
    DeltaDiscoveryResponse,
    DiscoveryRequest,
    DiscoveryResponse,
)
from envoy.service.runtime.v3.rtds_pb2 import Runtime

from xds_server.ads.server import AdsService
from xds_server.ads.snapshot import TypeUrl

_NAME: dict[TypeUrl, Callable[[bytes], str]] = {
    TypeUrl.CDS: lambda body: Cluster.FromString(body).name,
    TypeUrl.EDS: lambda body: ClusterLoadAssignment.FromString(body).cluster_name,
    TypeUrl.LDS: lambda body: Listener.FromString(body).name,
    TypeUrl.RDS: lambda body: RouteConfiguration.FromString(body).name,
    TypeUrl.RTDS: lambda body: Runtime.FromString(body).name,
}
_WHOLE = (TypeUrl.CDS, TypeUrl.LDS)  # in state of the world, what is missing in a response of these is gone


@dataclass(frozen=True)
class Received:
    """One response: what was in it, and how the client answered it."""

    type_url: TypeUrl
    version: str
    nonce: str
    resources: dict[str, bytes]
    removed: tuple[str, ...]
    size: int


class XdsClient(ABC):
    """One client on one stream. `outbox` holds the requests that it has yet to send."""

    warms = False  # whether a changed cluster waits for its assignment before it is acknowledged

    def __init__(self, node: str = "client", *, refuses: Callable[[bytes], bool] = lambda _: False) -> None:
        self.refuses = refuses
        self.has: dict[TypeUrl, dict[str, bytes]] = {type_url: {} for type_url in TypeUrl}
        self.received: list[Received] = []
        self.refused: list[Received] = []
        self.outbox: deque[Any] = deque()
        self.warming: set[str] = set()
        self._held_back: deque[Any] = deque()
        self._node = node

    def types_received(self) -> list[str]:
        return [received.type_url.name for received in self.received]

    def take(self, response: Any) -> None:
        """Apply one response and answer it."""
        received = self.read(response)
        self.received.append(received)
        if any(self.refuses(body) for body in received.resources.values()):
            self.refused.append(received)
            self.answer(received, "refused by the test")
            return
        before = dict(self.has[received.type_url])
        self.apply(received)
        if received.type_url is TypeUrl.CDS and self.warms:
            changed = {name for name, body in self.has[TypeUrl.CDS].items() if before.get(name) != body}
            self.warming = (self.warming | changed) & self.has[TypeUrl.CDS].keys()
            self.follow(before.keys(), self.has[TypeUrl.CDS].keys())
        if received.type_url is TypeUrl.EDS:
            self.warming -= received.resources.keys()
        self.answer(received, None)
        if not self.warming:
            self.outbox.extend(self._held_back)
            self._held_back.clear()

    def follow(self, before: Set[str], after: Set[str]) -> None:
        """Ask for the assignments of other clusters than before, if this client does that by itself."""
        raise NotImplementedError

    def send(self, request: Any) -> None:
        """Put a request out. The node is named in the first one alone."""
        if self._node:
            request.node.id, self._node = self._node, ""
        is_answer_to_clusters = request.type_url == TypeUrl.CDS and request.response_nonce
        (self._held_back if is_answer_to_clusters and self.warming else self.outbox).append(request)

    def reconnect(self) -> None:
        """Begin a new stream: what is known and wanted is kept, what was under way is lost."""
        self.outbox.clear()
        self._held_back.clear()
        self._node = "client"
        self.ask_again()

    @abstractmethod
    def ask_again(self) -> None: ...

    @abstractmethod
    def read(self, response: Any) -> Received: ...

    @abstractmethod
    def apply(self, received: Received) -> None: ...

    @abstractmethod
    def answer(self, received: Received, refusal: str | None) -> None: ...

    @abstractmethod
    def subscribe(self, type_url: TypeUrl, *names: str) -> None:
        """Ask for more names. No names at all is the wildcard of old, for a type not asked for before."""

    @abstractmethod
    def unsubscribe(self, type_url: TypeUrl, *names: str) -> None: ...


class StateOfTheWorldClient(XdsClient):
    def __init__(self, node: str = "client", **options: Any) -> None:
        super().__init__(node, **options)
        self.wants: dict[TypeUrl, set[str]] = {}
        self._named: set[TypeUrl] = set()
        self._nonces: dict[TypeUrl, str] = {}
        self._versions: dict[TypeUrl, str] = {}

    def subscribe(self, type_url: TypeUrl, *names: str) -> None:
        self.wants.setdefault(type_url, set()).update(names)
        if names:
            self._named.add(type_url)
        self._request(type_url)

    def unsubscribe(self, type_url: TypeUrl, *names: str) -> None:
        self.wants[type_url] -= set(names)
        for name in names:
            self.has[type_url].pop(name, None)
        self._request(type_url)

    def ask_again(self) -> None:
        self._nonces.clear()
        for type_url in self.wants:
            self._request(type_url)

    def read(self, response: DiscoveryResponse) -> Received:
        type_url = TypeUrl(response.type_url)
        bodies = {_NAME[type_url](entry.value): entry.value for entry in response.resources}
        assert len(bodies) == len(response.resources), "a resource came twice in one response"
        assert all(entry.type_url == type_url for entry in response.resources)
        return Received(type_url, response.version_info, response.nonce, bodies, (), response.ByteSize())

    def apply(self, received: Received) -> None:
        wants = self.wants[received.type_url]
        everything = "*" in wants or received.type_url not in self._named
        wanted = {name: body for name, body in received.resources.items() if everything or name in wants}
        if received.type_url in _WHOLE:
            self.has[received.type_url] = wanted
        else:
            self.has[received.type_url].update(wanted)

    def answer(self, received: Received, refusal: str | None) -> None:
        self._nonces[received.type_url] = received.nonce
        if refusal is None:
            self._versions[received.type_url] = received.version
        self._request(received.type_url, refusal)

    def _request(self, type_url: TypeUrl, refusal: str | None = None) -> None:
        request = DiscoveryRequest(
            type_url=type_url,
            resource_names=sorted(self.wants[type_url]),
            response_nonce=self._nonces.get(type_url, ""),
            version_info=self._versions.get(type_url, ""),
        )
        if refusal is not None:
            request.error_detail.message = refusal
        self.send(request)


class DeltaClient(XdsClient):
    def __init__(self, node: str = "client", **options: Any) -> None:
        super().__init__(node, **options)
        self.wants: dict[TypeUrl, set[str]] = {}
        self.versions: dict[TypeUrl, dict[str, str]] = {type_url: {} for type_url in TypeUrl}

    def ask_again(self) -> None:
        for type_url, names in self.wants.items():
            self.subscribe(type_url, *sorted(names), known=self.versions[type_url])

    def subscribe(self, type_url: TypeUrl, *names: str, known: dict[str, str] | None = None) -> None:
        self.wants.setdefault(type_url, set()).update(names)
        request = DeltaDiscoveryRequest(type_url=type_url, resource_names_subscribe=names)
        request.initial_resource_versions.update(known or {})
        self.send(request)

    def unsubscribe(self, type_url: TypeUrl, *names: str) -> None:
        self.wants[type_url] -= set(names)
        for name in names:
            self.has[type_url].pop(name, None)
            self.versions[type_url].pop(name, None)
        self.send(DeltaDiscoveryRequest(type_url=type_url, resource_names_unsubscribe=names))

    def read(self, response: DeltaDiscoveryResponse) -> Received:
        type_url = TypeUrl(response.type_url)
        bodies = {entry.name: entry.resource.value for entry in response.resources}
        assert len(bodies) == len(response.resources), "a resource came twice in one response"
        assert all(entry.resource.type_url == type_url for entry in response.resources)
        if not any(self.refuses(body) for body in bodies.values()):
            self.versions[type_url].update({entry.name: entry.version for entry in response.resources})
        return Received(
            type_url,
            response.system_version_info,
            response.nonce,
            bodies,
            tuple(response.removed_resources),
            response.ByteSize(),
        )

    def apply(self, received: Received) -> None:
        wants = self.wants[received.type_url]
        everything = "*" in wants or received.type_url in _WHOLE
        self.has[received.type_url].update(
            {name: body for name, body in received.resources.items() if everything or name in wants}
        )
        for name in received.removed:
            self.has[received.type_url].pop(name, None)
            self.versions[received.type_url].pop(name, None)

    def answer(self, received: Received, refusal: str | None) -> None:
        request = DeltaDiscoveryRequest(type_url=received.type_url, response_nonce=received.nonce)
        if refusal is not None:
            request.error_detail.message = refusal
        self.send(request)


class _FollowsClusters(XdsClient):
    """Asks for everything as Envoy does, and for the assignment of each cluster that it gets."""

    warms = True

    def begin(self) -> None:
        self.subscribe(TypeUrl.RTDS, "layer")
        self.subscribe(TypeUrl.CDS)
        self.subscribe(TypeUrl.LDS)
        self.subscribe(TypeUrl.RDS, "routes")

    def follow(self, before: Set[str], after: Set[str]) -> None:
        if gone := sorted(before - after):
            self.unsubscribe(TypeUrl.EDS, *gone)
        if new := sorted(after - before):
            self.subscribe(TypeUrl.EDS, *new)


class StateOfTheWorldEnvoy(_FollowsClusters, StateOfTheWorldClient):
    def follow(self, before: Set[str], after: Set[str]) -> None:
        super().follow(before, after)
        if before & after:
            # What Envoy sends while a known cluster warms: its wants again, which look like one more ACK.
            self._request(TypeUrl.EDS)


class DeltaEnvoy(_FollowsClusters, DeltaClient):
    pass


class Link:
    """Joins a client to the service. Nothing moves by itself: `deliver` and `settle` do it."""

    def __init__(self, service: AdsService, client: XdsClient) -> None:
        self.client = client
        self.inbox: deque[Any] = deque()  # written by the service, not yet read by the client
        self.reading = asyncio.Event()  # while it is not set, the transport takes no response
        self.reading.set()
        self._requests: asyncio.Queue[Any] = asyncio.Queue()
        delta = isinstance(client, DeltaClient)
        method = service.DeltaAggregatedResources if delta else service.StreamAggregatedResources
        self.task = asyncio.create_task(method(self._incoming(), self))  # type: ignore[arg-type]

    async def deliver(self, most: int = 1_000) -> int:
        """Carry requests and up to `most` responses, until both are quiet. Returns how many responses."""
        count = 0
        while True:
            while self.client.outbox:
                self._requests.put_nowait(self.client.outbox.popleft())
            await quiet()
            if not self.inbox or count == most:
                return count
            self.client.take(self.inbox.popleft())
            count += 1

    async def settle(self) -> list[Received]:
        """Carry everything until nobody has anything to say; what the client got meanwhile."""
        before = len(self.client.received)
        assert await self.deliver() < 1_000, "the two talk for ever"
        return self.client.received[before:]

    async def hang_up(self) -> None:
        self._requests.put_nowait(None)
        await self.task

    async def write(self, response: Any) -> None:
        await self.reading.wait()
        self.inbox.append(type(response).FromString(response.SerializeToString()))

    def peer(self) -> str:
        return "test:peer"

    async def _incoming(self) -> AsyncIterator[Any]:
        while (request := await self._requests.get()) is not None:
            yield request


async def quiet() -> None:
    """Let every task on the loop run until it waits."""
    for _ in range(12):
        await asyncio.sleep(0)
