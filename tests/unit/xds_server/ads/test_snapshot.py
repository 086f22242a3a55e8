"""The cache: versions, the swap, and what is refused before it can reach an Envoy."""

import dataclasses

import pytest

from tests.xds import resources as make
from xds_server.ads.snapshot import InconsistentSnapshotError, SnapshotCache, TypeUrl


def published(weight: int = 5) -> SnapshotCache:
    cache = SnapshotCache()
    cache.publish(make.world({"a": {8001: weight}, "b": {8002: weight}}))
    return cache


def versions(cache: SnapshotCache) -> dict[str, str]:
    assert cache.snapshot is not None
    return {
        f"{type_url.name} {name}": resource.version
        for type_url in TypeUrl
        for name, resource in cache.snapshot[type_url].items()
    }


def test_there_is_nothing_before_the_first_publish() -> None:
    cache = SnapshotCache()
    assert cache.snapshot is None
    with pytest.raises(KeyError, match="nothing has been published"):
        cache.assign("a", make.weights("a", {8001: 5}))


def test_equal_content_has_equal_versions_in_every_process_and_other_content_has_others() -> None:
    assert versions(published()) == versions(published())
    first, second = versions(published(5)), versions(published(6))
    assert first.keys() == second.keys()
    assert {name for name in first if first[name] != second[name]} == {"EDS a", "EDS b"}


def test_publishing_the_same_again_changes_nothing_and_calls_nobody() -> None:
    cache = published()
    before, calls = cache.snapshot, []
    cache.on_change(lambda: calls.append(1))
    assert not cache.publish(make.world({"a": {8001: 5}, "b": {8002: 5}}))
    assert not cache.assign("a", make.weights("a", {8001: 5}))
    assert cache.snapshot is before
    assert not calls


def test_a_weight_changes_one_assignment_and_nothing_else() -> None:
    cache, calls = published(), []
    before = cache.snapshot
    assert before is not None
    old = versions(cache)
    cache.on_change(lambda: calls.append(1))
    assert cache.assign("a", make.weights("a", {8001: 6}))
    new = versions(cache)
    assert {name for name in old if old[name] != new[name]} == {"EDS a"}
    assert calls == [1]
    assert cache.snapshot is not before
    assert before[TypeUrl.EDS]["a"].version == old["EDS a"], "a snapshot that was handed out never changes"


def test_content_that_comes_back_has_its_old_version() -> None:
    cache = published()
    old = versions(cache)
    cache.set_runtime("layer", make.runtime("layer", share=0.2))
    assert versions(cache) != old
    cache.set_runtime("layer", make.runtime("layer", share=1))
    assert versions(cache) == old


def test_snapshots_cannot_be_written_to() -> None:
    snapshot = published().snapshot
    assert snapshot is not None
    with pytest.raises(TypeError):
        snapshot[TypeUrl.EDS]["a"] = snapshot[TypeUrl.EDS]["b"]  # type: ignore[index]
    with pytest.raises(dataclasses.FrozenInstanceError):
        snapshot[TypeUrl.EDS]["a"].version = "x"  # type: ignore[misc]


@pytest.mark.parametrize("change", ["assign", "set_runtime"])
def test_only_what_was_published_can_be_changed_alone(change: str) -> None:
    with pytest.raises(KeyError, match="'nobody' has not been published"):
        getattr(published(), change)("nobody", b"")


def without(type_url: TypeUrl, name: str) -> make.Published:
    world = make.world({"a": {8001: 5}, "b": {8002: 5}})
    del world[type_url][name]
    return world


def changed(type_url: TypeUrl, name: str, body: bytes) -> make.Published:
    world = make.world({"a": {8001: 5}, "b": {8002: 5}})
    world[type_url][name] = body
    return world


@pytest.mark.parametrize(
    ("world", "misfit"),
    [
        (without(TypeUrl.EDS, "a"), "CDS 'a' refers to EDS 'a', which is not there"),
        (without(TypeUrl.RDS, "routes"), "LDS 'edge' refers to RDS 'routes', which is not there"),
        (without(TypeUrl.CDS, "b"), "RDS 'routes' refers to CDS 'b', which is not there"),
        (changed(TypeUrl.LDS, "svc", make.api_listener("svc", "none")), "LDS 'svc' refers to RDS 'none'"),
        (
            changed(TypeUrl.CDS, "a", make.cluster("a", service_name="other")),
            "CDS 'a' refers to EDS 'other', which is not there",
        ),
        (changed(TypeUrl.CDS, "a", make.cluster("z")), "CDS 'a' calls itself 'z'"),
        (changed(TypeUrl.EDS, "a", b"\xff\xff"), "EDS 'a' cannot be read"),
        ({**make.world({"a": {8001: 5}}), "type.googleapis.com/foo.Bar": {}}, "foo.Bar' is not served"),
    ],
)
def test_what_does_not_fit_is_named_and_nothing_is_published(world: make.Published, misfit: str) -> None:
    cache = published()
    before = cache.snapshot
    with pytest.raises(InconsistentSnapshotError, match=misfit):
        cache.publish(world)
    assert cache.snapshot is before


def test_every_misfit_is_named_at_once() -> None:
    with pytest.raises(InconsistentSnapshotError, match=r"'a'.*; .*'b'"):
        SnapshotCache().publish({TypeUrl.CDS: {"a": make.cluster("a"), "b": make.cluster("b")}})
