"""`trimtab endpoints`: the decisions of a running control plane, as a table and as JSON."""

import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.harness import free_port, until
from trimtab.cli.endpoints import endpoints
from trimtab.observation.kinds import Rejected, Verdict
from trimtab.policy import PolicyFile
from trimtab.process.errors import UserError
from xds_server.control_plane import ControlPlane


def write_policy(path: Path) -> Path:
    services = {name: f"127.0.0.1:{free_port()}" for name in ("xds", "ext_proc", "envoy_admin")}
    classes = [{"name": "short", "up_to_tokens": 1000}, {"name": "long"}]
    content: dict[str, Any] = {
        "version": 1,
        "state_file": None,
        "services": services | {"admin": f"0.0.0.0:{free_port()}"},
        "pools": [
            {"name": "spare", "models": ["spare"], "endpoints": [{"address": "127.0.0.1:11"}], "classes": classes},
            {
                "name": "chat",
                "endpoints": [{"address": f"{host}:9"} for host in ("127.0.0.1", "127.0.0.2", "none.invalid")],
                "fallbacks": [{"pool": "spare"}],
            },
        ],
    }
    path.write_text(json.dumps(content))
    return path


@pytest.fixture
async def policy(tmp_path: Path) -> AsyncIterator[Path]:
    """Of a running control plane with an endpoint that cools, and one whose name does not resolve."""
    file = PolicyFile(write_policy(tmp_path / "policy.yaml"))
    async with ControlPlane(file, file.load()) as plane:
        await until(lambda: plane.decisions.keys() == {"spare", "chat"})
        plane.observe([Rejected(time.time(), "chat", "127.0.0.1:9", "r", 429, Verdict.SATURATED, 30.0)])
        await until(lambda: not plane.decisions["chat"].endpoints[0].takes_work)
        yield file.path


async def test_a_table_says_state_and_reason(policy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    await endpoints(policy, as_json=False, console=Console(width=160))
    shown = capsys.readouterr().out
    rows = {words[0]: " ".join(words[1:]) for line in shown.splitlines() if (words := line.split())}
    assert rows["127.0.0.1:11"].startswith("up 10,000 / 10,000 100.0% / 100.0% 0 ? ? ")
    assert rows["127.0.0.1:9"].startswith("cooling - - 0 ? ? status 429 (saturated")
    assert rows["none.invalid:9"] == "unresolved - - - - - its name does not resolve"
    assert rows["chat;"] == "its work goes to chat 100%, spare 0%"
    assert rows["spare;"] == "weight and share of short / long"


async def test_json_is_the_page(policy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    await endpoints(policy, as_json=True, console=Console())
    pools = json.loads(capsys.readouterr().out)["pools"]
    assert [row["state"] for row in pools["chat"]["endpoints"]] == ["cooling", "up"]


async def test_without_a_control_plane_it_says_what_to_look_for(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"services\.admin .*: is trimtab running with this policy\?"):
        await endpoints(write_policy(tmp_path / "policy.yaml"), as_json=False, console=Console())
