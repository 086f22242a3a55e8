"""A child Envoy that does not serve: what a user is told. Stand-ins end, or wait; a real one refuses its listener."""

import asyncio
import json
import re
import socket
from pathlib import Path
from typing import Any

import pytest

from tests.harness import free_port
from trimtab.cli.gateway import up
from trimtab.process.envoy_process import EnvoyFailedError, EnvoyProcess
from xds_server.ads.snapshot import TypeUrl
from xds_server.config import static_resources


def stand_in(folder: Path, script: str) -> EnvoyProcess:
    binary = folder / "envoy"
    binary.write_text(f"#!/bin/sh\n{script}\n")
    binary.chmod(0o755)
    return EnvoyProcess(binary, "", f"127.0.0.1:{free_port()}")


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("kill -9 $$", r"Envoy was ended by signal 9 \(Killed\), perhaps .* memory; it logged nothing .*"),
        ("echo oh >&2; exit 3", r"Envoy ended by itself with status 3, having logged:\noh"),
    ],
)
async def test_how_it_ended_is_said(tmp_path: Path, script: str, said: str) -> None:
    process = stand_in(tmp_path, script)
    await process.start()
    await process.ended()
    assert re.fullmatch(said, str(process.why_ended()))


async def test_one_that_does_not_listen_is_given_up(tmp_path: Path) -> None:
    process = stand_in(tmp_path, "exec sleep 60")
    listen = f"127.0.0.1:{free_port()}"
    await process.start()
    try:
        with pytest.raises(EnvoyFailedError, match=f"did not serve on {listen} within 0.2 s"):
            await process.wait_serving(listen, 0.2)
        with pytest.raises(EnvoyFailedError, match="it refuses its listener"):
            await process.wait_serving(listen, 5, lambda: "its listener")
    finally:
        await process.stop()


@pytest.mark.integration
async def test_up_is_not_ready_while_envoy_refuses_its_listener(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from envoy_data_plane.envoy.config.listener.v3 import Listener

    def without_address(policy: Any) -> dict[TypeUrl, dict[str, bytes]]:
        resources = dict(static_resources(policy))
        (name,) = resources[TypeUrl.LDS]
        resources[TypeUrl.LDS] = {name: bytes(Listener(name=name))}
        return resources

    monkeypatch.setattr("xds_server.control_plane.static_resources", without_address)
    services = {name: f"127.0.0.1:{free_port()}" for name in ("xds", "ext_proc", "admin", "envoy_admin")}
    with socket.socket() as engine:
        engine.bind(("127.0.0.1", 0))
        pool = {"name": "chat", "endpoints": [{"address": f"127.0.0.1:{engine.getsockname()[1]}"}]}
        policy = {"version": 1, "listen": {"port": free_port()}, "services": services, "state_file": None}
        (tmp_path / "policy.yaml").write_text(json.dumps({**policy, "pools": [pool]}))
        ready: list[Any] = []
        async with asyncio.timeout(30):
            with pytest.raises(EnvoyFailedError, match=r"does not serve on .*: it refuses its listener \(.*address"):
                await up(tmp_path / "policy.yaml", envoy=None, concurrency=1, grace_s=0, on_ready=ready.append)
    assert ready == []
