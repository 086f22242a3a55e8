"""Simulated engines in a process of their own."""

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

_START_S = 20
_STOP_S = 5


class EngineAddress(NamedTuple):
    """Where a simulated engine listens."""

    name: str
    kind: str
    address: str  # host:port
    port: int


@asynccontextmanager
async def engine_process(*arguments: str) -> AsyncIterator[Sequence[EngineAddress]]:
    """Run `trimtab.sim.server` with these arguments; it ends with the block, or when this process dies.

    Raises RuntimeError if it does not start.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "trimtab.sim.server",
        "--until-stdin-closes",
        *arguments,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        try:
            async with asyncio.timeout(_START_S):
                line = await process.stdout.readline()
        except TimeoutError:
            raise RuntimeError(f"the simulated engines did not start within {_START_S} s") from None
        if not line:
            raise RuntimeError(f"the simulated engines did not start: exit code {await process.wait()}")
        yield [EngineAddress(**engine) for engine in json.loads(line)["engines"]]
    finally:
        process.stdin.close()
        try:
            async with asyncio.timeout(_STOP_S):
                await process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
