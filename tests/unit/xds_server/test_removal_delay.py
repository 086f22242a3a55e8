"""How long a cluster outlives the policy that had it."""

import json
from collections.abc import Mapping

import pytest

from tests.xds import resources as make
from xds_server.ads.snapshot import SnapshotCache, TypeUrl
from xds_server.removal_delay import RetiredClusters

WAIT_S = 300.0


class Scene:
    def __init__(self, memory: object = None) -> None:
        self.cache = SnapshotCache("e1")
        self.retired = RetiredClusters()
        if memory is not None:
            self.retired.restore(memory)

    def publish(self, now: float, pools: Mapping[str, Mapping[int, int]], wait_s: float = WAIT_S) -> set[str]:
        """What Envoy is told: clusters, each with its assignment."""
        resources: dict[str, Mapping[str, bytes]] = dict(make.world(pools).items())
        self.cache.publish(self.retired.keep(now, self.cache.snapshot, resources, wait_s))
        assert self.cache.snapshot is not None
        assert self.cache.snapshot[TypeUrl.EDS].keys() == self.cache.snapshot[TypeUrl.CDS].keys()
        return {*self.cache.snapshot[TypeUrl.CDS]}

    def restarted(self) -> "Scene":
        """Another process that has nothing of this one but what it wrote down."""
        return Scene(json.loads(json.dumps(self.retired.dump(self.cache.snapshot))))

    def routed(self) -> frozenset[str]:
        assert self.cache.snapshot is not None
        return frozenset().union(*(routes.refers_to for routes in self.cache.snapshot[TypeUrl.RDS].values()))


def test_a_cluster_stays_until_no_request_can_wait_for_it_and_gets_nothing_new() -> None:
    scene = Scene()
    assert scene.publish(0, {"a": {8001: 5}, "b": {8002: 5}}) == {"a", "b"}
    assert scene.publish(1000, {"a": {8001: 5}}, wait_s=1) == {"a", "b"}  # as the policy said that had it
    assert scene.routed() == {"a"}
    assert not scene.retired.is_due(1000 + WAIT_S - 1)
    assert scene.publish(1000 + WAIT_S - 1, {"a": {8001: 6}}) == {"a", "b"}
    assert scene.retired.is_due(1000 + WAIT_S)
    assert scene.publish(1000 + WAIT_S, {"a": {8001: 6}}) == {"a"}
    assert not scene.retired.is_due(1000 + WAIT_S)


def test_one_that_comes_back_is_the_policys_again() -> None:
    scene = Scene()
    scene.publish(0, {"a": {8001: 5}, "b": {8002: 5}})
    scene.publish(10, {"a": {8001: 5}})
    scene.publish(20, {"a": {8001: 5}, "b": {8003: 7}})
    assert scene.cache.snapshot is not None
    assert scene.cache.snapshot[TypeUrl.EDS]["b"].body == make.weights("b", {8003: 7})
    assert not scene.retired.is_due(10 + WAIT_S)
    scene.publish(500, {"a": {8001: 5}})
    assert scene.publish(500 + WAIT_S - 1, {"a": {8001: 5}}) == {"a", "b"}
    assert scene.publish(500 + WAIT_S, {"a": {8001: 5}}) == {"a"}


def test_a_restart_forgets_none() -> None:
    scene = Scene()
    scene.publish(0, {"a": {8001: 5}, "b": {8002: 5}})
    scene.publish(10, {"a": {8001: 5}}, wait_s=1)
    scene = scene.restarted().restarted()  # the second came before anything was published
    assert scene.publish(20, {"a": {8001: 6}}, wait_s=1) == {"a", "b"}
    assert scene.routed() == {"a"}
    assert scene.cache.snapshot is not None
    assert scene.cache.snapshot[TypeUrl.EDS]["a"].body == make.weights("a", {8001: 6})
    assert scene.cache.snapshot[TypeUrl.EDS]["b"].body == make.weights("b", {8002: 5})
    assert scene.publish(10 + WAIT_S - 1, {"a": {8001: 6}}) == {"a", "b"}
    assert scene.publish(10 + WAIT_S, {"a": {8001: 6}}) == {"a"}


def test_one_that_the_policy_lost_while_nobody_served_it_is_kept_from_the_restart_on() -> None:
    scene = Scene()
    scene.publish(0, {"a": {8001: 5}, "b": {8002: 5}})
    scene = scene.restarted()
    assert scene.publish(1000, {"a": {8001: 5}}, wait_s=1) == {"a", "b"}
    assert scene.publish(1000 + WAIT_S - 1, {"a": {8001: 5}}) == {"a", "b"}
    assert scene.publish(1000 + WAIT_S, {"a": {8001: 5}}) == {"a"}


@pytest.mark.parametrize(
    "memory",
    [
        [],
        {"wait_s": 1},
        {"wait_s": -1, "clusters": {}},
        {"wait_s": 1, "clusters": {"b": {"cluster": "?"}}},
        {"wait_s": 1, "clusters": {"b": {"cluster": "////"}}},
        {"wait_s": 1, "clusters": {"b": {"cluster": ""}}},
    ],
)
def test_what_cannot_be_used_of_before_a_restart_is_said_and_done_without(
    memory: object, caplog: pytest.LogCaptureFixture
) -> None:
    assert Scene(memory).publish(0, {"a": {8001: 5}}) == {"a"}
    assert "the clusters in the state file are not used" in caplog.text
