"""Engines and clients for the tests of the HTTP side."""

import dataclasses
from collections.abc import AsyncIterator, Awaitable, Callable

import aiohttp
import prometheus_client
import pytest

from trimtab.sim.http import EngineServer
from trimtab.sim.kinds import VLLM_CPU_MEDIUM, EngineKind

# As the captured server, but 5 ms a token.
QUICK = dataclasses.replace(
    VLLM_CPU_MEDIUM,
    name="quick",
    step0_ms=5,
    per_sequence_ms=0,
    per_context_token_ns=0,
    prefill_step_ms=0,
    prefill_quadratic_ns=0,
    prefill_tokens_per_s=1e6,
)


@pytest.fixture(autouse=True)
def created_series() -> None:
    """An engine is a process of its own; the control plane switches these off in its process."""
    prometheus_client.enable_created_metrics()  # type: ignore[no-untyped-call]


Start = Callable[..., Awaitable[EngineServer]]


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """Start engines that stop with the test."""
    engines: list[EngineServer] = []

    async def start(kind: EngineKind = QUICK, *, model: str = "tiny", name: str | None = None) -> EngineServer:
        engine = EngineServer(kind, model=model, name=name)
        engines.append(engine)
        await engine.start()
        return engine

    yield start
    for engine in engines:
        await engine.stop()


@pytest.fixture
async def engine(start: Start) -> EngineServer:
    """One quick engine."""
    return await start()


@pytest.fixture
async def http(engine: EngineServer) -> AsyncIterator[aiohttp.ClientSession]:
    """A client of that engine."""
    async with aiohttp.ClientSession(f"http://{engine.address}") as session:
        yield session
