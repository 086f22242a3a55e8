"""Clusters that a new policy no longer has, served on for as long as a request may still come back to them.

A request keeps the route that it was given. While its answer is held back or has yet to come, it goes to that route's
cluster once more if an attempt fails, and without the cluster it would be lost. Nothing new goes there, since no route
names it. Streams that run need none of this: Envoy lets them outlive their cluster.
"""

import logging
from collections.abc import Mapping

from pydantic import Base64Bytes, BaseModel, ConfigDict, Field, ValidationError

from xds_server.ads.snapshot import InconsistentSnapshotError, Snapshot, SnapshotCache, TypeUrl

log = logging.getLogger(__name__)

_Bodies = Mapping[str, Mapping[str, bytes]]  # of clusters and assignments, by name


class _Kept(BaseModel):
    """A cluster as it was published last, and until when it is served if it was removed."""

    model_config = ConfigDict(frozen=True, allow_inf_nan=False)

    cluster: Base64Bytes
    assignment: Base64Bytes | None = None
    until: float | None = None


class _Memory(BaseModel):
    model_config = ConfigDict(frozen=True, allow_inf_nan=False)

    wait_s: float = Field(ge=0)
    clusters: dict[str, _Kept]


class RetiredClusters:
    """Which clusters were removed, and until when. Times are Unix seconds, so that they outlive this process."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}
        self._wait_s = 0.0
        self._restored: _Bodies = {TypeUrl.CDS: {}, TypeUrl.EDS: {}}

    def keep(
        self,
        now: float,
        published: Snapshot | None,
        resources: Mapping[str, Mapping[str, bytes]],
        wait_s: float,
    ) -> dict[str, Mapping[str, bytes]]:
        """`resources`, and those clusters of `published` that they leave out, as they were, with their assignments.

        Before anything is published, those count that were recalled. `wait_s`: how long a request may wait for its
        answer, as `resources` say. A cluster is kept for as long as those said that had it last.
        """
        old = self._old(published)
        left_out = old[TypeUrl.CDS].keys() - resources[TypeUrl.CDS].keys()
        until = {name: self._until.get(name, now + self._wait_s) for name in left_out}
        self._until = {name: end for name, end in until.items() if end > now}
        self._wait_s = wait_s
        kept = {
            type_url: {name: bodies[name] for name in self._until.keys() & bodies.keys()} | dict(resources[type_url])
            for type_url, bodies in old.items()
        }
        return {**resources, **kept}

    def is_due(self, now: float) -> bool:
        """Whether the time of any is over: `keep` would leave it out."""
        return any(end <= now for end in self._until.values())

    def dump(self, published: Snapshot | None) -> object:
        """What a process that comes after this one needs to go on, JSON-able."""
        clusters, assignments = self._old(published).values()
        kept = {
            name: _Kept.model_construct(cluster=body, assignment=assignments.get(name), until=self._until.get(name))
            for name, body in clusters.items()
        }
        return _Memory.model_construct(wait_s=self._wait_s, clusters=kept).model_dump(mode="json", exclude_none=True)

    def restore(self, memory: object) -> None:
        """Take up what `remember` of an earlier process gave, if it could be published."""
        try:
            found = _Memory.model_validate(memory)
            restored: _Bodies = {
                TypeUrl.CDS: {name: one.cluster for name, one in found.clusters.items()},
                TypeUrl.EDS: {name: one.assignment for name, one in found.clusters.items() if one.assignment},
            }
            SnapshotCache("restored").publish(restored)
        except (ValidationError, InconsistentSnapshotError):
            log.warning("the clusters in the state file are not used: they are damaged, or of another version")
            return
        self._restored = restored
        self._wait_s = found.wait_s
        self._until = {name: one.until for name, one in found.clusters.items() if one.until is not None}

    def _old(self, published: Snapshot | None) -> _Bodies:
        if published is None:
            return self._restored
        return {
            type_url: {name: resource.body for name, resource in published[type_url].items()}
            for type_url in (TypeUrl.CDS, TypeUrl.EDS)
        }
