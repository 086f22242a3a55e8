"""The command line, and engines in a process of their own."""

import asyncio
import socket
import subprocess
import sys

import aiohttp
import pytest

from trimtab.sim.client import replay
from trimtab.sim.process import engine_process
from trimtab.sim.trace import Request


async def test_several_engines_in_one_process_end_with_the_block() -> None:
    async with engine_process("--kind", "a100", "--kind", "a100", "--kind", "cpu", "--model", "m") as engines:
        assert [engine.name for engine in engines] == ["a100", "a100-2", "cpu"]
        assert len({engine.port for engine in engines}) == 3
        for engine in engines[:2]:
            (result,) = await replay(f"http://{engine.address}", [Request(0.0, 5, 3)], model="m", seed=1)
            assert (result.outcome, result.engine) == ("ok", engine.name)
        async with (
            aiohttp.ClientSession() as http,
            http.post(f"http://{engines[2].address}/v1/chat/completions", json={"messages": [], "stream": True}),
        ):
            pass
    with pytest.raises(OSError):
        await asyncio.open_connection("127.0.0.1", engines[0].port)


async def test_limits_and_ports_can_be_given() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    async with engine_process("--kind", "cpu", "--name", "one", "--port", str(port), "--max-num-queued-reqs", "1") as (
        engine,
    ):
        assert (engine.name, engine.port) == ("one", port)
        async with aiohttp.ClientSession(f"http://{engine.address}") as http:
            body = {"messages": [{"role": "user", "content": "x"}], "stream": True}
            statuses = [(await http.post("/v1/chat/completions", json=body)).status for _ in range(2)]
    assert statuses == [200, 503]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ([], "--kind"),
        (["--kind", "h900"], "invalid choice"),
        (["--kind", "cpu", "--port", "1", "--port", "2"], "more --port than --kind"),
        (["--kind", "cpu", "--max-model-len", "10000000"], "must fit into the KV cache"),
    ],
)
def test_wrong_arguments_are_said_in_a_line(arguments: list[str], problem: str) -> None:
    command = [sys.executable, "-m", "trimtab.sim.server", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert done.returncode != 0
    assert problem in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


async def test_a_port_in_use_is_said_so() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(RuntimeError, match="did not start: exit code 1"):
            async with engine_process("--kind", "cpu", "--port", str(taken.getsockname()[1])):
                pass
