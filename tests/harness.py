"""A real Envoy and scriptable engines for tests."""

import asyncio
import contextlib
import inspect
import json
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web

from trimtab.process.child import tied
from trimtab.process.envoy_binary import find_envoy
from trimtab.process.listening import free_port as free_port


async def until(condition: Callable[[], Any], timeout_s: float = 10.0, what: str = "") -> Any:
    """The first true value of `condition()`, which may be async. Raises AssertionError after `timeout_s`."""
    try:
        async with asyncio.timeout(timeout_s) as deadline:
            while True:
                value = condition()
                if inspect.isawaitable(value):
                    value = await value
                if value:
                    return value
                await asyncio.sleep(0.01)
    except TimeoutError:
        if not deadline.expired():
            raise
        raise AssertionError(f"not within {timeout_s:g} s: {what or condition}") from None


class EnvoyProcess:
    """One Envoy. `admin` is the address of its admin interface, `host:port` or `unix:/path`."""

    def __init__(self, bootstrap: str, admin: str, directory: Path, *, concurrency: int = 1) -> None:
        self.admin = admin
        self._file = directory / "bootstrap.yaml"
        self._file.write_text(bootstrap)
        self.log_file = directory / "envoy.log"
        self._concurrency = concurrency
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    async def start(self, timeout_s: float = 15.0) -> None:
        """Start and wait until it serves."""
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: ASYNC220
                tied(
                    str(find_envoy()),
                    "-c",
                    str(self._file),
                    "--disable-hot-restart",
                    "--log-level",
                    "warning",
                    "--concurrency",
                    str(self._concurrency),
                ),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

        async def is_ready() -> bool:
            assert self.alive, "Envoy ended at its start"
            return await self._is_ready()

        try:
            await until(is_ready, timeout_s, "Envoy is ready")
        except AssertionError as error:
            raise AssertionError(f"{error}:\n{self.log()}") from None

    async def stop(self) -> None:
        """End it by its pid; returns when it has ended."""
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.terminate()
        try:
            await asyncio.to_thread(self._process.wait, 5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            await asyncio.to_thread(self._process.wait)

    def log(self) -> str:
        """Everything that Envoy has logged (warnings and worse)."""
        return self.log_file.read_text(errors="replace")

    async def admin_get(self, path: str) -> str:
        async with self.session() as session, session.get(path) as answer:
            return await answer.text()

    async def stats(self, pattern: str = "") -> dict[str, int]:
        """Counters and gauges whose names match the regular expression."""
        query = {"format": "json", "filter": pattern}
        async with self.session() as session, session.get("/stats", params=query) as answer:
            listing = json.loads(await answer.text())["stats"]
        return {stat["name"]: stat["value"] for stat in listing if "value" in stat}

    def session(self) -> aiohttp.ClientSession:
        if self.admin.startswith("unix:"):
            return aiohttp.ClientSession("http://envoy", connector=aiohttp.UnixConnector(self.admin[len("unix:") :]))
        return aiohttp.ClientSession(f"http://{self.admin}")

    async def _is_ready(self) -> bool:
        with contextlib.suppress(aiohttp.ClientError, OSError):
            async with self.session() as session, session.get("/ready") as answer:
                return answer.status == 200
        return False


@dataclass(frozen=True)
class Body:
    """A whole answer."""

    status: int = 200
    body: bytes = b"{}"
    headers: Mapping[str, str] = field(default_factory=lambda: {"content-type": "application/json"})
    chunked: bool = False
    after_s: float = 0.0


@dataclass(frozen=True)
class Chunks:
    """An answer in pieces, each some seconds after the one before. `cut` breaks the connection at the end."""

    chunks: Sequence[tuple[float, bytes]]
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=lambda: {"content-type": "text/event-stream"})
    cut: bool = False


@dataclass(frozen=True)
class Reset:
    """The connection is broken before any answer."""

    after_s: float = 0.0


@dataclass(frozen=True)
class Hang:
    """No answer ever."""


Step = Body | Chunks | Reset | Hang
Script = Callable[[web.Request, bytes], Step]


def error(status: int, message: str, kind: str = "Service Unavailable", **headers: str) -> Body:
    """An error answer as vLLM writes it."""
    body = {"error": {"message": message, "type": kind, "param": None, "code": status}}
    return Body(status, json.dumps(body).encode(), {"content-type": "application/json", **headers})


def event(content: str | None, **delta: object) -> bytes:
    """One SSE event of a streamed chat."""
    chunk = {
        "object": "chat.completion.chunk",
        "choices": [{"index": 0, "delta": {"content": content, **delta}}],
    }
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"


def tokens(count: int, first_s: float = 0.0, gap_s: float = 0.0, text: str = "token ") -> Chunks:
    """A streamed chat as vLLM sends it: the role chunk together with the first token, and an end mark."""
    first = event("", role="assistant") + event(f"{text}0")
    rest = [(gap_s, event(f"{text}{number}")) for number in range(1, count)]
    return Chunks([(first_s, first), *rest, (gap_s, DONE)])


@dataclass
class Call:
    """What an engine knows of one attempt."""

    request_id: str
    step: Step
    arrived_at: float
    body_bytes: int
    sent_at: list[float] = field(default_factory=list)  # Unix seconds, one for each chunk of `Chunks`
    over_at: float | None = None  # answered, or left by Envoy


class FakeEngine:
    """An HTTP server that answers each request as `script` says, and keeps the truth about it."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.calls: list[Call] = []
        self._runner = web.AppRunner(self._app(), access_log=None, handler_cancellation=True)
        self.port = 0

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def start(self, port: int = 0) -> None:
        await self._runner.setup()
        self.port = port or free_port()
        await web.TCPSite(self._runner, "127.0.0.1", self.port, backlog=1024).start()

    async def stop(self) -> None:
        await self._runner.cleanup()

    def _app(self) -> web.Application:
        app = web.Application(client_max_size=1 << 28)
        app.router.add_route("*", "/{path:.*}", self._answer)
        return app

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        arrived_at = time.time()
        body = await request.read()
        step = self.script(request, body)
        call = Call(request.headers.get("x-request-id", ""), step, arrived_at, len(body))
        self.calls.append(call)
        try:
            return await _PLAYERS[type(step)](request, step, call)
        finally:
            call.over_at = time.time()


async def _play_body(request: web.Request, step: Body, call: Call) -> web.StreamResponse:
    await asyncio.sleep(step.after_s)
    if not step.chunked:
        return web.Response(status=step.status, body=step.body, headers=step.headers)
    return await _play_chunks(request, Chunks([(0, step.body)], step.status, step.headers), call)


async def _play_chunks(request: web.Request, step: Chunks, call: Call) -> web.StreamResponse:
    response = web.StreamResponse(status=step.status, headers=step.headers)
    await response.prepare(request)
    with contextlib.suppress(ConnectionError):
        for after_s, chunk in step.chunks:
            if after_s:
                await asyncio.sleep(after_s)
            call.sent_at.append(time.time())
            await response.write(chunk)
        if step.cut:
            _break(request)
    return response


async def _play_reset(request: web.Request, step: Reset, call: Call) -> web.StreamResponse:
    await asyncio.sleep(step.after_s)
    _break(request)
    return web.Response()


async def _play_hang(request: web.Request, step: Hang, call: Call) -> web.StreamResponse:
    await asyncio.Event().wait()
    raise AssertionError("unreachable")


def _break(request: web.Request) -> None:
    if request.transport is not None:
        request.transport.abort()


_PLAYERS: dict[type, Callable[[web.Request, Step, Call], Awaitable[web.StreamResponse]]] = {
    Body: _play_body,
    Chunks: _play_chunks,
    Reset: _play_reset,
    Hang: _play_hang,
}


@asynccontextmanager
async def engines(*scripts: Script) -> AsyncIterator[list[FakeEngine]]:
    """Running engines, one for each script."""
    started = [FakeEngine(script) for script in scripts]
    try:
        for engine in started:
            await engine.start()
        yield started
    finally:
        for engine in started:
            await engine.stop()
