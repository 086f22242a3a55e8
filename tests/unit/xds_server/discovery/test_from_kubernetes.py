"""Discovery by the Kubernetes API, against an API server of our own."""

import asyncio
import logging
import random
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.harness import until
from tests.unit.xds_server.discovery.kubernetes_api import KubernetesApi, endpoint, endpoint_slice, kubernetes_api, pod
from tests.unit.xds_server.discovery.test_contract import Pool
from trimtab.policy.model import Pool as PoolPolicy
from trimtab.pool import EndpointSpec, PoolController
from xds_server.discovery import from_kubernetes
from xds_server.discovery.kubernetes_objects import Pod, Slice, listed_pods, listed_slices
from xds_server.discovery.source import SourceError


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "xds_server")
    monkeypatch.setattr("xds_server.discovery.from_kubernetes._PAUSE_S", 0.01)


@pytest.fixture
async def api() -> AsyncIterator[KubernetesApi]:
    async with kubernetes_api() as api:
        yield api


def by(api: KubernetesApi, **fields: Any) -> dict[str, Any]:
    what = {} if "selector" in fields else {"service": "vllm"}
    return {"kubernetes": {"namespace": "llm", "api": api.url, **what, **fields}}


async def found(api: KubernetesApi, **fields: Any) -> tuple[EndpointSpec, ...]:
    """What a pool is told first."""
    async with aclosing(Pool(by(api, **fields))) as pool:
        await until(lambda: pool.told)
        assert pool.told[0] or not pool.why, pool.why
        return pool.told[0]


async def test_what_a_pod_says(api: KubernetesApi) -> None:
    await api.put("pods", pod("a", "10.0.0.1", uid="u1", gpu="h100", capacity="2.5"))
    await api.put("pods", pod("b", "fd00::1", capacity="lots"))
    one, two = await found(api, selector="app=vllm")
    labels = {"pod": "a", "app": "vllm", "gpu": "h100", "capacity": "2.5", "node": "gpu-node-1"}
    assert one == EndpointSpec("10.0.0.1:8000", "a", 2.5, labels, uid="u1")
    assert (two.address, two.capacity) == ("[fd00::1]:8000", None)
    assert api.requests[0] == ("list", "pods", "app=vllm")


async def test_what_a_slice_says(api: KubernetesApi) -> None:
    await api.put("endpointslices", endpoint_slice("s", endpoint("a", "10.0.0.1", uid="u1")))
    (one,) = await found(api)
    assert one == EndpointSpec("10.0.0.1:8000", "a", None, {"pod": "a", "node": "gpu-node-1", "zone": "z1"}, uid="u1")
    assert api.requests[0] == ("list", "endpointslices", "kubernetes.io/service-name=vllm")


async def test_which_take_no_new_work(api: KubernetesApi) -> None:
    for one in (
        pod("going", "10.0.0.1", leaving=True),
        pod("loading", "10.0.0.2", ready=False),
        pod("serving", "10.0.0.3"),
        pod("waiting", None, ready=False),
    ):
        await api.put("pods", one)
    ended = pod("ended", "10.0.0.4")
    ended["status"]["phase"] = "Failed"
    await api.put("pods", ended)
    assert {e.name: e.out for e in await found(api, selector="app=vllm")} == {
        "going": "terminating",
        "loading": "not ready",
        "serving": "",
    }

    unknown = endpoint("unknown", "10.0.0.3", ready=None)
    pieces = [endpoint("going", "10.0.0.1", leaving=True, ready=False), endpoint("loading", "10.0.0.2", ready=False)]
    await api.put("endpointslices", endpoint_slice("s", *pieces, unknown))
    assert {e.name: e.out for e in await found(api)} == {"going": "terminating", "loading": "not ready", "unknown": ""}


async def test_an_endpoint_in_several_slices_is_one(api: KubernetesApi) -> None:
    await api.put("endpointslices", endpoint_slice("v6", endpoint("a", "fd00::1"), family="IPv6"))
    await api.put("endpointslices", endpoint_slice("v4-old", endpoint("a", "10.0.0.1", ready=False)))
    await api.put("endpointslices", endpoint_slice("v4-new", endpoint("a", "10.0.0.1"), endpoint("b", "10.0.0.2")))
    assert [(e.address, e.out) for e in await found(api)] == [("10.0.0.1:8000", ""), ("10.0.0.2:8000", "")]


@pytest.mark.parametrize(
    ("fields", "port"),
    [({}, None), ({"port_name": "metrics"}, 9000), ({"port_name": "grpc"}, None), ({"port": 7000}, 7000)],
)
async def test_which_port(api: KubernetesApi, fields: dict[str, Any], port: int | None) -> None:
    ports = [{"name": "http", "port": 8000}, {"name": "metrics", "port": 9000}]
    await api.put("endpointslices", endpoint_slice("s", endpoint("a", "10.0.0.1"), ports=ports))
    async with aclosing(Pool(by(api, **fields))) as pool:
        await until(lambda: pool.told)
        assert pool.addresses == ([f"10.0.0.1:{port}"] if port else [])
        fix = "none is named grpc" if "port_name" in fields else "give port or port_name"
        assert pool.why == ("" if port else f"the service has the ports 8000 (http), 9000 (metrics): {fix}")


async def test_added_deleted_and_added_within_ten_milliseconds(api: KubernetesApi) -> None:
    """Another pod of the same name at the same address is another endpoint, however fast it came."""
    await api.put("pods", pod("a", "10.0.0.1", uid="first"))
    await api.put("pods", pod("b", "10.0.0.2"))
    async with aclosing(Pool(by(api, selector="app=vllm"))) as pool:
        await until(lambda: pool.addresses and len(pool.addresses) == 2)
        await api.delete("pods", "a")
        await api.put("pods", pod("a", "10.0.0.1", uid="second"))
        await api.delete("pods", "a")
        await api.put("pods", pod("a", "10.0.0.1", uid="third"))
        await until(lambda: "third" in {e.uid for e in pool.told[-1]}, 1)
        assert {e.uid for e in pool.told[-1]} == {"third", "uid-of-b"}


def test_a_pod_at_the_address_of_another_inherits_nothing() -> None:
    policy = PoolPolicy.model_validate(
        {"name": "p", "scoring": {"strategy": "health"}, "endpoints": [{"address": "10.0.0.1:80"}]}
    )
    controller = PoolController(policy, random.Random(1))
    one, other = (EndpointSpec("10.0.0.1:80", "a", uid=uid) for uid in ("first", "second"))
    neighbour = EndpointSpec("10.0.0.2:80", "b", uid="b")

    controller.set_endpoints(1000.0, [one, neighbour])
    assert [str(e.id) for e in controller.step(1001.0).endpoints] == ["10.0.0.1:80", "10.0.0.2:80"]
    controller.set_endpoints(1002.0, [other, neighbour])
    first, second = controller.step(1003.0).endpoints
    assert (str(first.id), str(second.id)) == ("10.0.0.1:80#1", "10.0.0.2:80")
    assert first.effective_score < second.effective_score, "it begins anew, so it ramps"

    # Nor over a restart of ours.
    memory = controller.dump(1004.0)
    again = PoolController(policy, random.Random(1), memory)
    again.set_endpoints(1005.0, [one, neighbour])
    first, second = again.step(1005.0).endpoints
    assert first.effective_score < second.effective_score


def test_one_that_is_terminating_takes_no_new_work_and_is_known() -> None:
    policy = PoolPolicy.model_validate(
        {"name": "p", "scoring": {"strategy": "health"}, "endpoints": [{"address": "10.0.0.1:80"}]}
    )
    controller = PoolController(policy, random.Random(1))
    staying = EndpointSpec("10.0.0.2:80", "b")

    def decided(now: float, out: str, *others: EndpointSpec) -> Any:
        controller.set_endpoints(now, [EndpointSpec("10.0.0.1:80", "a", out=out), *others])
        return controller.step(now).endpoints[0]

    assert decided(1000.0, "", staying).takes_work
    going = decided(1001.0, "terminating", staying)
    assert (going.takes_work, going.state, going.reason) == (False, "draining", "draining: terminating")
    assert decided(1002.0, "terminating").takes_work, "alone, it is better than nothing"
    assert not decided(1003.0, "terminating", staying).takes_work
    assert decided(1004.0, "", staying).takes_work


async def test_what_is_gone_is_listed_again(api: KubernetesApi, caplog: pytest.LogCaptureFixture) -> None:
    """410: the version at which a watch would go on was compacted."""
    await api.put("pods", pod("a", "10.0.0.1"))
    async with aclosing(Pool(by(api, selector="app=vllm"))) as pool:
        await until(lambda: pool.addresses == ["10.0.0.1:8000"] and api.watches)
        await api.put("pods", pod("b", "10.0.0.2"))
        await until(lambda: len(pool.told[-1]) == 2)
        api.compact()
        api.hang_up()
        await until(lambda: [verb for verb, _, _ in api.requests].count("list") == 2)
        await until(lambda: api.watches)
        await api.put("pods", pod("c", "10.0.0.3"))
        await until(lambda: len(pool.told[-1]) == 3)
        assert not pool.why and pool.discovery.statuses()["p"].errors == 0
    assert not caplog.records, "nothing that an operator must know"


async def test_gone_within_a_watch(api: KubernetesApi) -> None:
    await api.put("pods", pod("a", "10.0.0.1"))
    async with aclosing(Pool(by(api, selector="app=vllm"))) as pool:
        await until(lambda: api.watches)
        await api.send({"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired"}})
        await until(lambda: [verb for verb, _, _ in api.requests].count("list") == 2)
        assert not pool.why


async def test_watches_expire_and_go_on(api: KubernetesApi) -> None:
    api.watch_s = 0.1
    await api.put("pods", pod("a", "10.0.0.1"))
    async with aclosing(Pool(by(api, selector="app=vllm"))) as pool:
        await until(lambda: [verb for verb, _, _ in api.requests].count("watch") > 2)
        await api.put("pods", pod("b", "10.0.0.2"))
        await until(lambda: len(pool.told[-1]) == 2)
        assert [verb for verb, _, _ in api.requests].count("list") == 1
        assert not pool.why


async def test_a_connection_that_died_without_a_word_is_noticed(
    api: KubernetesApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(from_kubernetes, "_WATCH_GRACE_S", -59.9)  # the server would end it after a minute
    await api.put("pods", pod("a", "10.0.0.1"))
    async with aclosing(Pool(by(api, selector="app=vllm"))) as pool:
        await until(lambda: [verb for verb, _, _ in api.requests].count("watch") > 2)
        assert pool.addresses == ["10.0.0.1:8000"] and not pool.why


async def test_a_watch_goes_on_from_the_bookmark(api: KubernetesApi) -> None:
    await api.put("pods", pod("a", "10.0.0.1"))
    async with aclosing(Pool(by(api, selector="app=vllm"))) as pool:
        await until(lambda: api.watches)
        answered_at = pool.discovery.statuses()["p"].answered_at
        await api.bookmark()
        await until(lambda: pool.discovery.statuses()["p"].answered_at != answered_at)
        api._compacted = api.version
        api.hang_up()
        await until(lambda: [verb for verb, _, _ in api.requests].count("watch") == 2)
        await until(lambda: api.watches)
        assert [verb for verb, _, _ in api.requests].count("list") == 1


@pytest.mark.parametrize("verb", ["list", "watch"])
@pytest.mark.parametrize(
    ("fields", "resource", "group"),
    [({}, "endpointslices", "discovery.k8s.io"), ({"selector": "app=vllm"}, "pods", "")],
)
async def test_what_is_denied_is_said_once_with_the_role(
    api: KubernetesApi, verb: str, fields: dict[str, Any], resource: str, group: str, caplog: pytest.LogCaptureFixture
) -> None:
    api.denied.add((verb, resource))
    await api.put(resource, pod("a", "10.0.0.1") if fields else endpoint_slice("s", endpoint("a", "10.0.0.1")))
    async with aclosing(Pool(by(api, **fields))) as pool:
        await until(lambda: pool.discovery.statuses()["p"].errors > 2)
        assert [record.getMessage() for record in caplog.records] == [
            f"pool p: discovery by kubernetes: HTTP 403: we may not {verb} {resource} in namespace llm: "
            f'give the service account a Role with verbs [list, watch], resources [{resource}], apiGroups ["{group}"]'
        ]
        api.denied.clear()
        await until(lambda: pool.addresses == ["10.0.0.1:8000"])


async def test_the_token_file_is_read_again(api: KubernetesApi, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("one\n")
    api.token = "one"
    await api.put("pods", pod("a", "10.0.0.1"))
    async with aclosing(Pool(by(api, selector="app=vllm", token_file=str(token)))) as pool:
        await until(lambda: pool.addresses == ["10.0.0.1:8000"])
        api.token = "two"
        api.hang_up()
        await until(lambda: pool.why)
        assert f"HTTP 401 from {api.url}: the token in {token} is not accepted" in pool.why
        token.write_text("two\n")
        await until(lambda: not pool.why)


@pytest.mark.parametrize(
    ("event", "why"),
    [
        ({"type": "ERROR", "object": {"code": 500, "message": "etcd is on fire"}}, "etcd is on fire"),
        ({"type": "ADDED", "object": {"metadata": {"name": 5}}}, "not what Kubernetes would say"),
        ({"type": "ADDED", "object": {}}, "not what Kubernetes would say"),
        ({"hello": "world"}, "none of Kubernetes'"),
        ("x" * 100, "none of Kubernetes'"),
    ],
)
async def test_odd_events_harm_nothing(
    api: KubernetesApi, event: Any, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    await api.put("pods", pod("a", "10.0.0.1"))
    async with aclosing(Pool(by(api, selector="app=vllm"))) as pool:
        await until(lambda: api.watches)
        await api.send(event)
        await until(lambda: why in caplog.text)
        await until(lambda: not pool.why)
        assert [list(told) for told in pool.told] == [list(pool.told[0])] and len(pool.told[0]) == 1


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("null", "does not answer with a list"),
        ("[]", "does not answer with a list"),
        ('{"kind": "Status"}', "does not answer with a list"),
        ('{"metadata": {"resourceVersion": "5"}, "items": 5}', "does not answer with a list"),
        ('{"metadata": {"resourceVersion": 5}, "items": []}', "does not answer with a list"),
        ('{"metadata": {"resourceVersion": "5"}, "items": [5]}', "not what Kubernetes would say"),
        ('{"metadata": {"resourceVersion": "5"}, "items": [{"metadata": {}}]}', "not what Kubernetes would say"),
        ("{" * 50, "the answer is not JSON"),
        ("[" * 50_000, "the answer is not JSON"),
    ],
)
async def test_odd_lists_harm_nothing(api: KubernetesApi, body: str, why: str) -> None:
    await api.put("pods", pod("a", "10.0.0.1"))
    async with aclosing(Pool(by(api, selector="app=vllm"))) as pool:
        await until(lambda: pool.addresses == ["10.0.0.1:8000"])
        api.body = body
        api.compact()
        api.hang_up()
        await until(lambda: why in pool.why)
        assert pool.why.isprintable() and len(pool.why) < 300
        api.body = None
        await until(lambda: not pool.why)
        assert len(pool.told) == 1


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inside: st.lists(inside, max_size=3) | st.dictionaries(st.text(max_size=5), inside, max_size=3),
    max_leaves=8,
)


@given(data=st.data(), port=st.none() | st.just(80))
def test_whatever_is_in_the_objects_is_an_answer_or_an_error(data: st.DataObject, port: int | None) -> None:
    """Any part of real objects may be anything."""
    pods = [pod("a", "10.0.0.1", capacity="1"), pod("b", "10.0.0.2", leaving=True)]
    slices = [endpoint_slice("s", endpoint("a", "10.0.0.1"), endpoint("b", "fd00::1"))]
    for manifest in (*pods, *slices):
        _spoil(manifest, data)
    try:
        listed_pods([Pod.model_validate(manifest) for manifest in pods], port, None, "capacity")
        listed_slices([Slice.model_validate(manifest) for manifest in slices], port, None, "capacity")
    except (ValidationError, SourceError):
        pass


def _spoil(value: Any, data: st.DataObject) -> None:
    """Put something else in one place, or leave something out."""
    while isinstance(value, dict | list) and value:
        key = data.draw(st.sampled_from(sorted(value) if isinstance(value, dict) else range(len(value))))
        match data.draw(st.sampled_from(["deeper", "deeper", "change", "remove"])):
            case "deeper":
                value = value[key]
                continue
            case "change":
                value[key] = data.draw(_JSON)
            case "remove":
                del value[key]
        return


async def test_in_the_cluster(api: KubernetesApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a pod finds in its environment and beside it; the API is on TLS there, which this one is not."""
    monkeypatch.setattr(from_kubernetes, "SERVICE_ACCOUNT", tmp_path)
    async with aclosing(Pool({"kubernetes": {"service": "vllm"}})) as pool:
        await until(lambda: pool.why)
        assert pool.why == "this is not inside a Kubernetes cluster: give api, namespace and token_file"
    host, port = api.url.removeprefix("http://").split(":")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", port)
    monkeypatch.setattr(from_kubernetes, "_cluster_api", lambda: api.url)
    (tmp_path / "ca.crt").write_bytes((Path(__file__).parents[1] / "data" / "tls" / "ca.pem").read_bytes())
    (tmp_path / "namespace").write_text("llm")
    (tmp_path / "token").write_text("sesame")
    api.token = "sesame"
    await api.put("endpointslices", endpoint_slice("s", endpoint("a", "10.0.0.1")))
    async with aclosing(Pool({"kubernetes": {"service": "vllm"}})) as pool:
        await until(lambda: pool.addresses == ["10.0.0.1:8000"])


async def test_a_thousand_pods_that_come_and_go(api: KubernetesApi) -> None:
    await api.replace("pods", [pod(f"p{n}", f"10.0.{n // 250}.{n % 250}") for n in range(1000)])
    async with aclosing(Pool(by(api, selector="app=vllm"))) as pool:
        await until(lambda: pool.addresses and len(pool.addresses) == 1000)
        await until(lambda: api.watches)
        for n in range(0, 1000, 10):
            await api.delete("pods", f"p{n}")
            if n % 100 == 0:
                await asyncio.sleep(0)
        await until(lambda: len(pool.told[-1]) == 900, 3)
