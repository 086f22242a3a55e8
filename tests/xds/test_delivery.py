"""What a client sees of the service, over either protocol protocol. Only the wire is looked at."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio
from envoy.service.discovery.v3.discovery_pb2 import DiscoveryRequest

from tests.xds import resources as make
from tests.xds.clients import (
    DeltaClient,
    DeltaEnvoy,
    Link,
    StateOfTheWorldClient,
    StateOfTheWorldEnvoy,
    XdsClient,
    quiet,
)
from xds_server.ads.events import XdsEvents
from xds_server.ads.protocol import DELTA, STATE_OF_THE_WORLD, XdsProtocol
from xds_server.ads.server import AdsService
from xds_server.ads.snapshot import SnapshotCache, TypeUrl

TWO_POOLS = {"a": {8001: 5}, "b": {8002: 5}}
BAD = 666  # a weight that clients in these tests refuse


class Heard(XdsEvents):
    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def connected(self, *call: Any) -> None:
        self.calls.append(("connected", *call))

    def disconnected(self, *call: Any) -> None:
        self.calls.append(("disconnected", *call))

    def pushed(self, *call: Any) -> None:
        self.calls.append(("pushed", *call))

    def acked(self, *call: Any) -> None:
        self.calls.append(("acked", *call))

    def nacked(self, *call: Any) -> None:
        self.calls.append(("nacked", *call))

    def of(self, kind: str) -> list[tuple[Any, ...]]:
        return [call[1:] for call in self.calls if call[0] == kind]


class Stage:
    """A cache, the service, and the clients joined to it."""

    def __init__(self) -> None:
        self.cache = SnapshotCache()
        self.heard = Heard()
        self.service = AdsService(self.cache, self.heard)
        self.links: list[Link] = []

    def join(self, client: XdsClient) -> Link:
        link = Link(self.service, client)
        self.links.append(link)
        return link

    def publish(self, clusters: Any = None, **changes: dict[str, bytes]) -> make.Published:
        """Publish `world(clusters)` with the types in `changes` (CDS=..., EDS=...) replaced."""
        world = make.world(clusters or TWO_POOLS)
        world.update({TypeUrl[name]: resources for name, resources in changes.items()})
        self.cache.publish(world)
        return world


@pytest_asyncio.fixture
async def stage() -> AsyncIterator[Stage]:
    stage = Stage()
    yield stage
    for link in stage.links:
        link.reading.set()
    stage.service.close()
    await asyncio.gather(*(link.task for link in stage.links))
    assert not stage.service.clients()


both = pytest.mark.parametrize("kind", [StateOfTheWorldClient, DeltaClient])
both_envoys = pytest.mark.parametrize("kind", [StateOfTheWorldEnvoy, DeltaEnvoy])
Kind = Callable[..., Any]


def is_bad(body: bytes) -> bool:
    return body in (make.weights("a", {8001: BAD}), make.weights("b", {8002: BAD}))


# --- what is answered, and when


@both_envoys
async def test_everything_arrives_and_routes_after_the_endpoints_that_they_need(stage: Stage, kind: Kind) -> None:
    world = stage.publish()
    link = stage.join(kind())
    link.client.begin()
    await link.settle()
    assert link.client.has == world
    order = link.client.types_received()
    assert sorted(order) == ["CDS", "EDS", "LDS", "RDS", "RTDS"]
    assert order.index("CDS") < order.index("EDS") < order.index("RDS")


@both
async def test_nothing_is_said_before_the_first_publish(stage: Stage, kind: Kind) -> None:
    link = stage.join(kind())
    link.client.subscribe(TypeUrl.CDS)
    link.client.subscribe(TypeUrl.EDS, "a")
    assert await link.settle() == []
    world = stage.publish()
    await link.settle()
    assert link.client.has[TypeUrl.CDS] == world[TypeUrl.CDS]
    assert link.client.has[TypeUrl.EDS] == {"a": world[TypeUrl.EDS]["a"]}


@both
async def test_a_wildcard_is_answered_even_if_there_is_nothing(stage: Stage, kind: Kind) -> None:
    stage.cache.publish({})
    link = stage.join(kind())
    link.client.subscribe(TypeUrl.LDS)
    (answer,) = await link.settle()
    assert (answer.type_url, answer.resources, answer.removed) == (TypeUrl.LDS, {}, ())
    assert await link.settle() == []


@both
async def test_a_star_is_a_wildcard_in_every_type(stage: Stage, kind: Kind) -> None:
    world = stage.publish()
    link = stage.join(kind())
    for type_url in TypeUrl:
        link.client.subscribe(type_url, "*")
    await link.settle()
    assert link.client.has == world


@both
async def test_no_names_mean_everything_for_clusters_and_nothing_for_endpoints(stage: Stage, kind: Kind) -> None:
    world = stage.publish()
    link = stage.join(kind())
    link.client.subscribe(TypeUrl.EDS)
    assert await link.settle() == []
    link.client.subscribe(TypeUrl.CDS)
    await link.settle()
    assert link.client.has[TypeUrl.CDS] == world[TypeUrl.CDS]
    assert not link.client.has[TypeUrl.EDS]


@both
async def test_only_named_resources_come(stage: Stage, kind: Kind) -> None:
    stage.publish()
    link = stage.join(kind())
    link.client.subscribe(TypeUrl.CDS, "b")
    link.client.subscribe(TypeUrl.EDS, "a")
    received = await link.settle()
    assert sorted(name for answer in received for name in answer.resources) == ["a", "b"]


@both
async def test_giving_up_the_last_name_is_no_wildcard(stage: Stage, kind: Kind) -> None:
    stage.publish()
    link = stage.join(kind())
    link.client.subscribe(TypeUrl.CDS, "a")
    await link.settle()
    link.client.unsubscribe(TypeUrl.CDS, "a")
    await link.settle()
    stage.publish({"c": {8003: 1}, **TWO_POOLS})
    assert await link.settle() == []


@both
async def test_a_name_that_is_asked_for_again_is_sent_again(stage: Stage, kind: Kind) -> None:
    stage.publish()
    link = stage.join(kind())
    link.client.subscribe(TypeUrl.EDS, "a", "b")
    await link.settle()
    link.client.unsubscribe(TypeUrl.EDS, "b")
    assert await link.settle() == []
    link.client.subscribe(TypeUrl.EDS, "b")
    (answer,) = await link.settle()
    assert answer.resources.keys() == {"b"}


@both
async def test_an_unknown_name_is_answered_once_and_served_when_it_appears(stage: Stage, kind: Kind) -> None:
    stage.publish()
    link = stage.join(kind())
    link.client.subscribe(TypeUrl.EDS, "c")
    answers = await link.settle()
    if kind is DeltaClient:
        assert [(answer.resources, answer.removed) for answer in answers] == [({}, ("c",))]
    else:
        assert answers == [], "state of the world has no words for it"
    stage.cache.assign("a", make.weights("a", {8001: 6}))
    assert await link.settle() == []
    world = stage.publish({"c": {8003: 1}, **TWO_POOLS})
    (answer,) = await link.settle()
    assert answer.resources == {"c": world[TypeUrl.EDS]["c"]}


@both
async def test_an_unknown_cluster_is_answered_once_and_served_when_it_appears(stage: Stage, kind: Kind) -> None:
    stage.publish()
    link = stage.join(kind())
    link.client.subscribe(TypeUrl.CDS, "c")
    (answer,) = await link.settle()
    assert not answer.resources
    stage.publish({"c": {8003: 1}, **TWO_POOLS})
    (answer,) = await link.settle()
    assert answer.resources.keys() == {"c"}


@both
async def test_a_type_that_is_not_served_harms_nothing(
    stage: Stage, kind: Kind, caplog: pytest.LogCaptureFixture
) -> None:
    world = stage.publish()
    link = stage.join(kind())
    link.client.subscribe(TypeUrl.CDS)
    link.client.outbox[0].type_url = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret"
    assert await link.settle() == []
    assert "Secret, which is not served" in caplog.text
    link.client.subscribe(TypeUrl.CDS)
    await link.settle()
    assert link.client.has[TypeUrl.CDS] == world[TypeUrl.CDS]


# --- changes


@both_envoys
async def test_a_weight_is_one_response_with_one_assignment(stage: Stage, kind: Kind) -> None:
    stage.publish()
    link = stage.join(kind())
    link.client.begin()
    await link.settle()
    body = make.weights("a", {8001: 6})
    stage.cache.assign("a", body)
    (push,) = await link.settle()
    assert (push.type_url, push.resources, push.removed) == (TypeUrl.EDS, {"a": body}, ())


@both_envoys
async def test_weights_of_two_pools_in_one_interval_are_one_response(stage: Stage, kind: Kind) -> None:
    stage.publish()
    link = stage.join(kind())
    link.client.begin()
    await link.settle()
    stage.cache.assign("a", make.weights("a", {8001: 6}))
    stage.cache.assign("b", make.weights("b", {8002: 6}))
    (push,) = await link.settle()
    assert push.resources.keys() == {"a", "b"}


@both_envoys
async def test_a_runtime_value_is_one_response(stage: Stage, kind: Kind) -> None:
    stage.publish()
    link = stage.join(kind())
    link.client.begin()
    await link.settle()
    stage.cache.set_runtime("layer", make.runtime("layer", share=0.5))
    assert [push.type_url for push in await link.settle()] == [TypeUrl.RTDS]


@both_envoys
async def test_equal_content_is_not_pushed(stage: Stage, kind: Kind) -> None:
    stage.publish()
    link = stage.join(kind())
    link.client.begin()
    await link.settle()
    stage.publish()
    stage.cache.assign("a", make.weights("a", {8001: 5}))
    assert await link.settle() == []


@both_envoys
async def test_a_change_of_everything_goes_out_in_order(stage: Stage, kind: Kind) -> None:
    stage.publish()
    link = stage.join(kind())
    link.client.begin()
    await link.settle()
    world = stage.publish(
        {"a": {8001: 7}, "b": {8002: 7}},
        CDS={name: make.cluster(name, connect_timeout_s=2) for name in TWO_POOLS},
        LDS={"edge": make.listener("edge", 10_001)},
        RDS={"routes": make.route("routes", {"/": "b"})},
        RTDS={"layer": make.runtime("layer", share=0.1)},
    )
    assert [push.type_url.name for push in await link.settle()] == ["CDS", "EDS", "LDS", "RDS", "RTDS"]
    assert link.client.has == world


@both_envoys
async def test_a_changed_cluster_gets_its_assignment_again_before_it_is_acked(stage: Stage, kind: Kind) -> None:
    stage.publish()
    link = stage.join(kind())
    link.client.begin()
    await link.settle()
    stage.publish(CDS={"a": make.cluster("a", connect_timeout_s=9), "b": make.cluster("b")})
    await quiet()
    pushes = [link.client.read(response) for response in link.inbox]
    assert [push.type_url.name for push in pushes] == ["CDS", "EDS"]
    assert pushes[1].resources.keys() == {"a"}, "the other cluster is not warming"
    await link.settle()
    assert not link.client.warming
    assert await link.settle() == [], "the repeated request of a warming cluster is no reason for more"


@both
async def test_a_stale_answer_acknowledges_nothing_and_its_names_count(stage: Stage, kind: Kind) -> None:
    stage.publish()
    link = stage.join(kind())
    link.client.subscribe(TypeUrl.EDS, "a")
    await link.settle()
    acks = len(stage.heard.of("acked"))
    stage.cache.assign("a", make.weights("a", {8001: 6}))
    await quiet()
    # The client has not seen the push when it asks for more.
    link.client.subscribe(TypeUrl.EDS, "b")
    pushes = await link.settle()
    assert [set(push.resources) for push in pushes] == [{"a"}, {"b"}]
    assert len(stage.heard.of("acked")) == acks + 2


@both
async def test_an_answer_to_nothing_is_ignored(stage: Stage, kind: Kind) -> None:
    stage.publish()
    link = stage.join(kind())
    link.client.subscribe(TypeUrl.EDS, "a")
    await link.settle()
    heard = list(stage.heard.calls)
    for nonce in ("1", "99", "from another stream"):
        link.client.subscribe(TypeUrl.EDS) if kind is DeltaClient else link.client._request(TypeUrl.EDS)
        link.client.outbox[-1].response_nonce = nonce
        link.client.outbox[-1].error_detail.message = "late"
    assert await link.settle() == []
    assert stage.heard.calls == heard


@both_envoys
async def test_removed_resources_go_after_what_refers_to_them(stage: Stage, kind: Kind) -> None:
    both_edges = {"edge": make.listener("edge", 10_000), "old": make.listener("old", 10_001)}
    stage.publish(LDS=both_edges)
    link = stage.join(kind())
    link.client.begin()
    await link.settle()
    world = stage.publish({"a": {8001: 5}})
    pushes = await link.settle()
    assert [push.type_url.name for push in pushes] == ["RDS", "LDS", "CDS"]
    assert pushes[0].resources == world[TypeUrl.RDS]
    for type_url in TypeUrl:
        assert link.client.has[type_url] == world[type_url]


@both_envoys
async def test_one_pool_replaces_another_without_a_gap(stage: Stage, kind: Kind) -> None:
    stage.publish({"old": {8001: 1}})
    link = stage.join(kind())
    link.client.begin()
    await link.settle()
    world = stage.publish({"new": {8002: 1}})
    await quiet()
    assert await link.deliver(1) == 1
    assert link.client.has[TypeUrl.CDS].keys() == {"old", "new"}, "made before broken"
    waiting = [link.client.read(response).type_url.name for response in link.inbox]
    assert waiting == ["EDS"], "the route waits until the new cluster is warm"
    assert await link.deliver(1) == 1
    assert not link.client.warming
    assert await link.deliver(1) == 1
    assert link.client.has[TypeUrl.RDS] == world[TypeUrl.RDS]
    assert link.client.has[TypeUrl.CDS].keys() == {"old", "new"}, "kept until the route is accepted"
    await link.settle()
    assert link.client.has == world


@both_envoys
async def test_what_a_refused_route_needs_is_kept(stage: Stage, kind: Kind) -> None:
    before = stage.publish({"old": {8001: 1}})
    new_route = make.route("routes", {"/": "new"})
    link = stage.join(kind(refuses=lambda body: body == new_route))
    link.client.begin()
    await link.settle()
    stage.publish({"new": {8002: 1}}, RDS={"routes": new_route})
    await link.settle()
    assert link.client.has[TypeUrl.RDS] == before[TypeUrl.RDS]
    assert link.client.has[TypeUrl.CDS].keys() == {"old", "new"}
    world = stage.publish({"new": {8002: 1}})
    await link.settle()
    assert link.client.has == world


@both_envoys
async def test_a_refused_listener_keeps_no_cluster(stage: Stage, kind: Kind) -> None:
    stage.publish({"old": {8001: 1}, "kept": {8002: 1}})
    new_edge = make.listener("edge", 10_009)
    link = stage.join(kind(refuses=lambda body: body == new_edge))
    link.client.begin()
    await link.settle()
    world = stage.publish({"kept": {8002: 1}}, LDS={"edge": new_edge})
    await link.settle()
    assert link.client.has[TypeUrl.LDS] != world[TypeUrl.LDS]
    for type_url in (TypeUrl.RDS, TypeUrl.CDS, TypeUrl.EDS):
        assert link.client.has[type_url] == world[type_url]


@both_envoys
async def test_what_a_refused_listener_refers_to_is_kept(stage: Stage, kind: Kind) -> None:
    before = stage.publish({"old": {8001: 1}})
    new_edge = make.listener("edge", 10_009, routes="new-routes")
    link = stage.join(kind(refuses=lambda body: body == new_edge))
    link.client.begin()
    await link.settle()
    stage.publish(
        {"new": {8002: 1}}, LDS={"edge": new_edge}, RDS={"new-routes": make.route("new-routes", {"/": "new"})}
    )
    await link.settle()
    for type_url in (TypeUrl.LDS, TypeUrl.RDS):
        assert link.client.has[type_url].items() >= before[type_url].items()
    assert link.client.has[TypeUrl.CDS].keys() == {"old", "new"}


# --- refusals


@both
async def test_a_refused_version_is_not_sent_again_until_it_changes(
    stage: Stage, kind: Kind, caplog: pytest.LogCaptureFixture
) -> None:
    world = stage.publish()
    link = stage.join(kind("envoy-7", refuses=is_bad))
    link.client.subscribe(TypeUrl.EDS, "a", "b")
    await link.settle()
    with caplog.at_level(logging.WARNING):
        stage.cache.assign("a", make.weights("a", {8001: BAD}))
        await link.settle()
    assert [record.getMessage() for record in caplog.records] == [
        f"envoy-7 refuses EDS a, version {link.client.refused[0].version}, and keeps its last good: refused by the test"
    ]
    assert stage.heard.of("nacked") == [("envoy-7", TypeUrl.EDS, link.client.refused[0].version, "refused by the test")]
    assert link.client.has[TypeUrl.EDS] == world[TypeUrl.EDS]
    (row,) = stage.service.clients()
    assert row.types[TypeUrl.EDS].refusal == "refused by the test"

    stage.cache.assign("b", make.weights("b", {8002: 6}))
    assert [set(push.resources) for push in await link.settle()] == [{"b"}], "others go on"
    (row,) = stage.service.clients()
    assert row.types[TypeUrl.EDS].refusal == "refused by the test", "of what is still served"
    stage.cache.assign("a", make.weights("a", {8001: 5}))
    assert await link.settle() == [], "the client still has this content"
    (row,) = stage.service.clients()
    assert row.types[TypeUrl.EDS].refusal == "", "it is taken back"
    stage.cache.assign("a", make.weights("a", {8001: 7}))
    assert [set(push.resources) for push in await link.settle()] == [{"a"}]
    stage.cache.assign("a", make.weights("a", {8001: BAD}))
    assert len(await link.settle()) == 1, "the content has changed: it may be accepted now"
    (row,) = stage.service.clients()
    assert row.types[TypeUrl.EDS].accepted_version


@both
async def test_one_bad_resource_does_not_hold_the_good_ones_back(stage: Stage, kind: Kind) -> None:
    world = stage.publish()
    link = stage.join(kind(refuses=is_bad))
    link.client.subscribe(TypeUrl.EDS, "a", "b")
    await link.settle()
    good = make.weights("b", {8002: 9})
    stage.cache.assign("a", make.weights("a", {8001: BAD}))
    stage.cache.assign("b", good)
    pushes = await link.settle()
    assert [sorted(push.resources) for push in pushes] == [["a", "b"], ["a"], ["b"]]
    assert link.client.has[TypeUrl.EDS] == {"a": world[TypeUrl.EDS]["a"], "b": good}


@both_envoys
async def test_a_refused_cluster_does_not_stop_the_weights(stage: Stage, kind: Kind) -> None:
    stage.publish()
    bad = make.cluster("c", connect_timeout_s=BAD)
    link = stage.join(kind(refuses=lambda body: body == bad))
    link.client.begin()
    await link.settle()
    three = {**TWO_POOLS, "c": {8003: 1}}
    clusters = {"a": make.cluster("a"), "b": make.cluster("b"), "c": bad}
    stage.publish(three, CDS=clusters)
    await link.settle()
    assert link.client.has[TypeUrl.CDS].keys() == {"a", "b"}
    assert len(link.client.refused) == 1
    stage.cache.assign("a", make.weights("a", {8001: 6}))
    assert [push.type_url.name for push in await link.settle()] == ["EDS"]
    world = stage.publish(three)
    await link.settle()
    assert link.client.has == world


@both_envoys
async def test_a_refusal_of_what_was_replaced_meanwhile_changes_nothing(stage: Stage, kind: Kind) -> None:
    stage.publish()
    bad = make.cluster("b", connect_timeout_s=BAD)
    link = stage.join(kind(refuses=lambda body: body == bad))
    link.client.begin()
    await link.settle()
    changed = make.cluster("a", connect_timeout_s=9)
    stage.publish(CDS={"a": changed, "b": bad})
    await quiet()
    world = stage.publish(CDS={"a": changed, "b": make.cluster("b", connect_timeout_s=2)})
    clusters = [sorted(push.resources) for push in await link.settle() if push.type_url is TypeUrl.CDS]
    if kind is StateOfTheWorldEnvoy:
        assert clusters == [["a", "b"], ["a", "b"]]
    else:
        assert clusters == [["a", "b"], ["b"], ["a"]], "the good one that was refused in company comes again"
    assert len(link.client.refused) == 1
    assert link.client.has == world


@both
async def test_a_refusal_by_one_client_does_not_touch_another(stage: Stage, kind: Kind) -> None:
    stage.publish()
    picky, easy = stage.join(kind(refuses=is_bad)), stage.join(kind())
    for link in (picky, easy):
        link.client.subscribe(TypeUrl.EDS, "a")
        await link.settle()
    bad = make.weights("a", {8001: BAD})
    stage.cache.assign("a", bad)
    await picky.settle()
    await easy.settle()
    assert picky.client.has[TypeUrl.EDS]["a"] != bad
    assert easy.client.has[TypeUrl.EDS]["a"] == bad


# --- slow, silent and many


@both
async def test_a_slow_reader_gets_the_newest_weights_next(stage: Stage, kind: Kind) -> None:
    stage.publish()
    slow, quick = stage.join(kind("slow")), stage.join(kind("quick"))
    for link in (slow, quick):
        link.client.subscribe(TypeUrl.EDS, "a")
        await link.settle()
    slow.reading.clear()
    for weight in range(10, 110):
        stage.cache.assign("a", make.weights("a", {8001: weight}))
        await quick.settle()
        assert quick.client.has[TypeUrl.EDS]["a"] == make.weights("a", {8001: weight})
    slow.reading.set()
    pushes = await slow.settle()
    assert [push.resources["a"] for push in pushes] == [
        make.weights("a", {8001: 10}),  # was on its way
        make.weights("a", {8001: 109}),
    ]


@both
async def test_a_client_that_does_not_answer_is_not_flooded(stage: Stage, kind: Kind) -> None:
    stage.publish()
    link = stage.join(kind())
    link.client.subscribe(TypeUrl.EDS, "a")
    await link.settle()
    for weight in range(10, 110):
        stage.cache.assign("a", make.weights("a", {8001: weight}))
        await quiet()
    assert len(link.inbox) == 4, "the transport could take them all, but they would be old when they are read"
    await link.settle()
    assert link.client.has[TypeUrl.EDS]["a"] == make.weights("a", {8001: 109})
    assert link.client.types_received() == ["EDS"] * 6


@pytest.mark.parametrize("protocol", [STATE_OF_THE_WORLD, DELTA], ids=lambda protocol: protocol.name)
def test_a_client_that_never_answers_is_served_slowly_and_costs_no_memory(protocol: XdsProtocol) -> None:
    cache = SnapshotCache()
    cache.publish(make.world(TWO_POOLS))
    client = protocol.new_client()
    endpoints = client.subscriptions[TypeUrl.EDS]
    endpoints.want_exactly(["a"])
    sent = []
    for second in range(1_000):
        cache.assign("a", make.weights("a", {8001: 10 + second}))
        assert cache.snapshot is not None
        if client.next_push(cache.snapshot, float(second)):
            sent.append(second)
    assert len(endpoints._in_flight) == 64
    assert sum(at >= 500 for at in sent) == 400, "four in five seconds"


async def test_only_the_first_request_has_to_name_the_node(stage: Stage) -> None:
    stage.publish()
    named, unnamed = stage.join(DeltaClient("n1")), stage.join(StateOfTheWorldClient(""))
    for link in (named, unnamed):
        for type_url in (TypeUrl.CDS, TypeUrl.LDS):
            link.client.subscribe(type_url)
        await link.settle()
    assert [(row.node, row.protocol) for row in stage.service.clients()] == [
        ("n1", "delta"),
        ("test:peer", "sotw"),
    ]
    assert stage.heard.of("connected") == [("n1", "delta"), ("test:peer", "sotw")]
    await named.hang_up()
    assert stage.heard.of("disconnected") == [("n1", "delta")]
    assert [row.node for row in stage.service.clients()] == ["test:peer"]


async def test_every_push_and_its_answer_are_told(stage: Stage) -> None:
    stage.publish()
    link = stage.join(DeltaClient("n1"))
    link.client.subscribe(TypeUrl.CDS)
    (push,) = await link.settle()
    assert stage.heard.of("pushed") == [("n1", TypeUrl.CDS, push.version, 2, push.size)]
    ((node, type_url, version, seconds),) = stage.heard.of("acked")
    assert (node, type_url, version) == ("n1", TypeUrl.CDS, push.version)
    assert 0 <= seconds < 5
    (row,) = stage.service.clients()
    assert row.types[TypeUrl.CDS].accepted_version == push.version
    assert row.types[TypeUrl.LDS].accepted_version == ""


async def test_a_closed_service_ends_new_streams_too(stage: Stage) -> None:
    stage.publish()
    old = stage.join(DeltaClient())
    await quiet()
    stage.service.close()
    new = stage.join(DeltaClient())
    await asyncio.wait_for(asyncio.gather(old.task, new.task), 1)


# --- state of the world alone


async def test_listeners_and_clusters_are_always_whole(stage: Stage) -> None:
    stage.publish()
    link = stage.join(StateOfTheWorldClient())
    link.client.subscribe(TypeUrl.CDS)
    await link.settle()
    stage.publish(CDS={"a": make.cluster("a", connect_timeout_s=9), "b": make.cluster("b")})
    (push,) = await link.settle()
    assert push.resources.keys() == {"a", "b"}


async def test_subscriptions_are_heard_through_pushes_that_outrun_the_client(stage: Stage) -> None:
    stage.publish()
    link = stage.join(StateOfTheWorldClient())
    link.client.subscribe(TypeUrl.EDS, "a")
    await link.settle()
    link.client.subscribe(TypeUrl.EDS, "b")
    for weight in range(10, 20):
        # Each push makes the nonce of whatever the client has sent until now stale.
        stage.cache.assign("a", make.weights("a", {8001: weight}))
        await quiet()
        await link.deliver(1)
    assert "b" in link.client.has[TypeUrl.EDS]


async def test_a_first_request_with_an_old_version_and_nonce_is_answered(stage: Stage) -> None:
    world = stage.publish()
    link = stage.join(StateOfTheWorldClient())
    link.client.wants[TypeUrl.CDS] = set()
    assert stage.cache.snapshot is not None
    version = stage.cache.snapshot[TypeUrl.CDS]["a"].version
    link.client.send(DiscoveryRequest(type_url=TypeUrl.CDS, version_info=version, response_nonce="17"))
    await link.settle()
    assert link.client.has[TypeUrl.CDS] == world[TypeUrl.CDS]


# --- delta alone


def versions(cache: SnapshotCache, type_url: TypeUrl) -> dict[str, str]:
    assert cache.snapshot is not None
    return {name: resource.version for name, resource in cache.snapshot[type_url].items()}


async def test_after_a_reconnect_only_what_differs_is_sent(stage: Stage) -> None:
    stage.publish()
    known = versions(stage.cache, TypeUrl.EDS)
    stage.cache.assign("b", make.weights("b", {8002: 6}))
    link = stage.join(DeltaClient())
    link.client.subscribe(TypeUrl.EDS, "a", "b", known=known)
    (push,) = await link.settle()
    assert push.resources.keys() == {"b"}


async def test_after_a_reconnect_a_wildcard_learns_what_is_gone(stage: Stage) -> None:
    stage.publish()
    known = versions(stage.cache, TypeUrl.CDS)
    stage.publish({"b": {8002: 5}, "c": {8003: 1}})
    link = stage.join(DeltaClient())
    link.client.subscribe(TypeUrl.CDS, known=known)
    added, removed = await link.settle()
    assert (added.resources.keys(), added.removed) == ({"c"}, ())
    assert (removed.resources.keys(), removed.removed) == (set(), ("a",))


async def test_who_comes_from_another_process_with_the_same_content_is_sent_nothing(stage: Stage) -> None:
    stage.publish()
    other = SnapshotCache()
    other.publish(make.world(TWO_POOLS))
    link = stage.join(DeltaClient())
    link.client.subscribe(TypeUrl.CDS, known=versions(other, TypeUrl.CDS))
    link.client.subscribe(TypeUrl.EDS, "a", "b", known=versions(other, TypeUrl.EDS))
    assert await link.settle() == []


async def test_a_known_assignment_of_a_changed_cluster_is_sent_again(stage: Stage) -> None:
    stage.publish()
    clusters, assignments = versions(stage.cache, TypeUrl.CDS), versions(stage.cache, TypeUrl.EDS)
    stage.publish(CDS={"a": make.cluster("a", connect_timeout_s=9), "b": make.cluster("b")})
    link = stage.join(DeltaClient())
    link.client.subscribe(TypeUrl.EDS, "a", "b", known=assignments)
    link.client.subscribe(TypeUrl.CDS, known=clusters)
    assert [(push.type_url.name, set(push.resources)) for push in await link.settle()] == [
        ("CDS", {"a"}),
        ("EDS", {"a"}),
    ]


async def test_a_name_given_up_under_a_wildcard_is_answered_either_way(stage: Stage) -> None:
    stage.publish()
    link = stage.join(DeltaClient())
    link.client.subscribe(TypeUrl.CDS, "*", "a", "nobody")
    await link.settle()
    link.client.unsubscribe(TypeUrl.CDS, "a", "nobody")
    pushes = await link.settle()
    assert {name for push in pushes for name in push.resources} == {"a"}
    assert [name for push in pushes for name in push.removed] == ["nobody"]
    link.client.unsubscribe(TypeUrl.CDS, "never asked for")
    assert await link.settle() == []


async def test_the_wildcard_of_old_goes_on_beside_names(stage: Stage) -> None:
    stage.publish()
    link = stage.join(DeltaClient())
    link.client.subscribe(TypeUrl.CDS)
    await link.settle()
    link.client.subscribe(TypeUrl.CDS, "a")
    assert [set(push.resources) for push in await link.settle()] == [{"a"}]
    stage.publish({**TWO_POOLS, "c": {8003: 1}})
    assert [set(push.resources) for push in await link.settle()] == [{"c"}]
    link.client.unsubscribe(TypeUrl.CDS, "*")
    await link.settle()
    stage.publish({**TWO_POOLS, "d": {8004: 1}})
    assert not any("d" in push.resources for push in await link.settle())


async def test_removed_resources_are_named(stage: Stage) -> None:
    stage.publish()
    link = stage.join(DeltaClient())
    link.client.subscribe(TypeUrl.CDS)
    link.client.subscribe(TypeUrl.EDS, "a", "b")
    await link.settle()
    stage.publish({"a": {8001: 5}})
    removed = [(push.type_url.name, push.removed) for push in await link.settle()]
    assert removed == [("CDS", ("b",)), ("EDS", ("b",))]
    stage.publish()
    await link.settle()
    assert link.client.has[TypeUrl.EDS].keys() == {"a", "b"}
