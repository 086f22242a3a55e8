"""Envoy with the pushed resources, our ext_proc workers, and scriptable engines: everything but the scorer."""

import asyncio
import contextlib
import pickle
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import aiohttp

from ext_proc.access_log import AccessLogService
from ext_proc.retry_decision import RetryAdvice
from ext_proc.server import serve_ext_proc
from ext_proc.service import ExtProcService
from tests.envoy.control_plane import ControlPlane, assignment
from tests.harness import EnvoyProcess, FakeEngine, Script, engines, free_port, until
from trimtab.llmapi.rejections import RejectionReader
from trimtab.observation.kinds import Observation
from trimtab.policy.model import Policy
from xds_server.ads.snapshot import TypeUrl
from xds_server.config import static_resources
from xds_server.config.bootstrap import render_bootstrap

T = TypeVar("T")


class WorkerProcess:
    """The ext_proc workers in a process of their own."""

    def __init__(self, policy: Policy, directory: Path, number: int) -> None:
        self._policy = policy
        self._file = directory / f"observations-{number}"
        self._file.touch()
        self._read_to = 0
        self._seen: list[Observation] = []
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    async def start(self) -> None:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.envoy.worker",
            self._policy.model_dump_json(),
            str(self._file),
            stdout=asyncio.subprocess.PIPE,
        )
        assert self._process.stdout is not None
        assert await self._process.stdout.readline() == b"serving\n"

    async def stop(self) -> None:
        assert self._process is not None
        if self._process.returncode is None:
            self._process.send_signal(signal.SIGCONT)
            self._process.terminate()
        await self._process.wait()

    def observations(self) -> list[Observation]:
        with self._file.open("rb") as file:
            file.seek(self._read_to)
            # A pickle whose end has not been written yet is left for the next time.
            with contextlib.suppress(EOFError, pickle.UnpicklingError):
                while True:
                    self._seen.append(pickle.load(file))
                    self._read_to = file.tell()
        return self._seen


@dataclass
class Rig:
    """The running parts."""

    policy: Policy
    envoy: EnvoyProcess
    control_plane: ControlPlane
    engines: list[FakeEngine]
    ext_proc: ExtProcService
    access_log: AccessLogService
    client: aiohttp.ClientSession
    inside: list[Observation] = field(default_factory=list)
    workers: list[WorkerProcess] = field(default_factory=list)

    @property
    def observations(self) -> list[Observation]:
        return self.inside + [observation for worker in self.workers for observation in worker.observations()]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.policy.listen.port}"

    def check(self) -> None:
        """After the tests: nothing was refused, complained of or misunderstood."""
        assert self.envoy.alive, self.envoy.log()
        assert self.control_plane.refusals == []
        assert self.envoy.log() == ""
        assert self.ext_proc.counters.faults == self.access_log.counters.faults == 0

    def seen(self, kind: type[T], request_id: str | None = None) -> list[T]:
        """Observations of a kind, perhaps of one request only."""
        return [
            observation
            for observation in self.observations
            if isinstance(observation, kind) and (request_id is None or observation.request_id == request_id)  # type: ignore[attr-defined]
        ]

    async def told(self, kind: type[T], request_id: str, count: int = 1) -> list[T]:
        """The observations of a kind and request, once there are `count`: their sources do not wait for each other."""
        await until(lambda: len(self.seen(kind, request_id)) == count, what=f"{count} of {kind.__name__}")
        return self.seen(kind, request_id)

    async def chat(self, *, stream: bool = False, model: str = "m", **headers: str) -> "Answer":
        """One chat over a connection of the pool, read to its end."""
        body = {"model": model, "stream": stream, "messages": [{"role": "user", "content": "hi"}]}
        return await self.ask("POST", "/v1/chat/completions", json=body, headers=headers)

    async def ask(self, method: str, path: str, **kwargs: Any) -> "Answer":
        sent_at = time.time()
        async with self.client.request(method, self.url + path, **kwargs) as response:
            first_at, body = 0.0, bytearray()
            async for piece, _ in response.content.iter_chunks():
                first_at = first_at or time.time()
                body += piece
            return Answer(response.status, response.headers, bytes(body), sent_at, first_at)


@dataclass
class Answer:
    """What a client got."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    sent_at: float
    first_byte_at: float

    @property
    def request_id(self) -> str:
        return self.headers["x-request-id"]


@asynccontextmanager
async def running(
    directory: Path,
    scripts: Sequence[Script],
    *,
    pools: Callable[[list[FakeEngine]], list[dict[str, Any]]] | None = None,
    workers_apart: bool = False,
    concurrency: int = 1,
    **policy: Any,
) -> AsyncIterator[Rig]:
    """A rig with one engine for each script, by default in one pool, `p`.

    `policy` has more keys of the policy. With `workers_apart` the ext_proc workers run in processes of their own,
    one for each of `ext_proc.workers`.
    """
    async with AsyncExitStack() as stack:
        started = await stack.enter_async_context(engines(*scripts))
        made = pools(started) if pools else [{"name": "p", "endpoints": [{"address": e.address} for e in started]}]
        ports = {key: free_port() for key in ("listen", "xds", "ext_proc", "envoy_admin")}
        services = {key: f"127.0.0.1:{ports[key]}" for key in ("xds", "ext_proc", "envoy_admin")}
        rules = Policy.model_validate(
            {
                "version": 1,
                "listen": {"port": ports["listen"], **policy.pop("listen", {})},
                "services": {**services, **policy.pop("services", {})},
                "pools": made,
                **policy,
            }
        )
        observations: list[Observation] = []
        access_log = AccessLogService(observations.extend)
        ext_proc = ExtProcService(
            observations.extend,
            RejectionReader.from_policy(rules.rejections),
            rules.ext_proc.full_stream_percent,
            rules.ext_proc.reject_timeout_ms / 1000,
            RetryAdvice(rules.pools),
        )
        workers = [
            WorkerProcess(rules, directory, number) for number in range(rules.ext_proc.workers if workers_apart else 0)
        ]
        for worker in workers:
            await worker.start()
            stack.push_async_callback(worker.stop)
        if not workers:
            await stack.enter_async_context(serve_ext_proc(rules.services.ext_proc, ext_proc, access_log, grace_s=0))
        control_plane = ControlPlane(resources(rules))
        await stack.enter_async_context(control_plane.serving(rules.services.xds))
        envoy = EnvoyProcess(
            render_bootstrap(rules),
            rules.services.envoy_admin,
            directory,
            concurrency=concurrency,
        )
        stack.push_async_callback(envoy.stop)
        await envoy.start()
        client = await stack.enter_async_context(
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=60))
        )
        yield Rig(rules, envoy, control_plane, started, ext_proc, access_log, client, observations, workers)


def resources(policy: Policy) -> dict[str, dict[str, bytes]]:
    """Everything that is pushed, with equal weights."""
    endpoints = {
        name: assignment(name, {endpoint.address: 100 for endpoint in pool.endpoints})
        for pool in policy.pools
        for name in pool.clusters
    }
    return {**static_resources(policy), TypeUrl.EDS: endpoints}
