"""What is drilled: three simulated engines, Envoy and our two services, each a process that can be hurt by itself."""

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from trimtab.lab.local_stack import answers, on_free_ports
from trimtab.policy import load_policy
from trimtab.process.child import tied
from trimtab.process.envoy_binary import find_envoy
from trimtab.process.envoy_process import EnvoyProcess
from trimtab.process.errors import PartFailedError
from trimtab.process.listening import free_port
from xds_server.config.bootstrap import render_bootstrap

ENGINES = 3
MODEL = "sim"

_KIND = "a100"
_START_S = 20.0
_STOP_S = 5.0


class Part:
    """One process of the stack, started again with the same command as often as a drill wants."""

    def __init__(self, name: str, folder: Path, *command: str) -> None:
        self.name = name
        self._command = command
        self._log = folder / f"{name}.log"
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *tied(*self._command),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # a Ctrl-C at the terminal ends the drill, and the drill ends its parts
            )

    def send(self, number: signal.Signals) -> None:
        """Send a signal, if the process is there."""
        if self._process is not None and self._process.returncode is None:
            os.kill(self._process.pid, number)

    async def kill(self) -> None:
        self.send(signal.SIGKILL)
        if self._process is not None:
            await self._process.wait()

    async def stop(self) -> None:
        self.send(signal.SIGCONT)
        self.send(signal.SIGTERM)
        if self._process is not None:
            try:
                async with asyncio.timeout(_STOP_S):
                    await self._process.wait()
            except TimeoutError:
                await self.kill()

    def check(self) -> None:
        """Raises PartFailedError if the process has ended."""
        if self._process is not None and self._process.returncode is not None:
            raise PartFailedError(f"{self.name} ended:\n{self._log.read_text(errors='replace')[-2000:]}")


class Stack:
    """The running parts, and what a drill may do to them. Made by `running`."""

    def __init__(self, folder: Path, pool: Mapping[str, Any], session: aiohttp.ClientSession) -> None:
        self.addresses = [f"127.0.0.1:{free_port()}" for _ in range(ENGINES)]
        policy = {
            **on_free_ports(),
            "state_file": str(folder / "state.json"),
            "pools": [
                {**pool, "name": "drill", "models": ["*"], "endpoints": [{"address": a} for a in self.addresses]},
            ],
        }
        services = policy["services"]
        services["standby"] = f"127.0.0.1:{free_port()}"
        self._listen = f"127.0.0.1:{policy['listen']['port']}"
        self.url = f"http://{self._listen}"
        self._session = session
        self._envoy_admin = f"http://{services['envoy_admin']}"
        self._admin = f"http://{services['admin']}"
        self._policy_file = folder / "policy.yaml"
        self._policy_file.write_text(json.dumps(policy, indent=1))  # JSON is YAML
        run = (sys.executable, "-m", "trimtab.cli")
        self.engines = [
            Part(
                f"engine-{number}",
                folder,
                *(sys.executable, "-m", "trimtab.sim.server", "--kind", _KIND, "--model", MODEL),
                *("--name", f"engine-{number}", "--port", address.rpartition(":")[2]),
            )
            for number, address in enumerate(self.addresses)
        ]
        self.control_plane = Part("control-plane", folder, *run, "xds", "-p", str(self._policy_file))
        self.worker = Part("ext-proc", folder, *run, "ext-proc", "-p", str(self._policy_file))
        self.standby = Part("standby", folder, *run, "standby", "-p", str(self._policy_file))
        self._view = folder / "state.json.view"
        self._envoy = self._new_envoy()
        self._black_holes: dict[int, list[socket.socket]] = {}

    @property
    def _parts(self) -> Sequence[Part]:
        return (*self.engines, self.control_plane, self.worker, self.standby)

    def _new_envoy(self) -> EnvoyProcess:
        bootstrap = render_bootstrap(load_policy(self._policy_file))
        return EnvoyProcess(find_envoy(), bootstrap, self._envoy_admin.removeprefix("http://"), concurrency=1)

    async def start(self) -> None:
        for part in self._parts:
            await part.start()
        for address in self.addresses:
            await self._until_answers(f"http://{address}/health")
        await self._until_answers(f"{self._admin}/healthz")
        await self.start_envoy()
        await self._until_answers(f"{self.url}/v1/models")
        await self._until(self._view.exists, "the standby has no view")

    async def stop(self) -> None:
        for number in list(self._black_holes):
            self._close_black_hole(number)
        await self.stop_envoy()
        await asyncio.gather(*(part.stop() for part in self._parts))

    async def start_envoy(self) -> None:
        """Raises EnvoyFailedError if it does not serve."""
        self._envoy = self._new_envoy()
        await self._envoy.start()
        await self._envoy.wait_serving(self._listen, _START_S)

    async def stop_envoy(self) -> None:
        await self._envoy.stop()

    async def fault(self, number: int, kind: str, **numbers: float | str) -> None:
        """Put a fault into an engine; "none" heals it."""
        url = f"http://{self.addresses[number]}/control/fault"
        async with self._session.post(url, json={"kind": kind, **numbers}) as answer:
            if answer.status != 200:
                raise PartFailedError(f"engine-{number} refused the fault {kind}: {await answer.text()}")

    async def black_hole(self, number: int) -> None:
        """Take the engine away, and let connections to its address be neither accepted nor refused."""
        await self.engines[number].kill()
        host, _, port = self.addresses[number].rpartition(":")
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, int(port)))
        listener.listen(0)
        fillers = [socket.socket() for _ in range(2)]
        for filler in fillers:  # a full backlog drops what comes next
            filler.setblocking(False)
            filler.connect_ex((host, int(port)))
        self._black_holes[number] = [listener, *fillers]

    async def start_engine(self, number: int) -> None:
        """Start an engine again that was killed."""
        self._close_black_hole(number)
        await self.engines[number].start()
        await self._until_answers(f"http://{self.addresses[number]}/health")

    def _close_black_hole(self, number: int) -> None:
        for open_socket in self._black_holes.pop(number, []):
            open_socket.close()

    async def attempts(self) -> Mapping[str, int] | None:
        """How many attempts each address has got since Envoy's start, by Envoy's count; None while it is down."""
        try:
            async with self._session.get(f"{self._envoy_admin}/clusters?format=json") as answer:
                page = await answer.json(content_type=None)
        except (aiohttp.ClientError, OSError, TimeoutError):
            return None
        (pool,) = [cluster for cluster in page.get("cluster_statuses", []) if cluster["name"] == "drill"] or [{}]
        return {_address(host): _tried(host) for host in pool.get("host_statuses", [])}

    async def _until_answers(self, url: str) -> None:
        await self._until(lambda: answers(self._session, url), f"{url} did not answer")

    async def _until(self, holds: Callable[[], bool | Awaitable[bool]], what: str) -> None:
        try:
            async with asyncio.timeout(_START_S):
                while not (held if isinstance(held := holds(), bool) else await held):
                    for part in self._parts:
                        part.check()
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise PartFailedError(f"{what} within {_START_S:g} s") from None


@asynccontextmanager
async def running(folder: Path, pool: Mapping[str, Any]) -> AsyncIterator[Stack]:
    """The whole stack with a pool of these policy fields, serving.

    Raises PartFailedError, EnvoyFailedError, EnvoyNotFoundError.
    """
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)))
        made = Stack(folder, pool, session)
        stack.push_async_callback(made.stop)
        await made.start()
        yield made


def _address(host: Mapping[str, Any]) -> str:
    place = host["address"]["socket_address"]
    return f"{place['address']}:{place['port_value']}"


def _tried(host: Mapping[str, Any]) -> int:
    """Envoy counts a request when it has a connection for it."""
    stats = {stat["name"]: int(stat.get("value", 0)) for stat in host.get("stats", [])}
    return stats.get("rq_total", 0) + stats.get("cx_connect_fail", 0)
