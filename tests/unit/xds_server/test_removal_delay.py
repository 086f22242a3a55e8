"""How long a cluster outlives the policy that had it."""

from collections.abc import Mapping

from tests.xds import resources as make
from xds_server.ads.snapshot import SnapshotCache, TypeUrl
from xds_server.removal_delay import RemovalDelay

WAIT_S = 300.0


class Scene:
    def __init__(self) -> None:
        self.cache = SnapshotCache()
        self.removal_delay = RemovalDelay()

    def publish(self, now: float, pools: Mapping[str, Mapping[int, int]], wait_s: float = WAIT_S) -> set[str]:
        """What Envoy is told: clusters, each with its assignment."""
        resources: dict[str, Mapping[str, bytes]] = dict(make.world(pools).items())
        self.cache.publish(self.removal_delay.keep(now, self.cache.snapshot, resources, wait_s))
        assert self.cache.snapshot is not None
        assert self.cache.snapshot[TypeUrl.EDS].keys() == self.cache.snapshot[TypeUrl.CDS].keys()
        return {*self.cache.snapshot[TypeUrl.CDS]}

    def routed(self) -> frozenset[str]:
        assert self.cache.snapshot is not None
        return frozenset().union(*(routes.refers_to for routes in self.cache.snapshot[TypeUrl.RDS].values()))


def test_a_cluster_stays_until_no_request_can_wait_for_it_and_gets_nothing_new() -> None:
    scene = Scene()
    assert scene.publish(0, {"a": {8001: 5}, "b": {8002: 5}}) == {"a", "b"}
    assert scene.publish(1000, {"a": {8001: 5}}, wait_s=1) == {"a", "b"}  # as the policy said that had it
    assert scene.routed() == {"a"}
    assert not scene.removal_delay.is_due(1000 + WAIT_S - 1)
    assert scene.publish(1000 + WAIT_S - 1, {"a": {8001: 6}}) == {"a", "b"}
    assert scene.removal_delay.is_due(1000 + WAIT_S)
    assert scene.publish(1000 + WAIT_S, {"a": {8001: 6}}) == {"a"}
    assert not scene.removal_delay.is_due(1000 + WAIT_S)


def test_one_that_comes_back_is_the_policys_again() -> None:
    scene = Scene()
    scene.publish(0, {"a": {8001: 5}, "b": {8002: 5}})
    scene.publish(10, {"a": {8001: 5}})
    scene.publish(20, {"a": {8001: 5}, "b": {8003: 7}})
    assert scene.cache.snapshot is not None
    assert scene.cache.snapshot[TypeUrl.EDS]["b"].body == make.weights("b", {8003: 7})
    assert not scene.removal_delay.is_due(10 + WAIT_S)
    scene.publish(500, {"a": {8001: 5}})
    assert scene.publish(500 + WAIT_S - 1, {"a": {8001: 5}}) == {"a", "b"}
    assert scene.publish(500 + WAIT_S, {"a": {8001: 5}}) == {"a"}
