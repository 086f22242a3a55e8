"""A child Envoy that never outlives its parent."""

import asyncio
import logging
import signal
from collections import deque
from collections.abc import Callable
from pathlib import Path

import aiohttp

from trimtab.process.child import tied
from trimtab.process.errors import PartFailedError
from trimtab.process.listening import takes_connections

log = logging.getLogger(__name__)


class EnvoyFailedError(PartFailedError):
    """Envoy did not start, or ended by itself; the message holds the last lines that it logged."""


class EnvoyProcess:
    """One Envoy, started from the text of a bootstrap.

    It gets a session of its own, so that a Ctrl-C at the terminal reaches it only through `drain` and `stop`.
    `admin` is the address of its admin interface: `host:port` or `unix:/path`.
    """

    def __init__(self, binary: Path, bootstrap: str, admin: str, *, concurrency: int | None = None) -> None:
        self._command = [
            str(binary),
            # No file: nothing is left behind when this process is killed.
            "--config-yaml",
            bootstrap,
            # Several Envoys may run on one machine, and none is ever hot-restarted into another.
            "--disable-hot-restart",
            # A listener that changes lets its streams end by themselves instead of cutting them after 10 minutes.
            "--drain-time-s",
            "3600",
            "--log-level",
            "warning",
            # Or it warns of each SIGTERM, and of each end of the control plane; refusals are told by the control plane.
            "--component-log-level",
            "main:error,config:error",
            *(["--concurrency", str(concurrency)] if concurrency else []),
        ]
        self._admin = admin
        self._last_lines: deque[str] = deque(maxlen=20)
        self._process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int:
        """The child's process id; only after `start`."""
        assert self._process is not None
        return self._process.pid

    async def start(self) -> None:
        """Start Envoy; it is not ready yet."""
        self._process = await asyncio.create_subprocess_exec(
            *tied(*self._command),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        self._reader = asyncio.create_task(self._read_log())

    async def _read_log(self) -> None:
        assert self._process is not None
        assert self._process.stderr is not None
        while line := await self._process.stderr.readline():
            if text := line.decode(errors="replace").rstrip():
                self._last_lines.append(text)
                log.warning("envoy: %s", text)

    async def wait_serving(self, listen: str, timeout_s: float, refusal: Callable[[], str] = str) -> None:
        """Wait until Envoy takes connections at `listen` (`host:port`): it is ready without a listener too.

        `refusal` says what it refuses of what it needs for that; empty if nothing. Raises EnvoyFailedError.
        """
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    serves = await self._is_ready() and await takes_connections(listen)
                    if why := refusal():
                        raise EnvoyFailedError(self._say(f"Envoy does not serve on {listen}: it refuses {why}"))
                    if serves:
                        return
                    if self._process is not None and self._process.returncode is not None:
                        raise EnvoyFailedError(self._say(f"Envoy {_end(self._process.returncode)}"))
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise EnvoyFailedError(self._say(f"Envoy did not serve on {listen} within {timeout_s:g} s")) from None

    async def ended(self) -> int:
        """Wait until the process has ended, for whatever reason; its return code."""
        assert self._process is not None
        code = await self._process.wait()
        if self._reader is not None:
            await self._reader
        return code

    def why_ended(self) -> EnvoyFailedError:
        """The error to raise when it ended and was not asked to."""
        assert self._process is not None
        return EnvoyFailedError(self._say(f"Envoy {_end(self._process.returncode or 0)}"))

    async def drain(self, grace_s: float) -> None:
        """Refuse new connections, tell clients to go elsewhere, and wait `grace_s` at most for what is under way."""
        async with self._session() as session:
            await self._post(session, "/healthcheck/fail")
            await self._post(session, "/drain_listeners")
            try:
                async with asyncio.timeout(grace_s):
                    told = 0
                    while (active := await self._active_requests(session)) > 0:
                        if active != told:
                            told = active
                            log.info("draining: %d request(s) still run", active)
                        await asyncio.sleep(0.25)
            except TimeoutError:
                log.warning("the grace of %g s is over; running requests are cut", grace_s)

    async def stop(self) -> None:
        """End the process; returns when it has ended."""
        process = self._process
        if process is None:
            return
        if process.returncode is None:
            process.terminate()
            try:
                async with asyncio.timeout(5):
                    await process.wait()
            except TimeoutError:
                process.kill()
        await self.ended()

    def _session(self) -> aiohttp.ClientSession:
        connector: aiohttp.BaseConnector
        if self._admin.startswith("unix:"):
            base, connector = "http://envoy", aiohttp.UnixConnector(path=self._admin.removeprefix("unix:"))
        else:
            base, connector = f"http://{self._admin}", aiohttp.TCPConnector()
        return aiohttp.ClientSession(base, connector=connector, timeout=aiohttp.ClientTimeout(total=2))

    async def _is_ready(self) -> bool:
        try:
            async with self._session() as session, session.get("/ready") as answer:
                return answer.status == 200
        except (aiohttp.ClientError, OSError, TimeoutError):
            return False

    async def _post(self, session: aiohttp.ClientSession, path: str) -> None:
        async with session.post(path) as answer:
            if answer.status != 200:
                log.warning("Envoy's admin answered %d to %s", answer.status, path)

    async def _active_requests(self, session: aiohttp.ClientSession) -> int:
        async with session.get("/stats", params={"filter": r"^http\.trimtab\.downstream_rq_active$"}) as answer:
            text = await answer.text()
        return sum(int(line.rpartition(":")[2]) for line in text.splitlines())

    def _say(self, what: str) -> str:
        logged = (
            ", having logged:" if self._last_lines else '; it logged nothing (that would be above, as "envoy: ...")'
        )
        return "\n".join([what + logged, *self._last_lines])


def _end(code: int) -> str:
    if code >= 0:
        return f"ended by itself with status {code}"
    of_kernel = ", perhaps by the kernel for want of memory" if code == -signal.SIGKILL else ""
    return f"was ended by signal {-code} ({signal.strsignal(-code)}){of_kernel}"
