"""What is served: the resources of every type, frozen, with their versions.

How they are spoken of on the wire is no concern of this module. One owner publishes; every reader takes
`SnapshotCache.snapshot`, which is swapped whole and never changed.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

from google.protobuf.message import DecodeError

from xds_server.ads.resource_dependencies import describe


class TypeUrl(StrEnum):
    """The types served, in the order in which additions must reach a client."""

    CDS = "type.googleapis.com/envoy.config.cluster.v3.Cluster"
    EDS = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"
    LDS = "type.googleapis.com/envoy.config.listener.v3.Listener"
    RDS = "type.googleapis.com/envoy.config.route.v3.RouteConfiguration"
    RTDS = "type.googleapis.com/envoy.service.runtime.v3.Runtime"


class InconsistentSnapshotError(ValueError):
    """The resources do not fit together; the message names every misfit, and nothing was published."""


@dataclass(frozen=True, slots=True)
class Resource:
    """One serialised resource. Equal versions mean equal bodies."""

    name: str
    version: str
    body: bytes = field(compare=False, repr=False)
    refers_to: frozenset[str] = field(default=frozenset(), compare=False)
    """Names that this one needs: a listener's routes, a route's clusters, a cluster's assignment."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All resources at one moment. A type in which nothing has changed keeps its mapping, the same object."""

    types: Mapping[TypeUrl, Mapping[str, Resource]]

    def __getitem__(self, type_url: TypeUrl) -> Mapping[str, Resource]:
        return self.types[type_url]


_REFERRED = {TypeUrl.CDS: TypeUrl.EDS, TypeUrl.LDS: TypeUrl.RDS, TypeUrl.RDS: TypeUrl.CDS}


class SnapshotCache:
    """The newest snapshot, and who wants to hear of changes. Belongs to one thread.

    A version is a hash of the content, in every process: an Envoy that reconnects with what it has, to this process or
    to another one, is sent nothing again.
    """

    def __init__(self) -> None:
        self._snapshot: Snapshot | None = None
        self._listeners: list[Callable[[], None]] = []

    @property
    def snapshot(self) -> Snapshot | None:
        """The newest snapshot; None until the first `publish`."""
        return self._snapshot

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call `listener` after every change, for as long as the cache lives. It must not block or raise."""
        self._listeners.append(listener)

    def publish(self, resources: Mapping[str, Mapping[str, bytes]]) -> bool:
        """Replace everything by `resources` (type URL → name → serialised message). True if anything changed.

        Raises InconsistentSnapshotError if a body cannot be read or is not what its key says, if a listener
        refers to a route, a route to a cluster or a cluster to an assignment that is not there, or if a type
        is not served.
        """
        misfits = [f"type {type_url!r} is not served" for type_url in resources if type_url not in set(TypeUrl)]
        types: dict[TypeUrl, Mapping[str, Resource]] = {}
        for type_url in TypeUrl:
            before = self._snapshot[type_url] if self._snapshot else {}
            after = {}
            for name, body in sorted(resources.get(type_url, {}).items()):
                try:
                    own_name, refers_to = describe(type_url, body)
                except DecodeError as error:
                    misfits.append(f"{type_url.name} {name!r} cannot be read: {error}")
                    continue
                if own_name != name:
                    misfits.append(f"{type_url.name} {name!r} calls itself {own_name!r}")
                after[name] = self._resource(name, body, refers_to, before.get(name))
            types[type_url] = before if after == before else MappingProxyType(after)
        for type_url, referred in _REFERRED.items():
            misfits += [
                f"{type_url.name} {resource.name!r} refers to {referred.name} {missing!r}, which is not there"
                for resource in types[type_url].values()
                for missing in sorted(resource.refers_to - types[referred].keys())
            ]
        if misfits:
            raise InconsistentSnapshotError("; ".join(misfits))
        return self._swap(types)

    def assign(self, cluster: str, body: bytes) -> bool:
        """Replace one published ClusterLoadAssignment, and touch nothing else. True if it has changed.

        The body is trusted (`build_assignment` made it). Raises KeyError if there is none of that name.
        """
        return self._replace(TypeUrl.EDS, cluster, body)

    def set_runtime(self, name: str, body: bytes) -> bool:
        """Replace one published Runtime layer, in the manner of `assign`."""
        return self._replace(TypeUrl.RTDS, name, body)

    def _replace(self, type_url: TypeUrl, name: str, body: bytes) -> bool:
        if self._snapshot is None:
            raise KeyError(f"{type_url.name} {name!r}: nothing has been published yet")
        before = self._snapshot[type_url]
        if name not in before:
            raise KeyError(f"{type_url.name} {name!r} has not been published")
        resource = self._resource(name, body, before[name].refers_to, before[name])
        if resource is before[name]:
            return False
        after = MappingProxyType({**before, name: resource})
        return self._swap({**self._snapshot.types, type_url: after})

    def _resource(self, name: str, body: bytes, refers_to: frozenset[str], before: Resource | None) -> Resource:
        version = hashlib.blake2b(body, digest_size=8).hexdigest()
        if before is not None and before.version == version:
            return before
        return Resource(name, version, body, refers_to)

    def _swap(self, types: dict[TypeUrl, Mapping[str, Resource]]) -> bool:
        before = self._snapshot
        if before is not None and all(types[type_url] is before[type_url] for type_url in TypeUrl):
            return False
        self._snapshot = Snapshot(MappingProxyType(types))
        for listener in self._listeners:
            listener()
        return True
