"""Trimtab as a user runs it, in front of simulated engines: every part a process of its own."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from tests.harness import until
from trimtab.lab.local_stack import on_free_ports
from trimtab.process.child import tied


class Process:
    """A child of the test, ended by its pid. Its standard error is kept in a file. `env` is beside the test's own."""

    def __init__(self, *command: str, log: Path, env: Mapping[str, str] = {}) -> None:
        self._command = command
        self._log = log
        self._env = env
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *tied(*self._command),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env={**os.environ, "COLUMNS": "200", **self._env},
            )

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.returncode is None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    async def line(self) -> str:
        assert self._process is not None
        assert self._process.stdout is not None
        return (await self._process.stdout.readline()).decode()

    def send(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    async def ended(self, timeout_s: float = 10) -> int:
        assert self._process is not None
        async with asyncio.timeout(timeout_s):
            return await self._process.wait()

    async def stop(self) -> None:
        if not self.alive:
            return
        self.send(signal.SIGCONT)
        self.send(signal.SIGTERM)
        try:
            await self.ended(8)
        except TimeoutError:
            self.send(signal.SIGKILL)
            await self.ended()


class Engines(Process):
    """Simulated engines in one process."""

    def __init__(self, folder: Path, kinds: Sequence[str], model: str = "sim") -> None:
        self._kinds = kinds
        kinds_arguments = [argument for kind in kinds for argument in ("--kind", kind)]
        super().__init__(
            *(sys.executable, "-m", "trimtab.sim.server", "--model", model, "--port", "0", *kinds_arguments),
            log=folder / f"engines-{model}.log",
        )
        self.addresses: list[str] = []
        self.names: list[str] = []

    async def start(self) -> None:
        await super().start()
        started = json.loads(await self.line())
        self.addresses = [engine["address"] for engine in started["engines"]]
        self.names = [engine["name"] for engine in started["engines"]]

    async def fault(self, number: int, kind: str, **numbers: Any) -> None:
        """Put a fault into an engine; "none" heals it."""
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"http://{self.addresses[number]}/control/fault", json={"kind": kind, **numbers}) as answer,
        ):
            assert answer.status == 200, await answer.text()

    async def attempts(self, number: int) -> list[dict[str, Any]]:
        """Every attempt that the engine has seen, by its own account."""
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://{self.addresses[number]}/control/log") as answer,
        ):
            found = await answer.json()
            return list(found["attempts"])


class Trimtab(Process):
    """One `trimtab` command with a policy of its own on free ports."""

    def __init__(
        self, folder: Path, command: str, policy: Mapping[str, Any], *arguments: str, env: Mapping[str, str] = {}
    ) -> None:
        self.policy = dict(policy)
        self.policy_file = folder / "policy.yaml"
        self.write_policy()
        self._admin = self.policy["services"]["admin"]
        self.url = f"http://127.0.0.1:{self.policy['listen']['port']}"
        super().__init__(
            *(sys.executable, "-m", "trimtab.cli", command, "-p", str(self.policy_file), *arguments),
            log=folder / f"trimtab-{command}.log",
            env=env,
        )

    def write_policy(self) -> None:
        """JSON is YAML."""
        part = self.policy_file.with_suffix(".part")
        part.write_text(json.dumps(self.policy))
        part.replace(self.policy_file)

    async def page(self, path: str) -> Any:
        async with aiohttp.ClientSession() as session, session.get(f"http://{self._admin}{path}") as answer:
            return await (answer.json() if "json" in answer.content_type else answer.text())

    async def endpoints(self, pool: str = "sim") -> dict[str, dict[str, Any]]:
        """The decision on each endpoint by its name in the policy."""
        page = await self.page("/endpoints")
        return {row["name"]: row for row in page["pools"][pool]["endpoints"]}

    async def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples that have these labels."""
        page = await self.page("/metrics")
        return sum(
            sample.value
            for family in text_string_to_metric_families(page)
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )

    async def wait_serving(self, timeout_s: float = 40) -> None:
        """Wait until a request through Envoy is answered by an engine."""

        async def serves() -> bool:
            if await self._serves():
                return True
            assert self.alive, f"trimtab ended:\n{self.log()}"
            return False

        await until(serves, timeout_s, "a request through Envoy is answered")

    async def _serves(self) -> bool:
        try:
            async with aiohttp.ClientSession() as session, session.get(f"{self.url}/v1/models") as answer:
                return answer.status == 200
        except (aiohttp.ClientError, OSError):
            return False


def policy_for(engines: Engines, *, capacities: Sequence[float | None] = (), **pool: Any) -> dict[str, Any]:
    """A policy with one pool over all engines. Every stream is watched, however busy the machine."""
    padded = [*capacities, *([None] * (len(engines.addresses) - len(capacities)))]
    endpoints = [
        {"address": address, **({"capacity": capacity} if capacity else {})}
        for address, capacity in zip(engines.addresses, padded, strict=True)
    ]
    pools = [{"name": "sim", "endpoints": endpoints, **pool}]
    return {**on_free_ports(), "ext_proc": {"cpu_budget_cores": 64}, "pools": pools}


@asynccontextmanager
async def running(*processes: Process) -> AsyncIterator[None]:
    """Start processes in order, and stop them in the reverse order."""
    started: list[Process] = []
    try:
        for process in processes:
            await process.start()
            started.append(process)
        yield
    finally:
        for process in reversed(started):
            await process.stop()
