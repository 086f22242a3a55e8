"""The control plane alone, without an Envoy: what it keeps, and what it says is in force."""

import json
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.harness import free_port, until
from trimtab.health.state import State
from trimtab.observation.kinds import AttemptEnded, AttemptStarted, FirstToken, Outcome, Rejected, Verdict
from trimtab.policy import PolicyError, PolicyFile
from xds_server.config import runtime_resource
from xds_server.config.endpoints import EndpointWeight, build_assignment
from xds_server.control_plane import ControlPlane


def policy(**fields: Any) -> dict[str, Any]:
    services = {name: f"127.0.0.1:{free_port()}" for name in ("xds", "ext_proc", "admin", "envoy_admin")}
    pool = {
        "name": "chat",
        "endpoints": [{"address": f"127.0.0.1:{port}"} for port in (9, 10)],
        "signals": {"scrape": False},
    }
    return {"version": 1, "services": services, "pools": [pool], **fields}


@asynccontextmanager
async def running(file: Path, content: dict[str, Any]) -> AsyncIterator[ControlPlane]:
    file.write_text(json.dumps(content))
    policy_file = PolicyFile(file)
    async with ControlPlane(policy_file, policy_file.load()) as plane:
        yield plane


async def test_a_relative_state_file_begins_at_the_policys_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    async with running(Path("../etc/policy.yaml"), policy(state_file="kept/state.json")):
        pass
    assert (tmp_path / "etc" / "kept" / "state.json").is_file()
    assert list((tmp_path / "elsewhere").iterdir()) == []


async def test_a_state_file_that_cannot_be_written_is_a_mistake_of_the_policy(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    file = tmp_path / "policy.yaml"
    for name in ("file/state.json", "."):
        file.write_text(f"version: 1\nstate_file: {name}\npools:\n- {{name: a, endpoints: [{{address: 'x:1'}}]}}\n")
        policy_file = PolicyFile(file)
        with pytest.raises(PolicyError, match=r"policy\.yaml:2:13: state_file: .* cannot be written .*null"):
            ControlPlane(policy_file, policy_file.load())


async def test_the_state_file_of_auto_may_fail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path / "file"))
    async with running(tmp_path / "policy.yaml", policy()):
        assert "cannot be written" in caplog.text


async def test_a_hold_is_kept_at_once(tmp_path: Path) -> None:
    def kept() -> Any:
        if not (tmp_path / "state.json").exists():
            return None
        state = json.loads((tmp_path / "state.json").read_text())
        return state["pools"]["chat"]["endpoints"]["127.0.0.1:9"]["takes_work"]

    async with running(tmp_path / "policy.yaml", policy(state_file="state.json")) as plane:
        await until(lambda: plane.decisions)
        now = time.time()
        plane.observe([Rejected(now, "chat", "127.0.0.1:9", "r-1", 429, Verdict.SATURATED, 30.0)])
        await until(lambda: kept() is False, 3)


async def test_a_pool_that_is_out_is_served_by_its_fallbacks_and_comes_back_over_the_slow_start(tmp_path: Path) -> None:
    content = policy(state_file=None)
    other = {"name": "spare", "models": ["spare"], "endpoints": [{"address": "127.0.0.1:11"}]}
    cache = f"127.0.0.1:{free_port()}"  # where nobody listens
    chat = content["pools"][0] | {
        "weighting": {"cool_down_min_s": 0.5, "cool_down_max_s": 0.5, "slow_start_points_per_s": 100},
        "fallbacks": [{"pool": "spare"}, {"address": cache}, {"answer": {"message": "Come again."}}],
    }
    content["pools"] = [other, chat]
    async with running(tmp_path / "policy.yaml", content) as plane, aiohttp.ClientSession() as session:

        async def split() -> dict[str, float] | None:
            async with session.get(f"http://{content['services']['admin']}/endpoints") as answer:
                pools = (await answer.json())["pools"]
            return pools["chat"]["split"] if "chat" in pools else {}

        async def reach(wanted: Callable[[tuple[float, ...]], bool]) -> tuple[float, ...]:
            seen: tuple[float, ...] = ()

            async def is_reached() -> bool:
                nonlocal seen
                seen = tuple((await split() or {}).values())
                return wanted(seen)

            await until(is_reached)
            return seen

        async def is_over() -> bool:
            return await split() is None

        def refuse(pool: str, *addresses: str) -> None:
            now = time.time()
            plane.observe([Rejected(now, pool, address, "r", 429, Verdict.SATURATED, None) for address in addresses])

        await reach(lambda seen: seen == (1, 0, 0, 0))
        refuse("chat", "127.0.0.1:9", "127.0.0.1:10")
        await reach(lambda seen: seen == (0, 1, 0, 0))
        seen = await reach(lambda seen: seen != () and seen[0] > 0)
        assert seen[0] < 1 and seen[3] == 0, "it comes back slowly"
        await reach(lambda seen: seen == (1, 0, 0, 0))
        refuse("spare", "127.0.0.1:11")
        refuse("chat", "127.0.0.1:9", "127.0.0.1:10")
        await reach(lambda seen: seen == (0, 0, 0, 1))
        (tmp_path / "policy.yaml").write_text(json.dumps(content | {"pools": [other, chat | {"fallbacks": []}]}))
        await until(is_over)


async def test_retries_of_a_gated_pool_are_limited_while_one_endpoint_takes_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[Mapping[str, object]] = []

    def note(watch_percent: float, entries: Mapping[str, object]) -> bytes:
        sent.append(entries)
        return runtime_resource(watch_percent, entries)

    monkeypatch.setattr("xds_server.control_plane.runtime_resource", note)
    content = policy(state_file=None)
    chat = content["pools"][0] | {"weighting": {"cool_down_min_s": 0.5, "cool_down_max_s": 0.5}}
    content["pools"] = [chat | {"gate": {"enabled": True}}]
    limited = {"circuit_breakers.chat.default.max_retries": 1}
    async with running(tmp_path / "policy.yaml", content) as plane:
        await until(lambda: sent and sent[-1] == {})
        plane.observe([Rejected(time.time(), "chat", "127.0.0.1:9", "r", 429, Verdict.SATURATED, None)])
        await until(lambda: sent[-1] == limited)
        await until(lambda: sent[-1] == {})


async def test_envoy_is_to_pass_over_nobody_while_all_are_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[dict[int, bool]] = []

    def note(cluster: str, endpoints: Sequence[EndpointWeight]) -> bytes:
        sent.append({endpoint.port: endpoint.draining for endpoint in endpoints})
        return build_assignment(cluster, endpoints)

    monkeypatch.setattr("xds_server.config.assignments.build_assignment", note)
    content = policy(state_file=None)
    content["pools"][0]["weighting"] = {"breaker_failures": 1}
    async with running(tmp_path / "policy.yaml", content) as plane:

        def fail(port: int) -> None:
            now, address = time.time(), f"127.0.0.1:{port}"
            plane.observe([AttemptEnded(now, "chat", address, "r", now, 0, Outcome.UNREACHABLE, False, None)])

        await until(lambda: sent and sent[-1] == {9: False, 10: False})
        fail(9)
        await until(lambda: sent[-1] == {9: True, 10: False})
        fail(10)
        await until(lambda: sent[-1] == {9: True, 10: True})
        assert {one.state for one in plane.decisions["chat"].endpoints} == {State.PANIC}
        now, of = time.time(), ("chat", "127.0.0.1:9", "s")
        plane.observe([AttemptStarted(now, *of, 100, True), FirstToken(now, *of)])
        await until(lambda: sent[-1] == {9: False, 10: False})


async def test_the_policy_page_shows_what_is_in_force(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    first = policy(state_file=None)
    async with running(tmp_path / "policy.yaml", first) as plane, aiohttp.ClientSession() as session:
        later = policy(state_file="later.json", listen={"port": free_port()}, ext_proc={"workers": 2})
        (tmp_path / "policy.yaml").write_text(json.dumps(later))
        await until(lambda: plane.policy.listen.port == later["listen"]["port"])
        async with session.get(f"http://{first['services']['admin']}/policy") as answer:
            shown = await answer.json()
    assert shown["listen"]["port"] == later["listen"]["port"]
    services = {**first["services"], "standby": None}
    assert (shown["services"], shown["state_file"], shown["ext_proc"]["workers"]) == (services, None, 1)
    for key in ("services", "state_file", "ext_proc.workers"):
        assert f"a change of {key} comes into force at the next start" in caplog.text
    assert "a new policy was taken up" in caplog.text


async def test_a_clock_that_is_set_back_freezes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(tmp_path / "policy.yaml", policy(state_file=None)) as plane, aiohttp.ClientSession() as session:
        real = time.time

        async def states() -> dict[str, str]:
            async with session.get(f"http://{plane.policy.services.admin}/endpoints") as answer:
                pools = (await answer.json())["pools"]
            return {row["address"]: row["state"] for row in pools["chat"]["endpoints"]} if pools else {}

        async def refused(address: str) -> None:
            async def is_cooling() -> bool:
                return (await states()).get(address) == "cooling"

            plane.observe([Rejected(time.time(), "chat", address, "r", 429, Verdict.SATURATED, None)])
            await until(is_cooling)

        await until(states)
        await refused("127.0.0.1:9")
        monkeypatch.setattr(time, "time", lambda: real() - 3600)
        await refused("127.0.0.1:10")
        assert (await states())["127.0.0.1:9"] != "cooling"
    assert "the clock was set back by 3600 s" in caplog.text
