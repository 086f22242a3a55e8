"""The arms of the demo: the same engines behind different balancers."""

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from trimtab.lab.demo.plain_envoy import plain_bootstrap
from trimtab.lab.local_stack import answers, on_free_ports
from trimtab.policy.model import Retries
from trimtab.process.child import tied
from trimtab.process.envoy_binary import find_envoy
from trimtab.process.envoy_process import EnvoyProcess
from trimtab.process.errors import PartFailedError
from trimtab.process.listening import free_port
from trimtab.sim.client import Result
from trimtab.sim.kinds import A100, CPU, RTX4090, EngineKind
from trimtab.sim.process import EngineAddress, engine_process

FLEET: Sequence[tuple[EngineKind, int]] = ((A100, 10), (RTX4090, 4), (CPU, 1))
"""The engines of every arm, each with the capacity that an operator would declare."""

MODEL = "sim"

# Engines that refuse early are kinder than engines that queue for ever: vLLM's operators set this too.
MAX_QUEUED_REQS = 200
_START_S = 20.0


@dataclass(slots=True)
class Arm:
    """One balancer in front of its own engines."""

    name: str
    url: str
    engines: Sequence[EngineAddress]
    admin: str | None = None  # where Trimtab's pages are; None for a plain Envoy
    results: list[Result] = field(default_factory=list)  # in the order of their last event

    async def page(self, session: aiohttp.ClientSession, path: str) -> Any:
        """One of Trimtab's pages, parsed if it is JSON."""
        async with session.get(f"http://{self.admin}{path}") as answer:
            return await (answer.json() if answer.content_type == "application/json" else answer.text())


ArmFactory = Callable[[Path, Sequence[EngineAddress]], contextlib.AbstractAsyncContextManager[Arm]]


@asynccontextmanager
async def running(name: str, folder: Path) -> AsyncIterator[Arm]:
    """Start the engines and the balancer of the arm `name` (a key of `ARMS`). Raises PartFailedError."""
    kinds = [argument for kind, _ in FLEET for argument in ("--kind", kind.name)]
    try:
        async with (
            engine_process(
                "--model", MODEL, "--port", "0", "--max-num-queued-reqs", str(MAX_QUEUED_REQS), *kinds
            ) as engines,
            ARMS[name](folder, engines) as arm,
        ):
            yield arm
    except RuntimeError as error:
        raise PartFailedError(str(error)) from error


def _plain(name: str, policy: str, weights: Sequence[int]) -> ArmFactory:
    @asynccontextmanager
    async def start(folder: Path, engines: Sequence[EngineAddress]) -> AsyncIterator[Arm]:
        port, admin_port = free_port(), free_port()
        bootstrap = plain_bootstrap(
            port=port,
            admin_port=admin_port,
            endpoints=[engine.address for engine in engines],
            weights=weights,
            policy=policy,
            retries=Retries(),
        )
        envoy = EnvoyProcess(find_envoy(), bootstrap, f"127.0.0.1:{admin_port}", concurrency=1)
        await envoy.start()
        try:
            await envoy.wait_serving(f"127.0.0.1:{port}", _START_S)
            yield Arm(name, f"http://127.0.0.1:{port}", engines)
        finally:
            await envoy.stop()

    return start


def _trimtab(name: str, strategy: str) -> ArmFactory:
    """`trimtab up`, as a user runs it."""

    @asynccontextmanager
    async def start(folder: Path, engines: Sequence[EngineAddress]) -> AsyncIterator[Arm]:
        policy = demo_policy(engines, strategy)
        policy_file = folder / f"{name}.yaml"
        policy_file.write_text(json.dumps(policy, indent=1))  # JSON is YAML
        log = folder / f"{name}.log"
        with log.open("wb") as log_file:
            process = await asyncio.create_subprocess_exec(
                *tied(sys.executable, "-m", "trimtab.cli", "up", "-p", str(policy_file)),
                *("--concurrency", "1", "--grace-s", "0"),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log_file,
                stderr=log_file,
            )
        arm = Arm(name, f"http://127.0.0.1:{policy['listen']['port']}", engines, policy["services"]["admin"])
        try:
            async with aiohttp.ClientSession() as session:
                try:
                    async with asyncio.timeout(_START_S):
                        while not await answers(session, f"{arm.url}/v1/models"):
                            if process.returncode is not None:
                                raise PartFailedError(f"trimtab ended at its start:\n{log.read_text()}")
                            await asyncio.sleep(0.1)
                except TimeoutError:
                    raise PartFailedError(f"trimtab did not serve within {_START_S:g} s:\n{log.read_text()}") from None
            yield arm
        finally:
            if process.returncode is None:
                process.terminate()
            await process.wait()

    return start


ARMS: Mapping[str, ArmFactory] = {
    "round_robin": _plain("round_robin", "round_robin", [1 for _ in FLEET]),
    "least_request": _plain("least_request", "least_request", [1 for _ in FLEET]),
    "capacity": _plain("capacity", "least_request", [capacity for _, capacity in FLEET]),
    "health": _trimtab("health", "health"),
    "trimtab": _trimtab("trimtab", "predicted_ttft"),
}


def demo_policy(engines: Sequence[EngineAddress], strategy: str) -> dict[str, Any]:
    """The policy of Trimtab's arms, as it would stand in YAML."""
    return {
        **on_free_ports(),
        "pools": [
            {
                "name": "demo",
                "scoring": {"strategy": strategy},
                "endpoints": [
                    {"address": engine.address, "capacity": capacity, "labels": {"gpu": engine.kind}}
                    for engine, (_, capacity) in zip(engines, FLEET, strict=True)
                ],
                "gate": {"enabled": True, "first_token_deadline_ms": 15_000},
                "signals": {"scrape_interval_ms": 500, "scrape_timeout_ms": 400},
            }
        ],
    }
