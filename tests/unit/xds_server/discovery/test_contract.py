"""What every source of endpoints does, each over a real server or file of its own."""

import asyncio
import json
import logging
import random
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import dns.rcode
import pytest
from aiohttp import web

from tests.harness import until
from tests.unit.xds_server.discovery.dns_server import dns_server
from tests.unit.xds_server.discovery.kubernetes_api import KubernetesApi, endpoint, endpoint_slice, kubernetes_api, pod
from trimtab.policy.model import Policy
from trimtab.pool import EndpointSpec
from xds_server.discovery import Discovery
from xds_server.discovery.follower import Follower
from xds_server.discovery.source import Listed


class Hurried(random.Random):
    """Pauses are a hundredth of what they are meant to be."""

    def uniform(self, a: float, b: float) -> float:
        return a / 100


class Rig:
    """A source under the test's hand. `section` is what the policy says of it."""

    section: dict[str, Any]

    async def show(self, *ips: str) -> None:
        """Have endpoints at these addresses, port 8000."""
        raise NotImplementedError

    async def go_down(self) -> None:
        raise NotImplementedError

    async def talk_nonsense(self) -> None:
        raise NotImplementedError

    async def fix(self) -> None:
        """Undo `go_down` and `talk_nonsense`."""
        raise NotImplementedError


class FileRig(Rig):
    def __init__(self, path: Path) -> None:
        self._path = path
        self._content = "[]"
        self.section = {"file": {"path": str(path)}}

    async def show(self, *ips: str) -> None:
        self._content = json.dumps([{"address": f"{ip}:8000"} for ip in ips])
        await self.fix()

    async def go_down(self) -> None:
        self._path.unlink()

    async def talk_nonsense(self) -> None:
        self._path.write_text("- address: nonsense\n")

    async def fix(self) -> None:
        part = self._path.with_suffix(".part")
        part.write_text(self._content)
        part.replace(self._path)


@asynccontextmanager
async def file_rig(folder: Path) -> AsyncIterator[Rig]:
    yield FileRig(folder / "endpoints.yaml")


class HttpRig(Rig):
    def __init__(self) -> None:
        self.groups: list[dict[str, Any]] = []
        self._answer: web.Response | None = None

    async def show(self, *ips: str) -> None:
        self.groups = [{"targets": [f"{ip}:8000" for ip in ips], "labels": {"__meta_datacenter": "a"}}] if ips else []

    async def go_down(self) -> None:
        self._answer = web.Response(status=503)

    async def talk_nonsense(self) -> None:
        self._answer = web.Response(text='[{"targets": 5}]')

    async def fix(self) -> None:
        self._answer = None

    async def handle(self, request: web.Request) -> web.Response:
        return web.json_response(self.groups) if self._answer is None else _copy(self._answer)


def _copy(answer: web.Response) -> web.Response:
    return web.Response(status=answer.status, text=answer.text)


@asynccontextmanager
async def http_rig(folder: Path) -> AsyncIterator[Rig]:
    rig = HttpRig()
    app = web.Application()
    app.router.add_get("/engines", rig.handle)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    rig.section = {"http": {"url": f"http://127.0.0.1:{runner.addresses[0][1]}/engines"}}
    yield rig
    await runner.cleanup()


@asynccontextmanager
async def dns_rig(folder: Path) -> AsyncIterator[Rig]:
    async with dns_server() as server:

        class DnsRig(Rig):
            section = {"dns": {"name": "vllm.test", "port": 8000, "server": server.address}}  # noqa: RUF012

            async def show(self, *ips: str) -> None:
                server.records = {("vllm.test.", "A"): list(ips)}

            async def go_down(self) -> None:
                server.rcode = dns.rcode.SERVFAIL

            async def talk_nonsense(self) -> None:
                server.rcode = dns.rcode.NXDOMAIN

            async def fix(self) -> None:
                server.rcode = None

        yield DnsRig()


class KubernetesRig(Rig):
    def __init__(self, api: KubernetesApi, **found_by: str) -> None:
        self.api = api
        self.section = {"kubernetes": {**found_by, "namespace": "llm", "api": api.url}}

    async def go_down(self) -> None:
        self.api.down = True
        self.api.hang_up()

    async def talk_nonsense(self) -> None:
        self.api.nonsense = True
        self.api.hang_up()

    async def fix(self) -> None:
        self.api.down = self.api.nonsense = False


@asynccontextmanager
async def service_rig(folder: Path) -> AsyncIterator[Rig]:
    async with kubernetes_api() as api:

        class ServiceRig(KubernetesRig):
            async def show(self, *ips: str) -> None:
                pieces = [endpoint_slice("vllm-a", *(endpoint(f"pod-{ip}", ip) for ip in ips))]
                await api.replace("endpointslices", pieces)

        yield ServiceRig(api, service="vllm")


@asynccontextmanager
async def pods_rig(folder: Path) -> AsyncIterator[Rig]:
    async with kubernetes_api() as api:

        class PodsRig(KubernetesRig):
            async def show(self, *ips: str) -> None:
                await api.replace("pods", [pod(f"pod-{ip}", ip) for ip in ips])

        yield PodsRig(api, selector="app=vllm")


RIGS: dict[str, Callable[[Path], AbstractAsyncContextManager[Rig]]] = {
    "file": file_rig,
    "http": http_rig,
    "dns": dns_rig,
    "service": service_rig,
    "pods": pods_rig,
}
CONFIRM_EMPTY_S = 0.3


@pytest.fixture(params=RIGS)
async def rig(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Rig]:
    async with RIGS[request.param](tmp_path) as rig:
        yield rig


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "xds_server")
    monkeypatch.setattr("xds_server.discovery.from_file._PERIOD_S", 0.01)
    monkeypatch.setattr("xds_server.discovery.from_dns._LEAST_TTL_S", 0.01)
    monkeypatch.setattr("xds_server.discovery.from_dns._EMPTY_TTL_S", 0.01)
    monkeypatch.setattr("xds_server.discovery.from_kubernetes._PAUSE_S", 0.01)


class Pool:
    """A pool that is discovered, and what was told of it."""

    def __init__(self, section: dict[str, Any], known: dict[str, object] | None = None) -> None:
        self.told: list[tuple[EndpointSpec, ...]] = []
        self.discovery = Discovery(self._take, known=known, rng=Hurried())
        self.section = section
        self.use(discovery=section)

    def use(self, **fields: Any) -> None:
        pools = [{"name": "p", **fields}]
        if "discovery" in fields:
            fields["discovery"] = {"confirm_empty_s": CONFIRM_EMPTY_S, **fields["discovery"]}
            pools = [{"name": "p", **fields}]
        self.discovery.update(Policy.model_validate({"version": 1, "pools": pools}))

    def _take(self, pool: str, endpoints: Sequence[EndpointSpec]) -> None:
        self.told.append(tuple(endpoints))

    @property
    def addresses(self) -> list[str] | None:
        return [endpoint.address for endpoint in self.told[-1]] if self.told else None

    @property
    def why(self) -> str:
        return self.discovery.statuses()["p"].why

    async def aclose(self) -> None:
        await self.discovery.close()


A, B, C = "10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3:8000"


async def test_what_it_lists_and_what_changes(rig: Rig) -> None:
    await rig.show("10.0.0.1", "10.0.0.2")
    async with aclosing(Pool(rig.section)) as pool:
        await until(lambda: pool.addresses == [A, B], 2)
        await rig.show("10.0.0.2", "10.0.0.3")
        await until(lambda: pool.addresses == [B, C], 1)
        status = pool.discovery.statuses()["p"]
        assert (status.listed, status.stale_since, status.why, status.errors) == (2, None, "", 0)
        assert status.kind in rig.section
        assert len({endpoint.name for endpoint in pool.told[-1]}) == 2
        assert [] not in [list(told) for told in pool.told]


async def test_one_that_says_the_same_tells_nothing(rig: Rig) -> None:
    await rig.show("10.0.0.1")
    async with aclosing(Pool(rig.section)) as pool:
        await until(lambda: pool.addresses == [A])
        await rig.show("10.0.0.1")
        await asyncio.sleep(0.15)
        assert len(pool.told) == 1


@pytest.mark.parametrize("harm", [Rig.go_down, Rig.talk_nonsense], ids=["down", "nonsense"])
async def test_the_last_good_answer_is_kept_and_that_is_said(
    rig: Rig, harm: Callable[[Rig], Any], caplog: pytest.LogCaptureFixture
) -> None:
    await rig.show("10.0.0.1", "10.0.0.2")
    async with aclosing(Pool(rig.section)) as pool:
        await until(lambda: pool.addresses == [A, B])
        await getattr(rig, harm.__name__)()
        await until(lambda: pool.discovery.statuses()["p"].errors > 3)
        status = pool.discovery.statuses()["p"]
        assert status.stale_since is not None and status.answered_at is not None
        assert "the last 2 endpoints are kept" in status.why
        await rig.fix()
        await until(lambda: not pool.why)
        assert len(pool.told) == 1
        await rig.show("10.0.0.3")
        await until(lambda: pool.addresses == [C])
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2, said
    assert said[1].endswith("it is good again: 2 endpoints")


async def test_no_endpoints_at_all_are_believed_when_that_lasts(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    await rig.show("10.0.0.1", "10.0.0.2")
    loop = asyncio.get_running_loop()
    async with aclosing(Pool(rig.section)) as pool:
        await until(lambda: pool.addresses == [A, B])
        emptied_at = loop.time()
        await rig.show()
        await until(lambda: "lists no endpoints" in pool.why)
        assert pool.addresses == [A, B]
        await until(lambda: pool.addresses == [])
        assert loop.time() - emptied_at >= CONFIRM_EMPTY_S
        assert not pool.why
        await rig.show("10.0.0.1")
        await until(lambda: pool.addresses == [A])
    kept, taken_out = (record.getMessage() for record in caplog.records)
    assert kept.endswith("it lists no endpoints: the last 2 are kept unless it says so again")
    assert taken_out.endswith("it still lists no endpoints: the last 2 are taken out")


async def test_no_endpoints_for_a_moment_change_nothing(rig: Rig) -> None:
    await rig.show("10.0.0.1", "10.0.0.2")
    async with aclosing(Pool(rig.section)) as pool:
        await until(lambda: pool.addresses == [A, B])
        await rig.show()
        await until(lambda: "lists no endpoints" in pool.why)
        await rig.show("10.0.0.1", "10.0.0.2")
        await until(lambda: not pool.why)
        await asyncio.sleep(CONFIRM_EMPTY_S)
        assert len(pool.told) == 1


async def test_one_that_is_down_at_the_start(rig: Rig) -> None:
    await rig.show("10.0.0.1")
    await rig.go_down()
    async with aclosing(Pool(rig.section)) as pool:
        await until(lambda: pool.addresses == [])
        assert pool.why
        await rig.fix()
        await until(lambda: pool.addresses == [A])


async def test_what_was_found_before_a_restart_counts_while_it_is_down(rig: Rig) -> None:
    await rig.show("10.0.0.1", "10.0.0.2")
    async with aclosing(Pool(rig.section)) as pool:
        await until(lambda: pool.addresses == [A, B])
        remembered = json.loads(json.dumps({"p": pool.discovery.dump("p")}))
        before = pool.told[-1]
    await rig.go_down()
    async with aclosing(Pool(rig.section, remembered)) as pool:
        await until(lambda: pool.told == [before])
        assert "the last 2 endpoints are kept" in pool.why
        await rig.show("10.0.0.3")
        await rig.fix()
        await until(lambda: pool.addresses == [C])


async def test_a_pool_that_changes_its_source_keeps_its_endpoints_meanwhile(rig: Rig) -> None:
    await rig.show("10.0.0.1")
    await rig.go_down()
    async with aclosing(Pool({"file": {"path": "/nowhere"}})) as pool:
        pool.use(endpoints=[{"address": B}])
        assert pool.addresses == [B]
        pool.use(discovery=rig.section)
        await until(lambda: pool.why)
        assert pool.addresses == [B]
        await rig.fix()
        await until(lambda: pool.addresses == [A])
        pool.use(endpoints=[{"address": C}])
        assert pool.addresses == [C]
        assert not pool.discovery.statuses()


async def test_nothing_is_left_behind(rig: Rig) -> None:
    await rig.show("10.0.0.1")
    before = asyncio.all_tasks()
    pool = Pool(rig.section)
    await until(lambda: pool.addresses == [A])
    await pool.aclose()
    ours = {task for task in asyncio.all_tasks() - before if "discovery" in task.get_name()}
    assert not ours


async def test_a_library_that_swallows_a_cancellation_does_not_keep_us_from_ending() -> None:
    """asyncio.wait_for did, inside of dnspython: the end of the process then never came."""

    class Deaf:
        longest_retry_s = 30.0

        async def answers(self) -> AsyncGenerator[tuple[Listed, ...]]:
            while True:
                try:
                    await asyncio.sleep(0.01)
                except asyncio.CancelledError:
                    pass
                yield ()

    follower = Follower("p", "dns", Deaf(), lambda: None, confirm_empty_s=30, rng=Hurried())
    await until(lambda: follower.endpoints == ())
    follower.task.cancel()
    await asyncio.wait([follower.task], timeout=5)
    assert follower.task.cancelled()


async def test_a_fault_of_ours_is_told_once_and_asking_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    asked = 0

    class Faulty:
        longest_retry_s = 0.01

        async def answers(self) -> AsyncGenerator[tuple[Listed, ...]]:
            nonlocal asked
            asked += 1
            if asked <= 3:
                raise ZeroDivisionError("odd")
            yield ()
            await asyncio.Event().wait()

    follower = Follower("p", "http", Faulty(), lambda: None, confirm_empty_s=0.1, rng=Hurried())
    await until(lambda: asked > 3 and not follower.status.why)
    follower.task.cancel()
    assert follower.status.errors == 3
    assert caplog.text.count("Traceback") == 1
    assert "discovery by http: a fault of Trimtab: ZeroDivisionError: odd" in caplog.text
