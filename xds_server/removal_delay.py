"""Clusters that a new policy no longer has, served on for as long as a request may still come back to them.

A request keeps the route that it was given. While its answer is held back or has yet to come, it goes to that route's
cluster once more if an attempt fails, and without the cluster it would be lost. Nothing new goes there, since no route
names it. Streams that run need none of this: Envoy lets them outlive their cluster.
"""

from collections.abc import Mapping

from xds_server.ads.snapshot import Snapshot, TypeUrl


class RemovalDelay:
    """Which clusters were removed, and until when they are served. Times are seconds of one clock."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}
        self._wait_s = 0.0

    def keep(
        self,
        now: float,
        published: Snapshot | None,
        resources: Mapping[str, Mapping[str, bytes]],
        wait_s: float,
    ) -> Mapping[str, Mapping[str, bytes]]:
        """`resources`, and those clusters of `published` that they leave out, as they were, with their assignments.

        `wait_s`: how long a request may wait for its answer, as `resources` say. A cluster is kept for as long as
        those said that had it last.
        """
        if published is None:
            self._wait_s = wait_s
            return resources
        left_out = published[TypeUrl.CDS].keys() - resources[TypeUrl.CDS].keys()
        until = {name: self._until.get(name, now + self._wait_s) for name in left_out}
        self._until = {name: end for name, end in until.items() if end > now}
        self._wait_s = wait_s
        kept = {
            type_url: {name: published[type_url][name].body for name in self._until.keys() & published[type_url].keys()}
            for type_url in (TypeUrl.CDS, TypeUrl.EDS)
        }
        return {**resources, **{type_url: bodies | dict(resources[type_url]) for type_url, bodies in kept.items()}}

    def is_due(self, now: float) -> bool:
        """Whether the time of any is over: `keep` would leave it out."""
        return any(end <= now for end in self._until.values())
