"""Running the services until a signal ends them."""

import asyncio
import logging
import signal
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import aiohttp

from trimtab.cli.control_plane import ControlPlane
from trimtab.cli.envoy_process import EnvoyProcess
from trimtab.cli.observers import Observers, Workers, reporter_to, reporting
from trimtab.envoy_binary import find_envoy
from trimtab.policy import Policy, PolicyError, PolicyFile
from xds_server.bootstrap import render_bootstrap

log = logging.getLogger(__name__)

_ENVOY_START_S = 20.0
_FLUSH_S = 2.0


async def serve(policy_path: Path, *, observing: bool) -> None:
    """The control plane, and with `observing` the observers too, for an Envoy that runs elsewhere."""
    with _stop_signal() as stop:
        async with _services(PolicyFile(policy_path), observing=observing) as policy:
            log.info("serving xDS on %s; pages on http://%s", policy.services.xds, policy.services.admin)
            await stop.wait()
            log.info("stopping; Envoy goes on with the last weights")


async def observe(policy_path: Path, *, worker: bool) -> None:
    """The observers alone; they report to the control plane at `services.xds`."""
    policy_file = PolicyFile(policy_path)
    policy = policy_file.load()
    with _stop_signal() as stop:
        if policy.ext_proc.workers > 1 and not worker:
            async with Workers(policy_path, policy.ext_proc.workers).running():
                await stop.wait()
            return
        reporter = reporter_to(policy.services.xds, lambda: observers)
        observers = Observers(policy, reporter.report)
        reporter.start()
        async with observers.serving(policy.services.ext_proc, shared_port=worker):
            log.info("observing on %s, reporting to %s", policy.services.ext_proc, policy.services.xds)
            follow = asyncio.create_task(_follow(policy_file, observers))
            await stop.wait()
            follow.cancel()
        await reporter.close(_FLUSH_S)


async def up(
    policy_path: Path, *, envoy: str | None, concurrency: int | None, grace_s: float, on_ready: Callable[[], None]
) -> None:
    """Everything, with a child Envoy that ends with this process.

    The first SIGINT or SIGTERM drains, the second one ends at once. Raises EnvoyFailedError, EnvoyNotFoundError,
    CannotListenError, PolicyError.
    """
    binary = find_envoy(envoy)
    with _stop_signal() as stop, tempfile.TemporaryDirectory(prefix="trimtab-") as folder:
        async with _services(PolicyFile(policy_path), observing=True) as policy:
            bootstrap = Path(folder) / "bootstrap.yaml"
            bootstrap.write_text(render_bootstrap(policy))
            process = EnvoyProcess(binary, bootstrap, policy.services.envoy_admin, concurrency=concurrency)
            await process.start()
            try:
                await _unless_stopped(stop, process.wait_ready(_ENVOY_START_S))
                if not stop.is_set():
                    on_ready()
                ended = asyncio.create_task(process.ended())
                await _unless_stopped(stop, ended)
                if not stop.is_set():
                    raise process.why_ended()
                log.info("draining for at most %g s; once more ends at once", grace_s)
                stop.clear()
                await _unless_stopped(stop, _drain(process, grace_s))
            finally:
                await process.stop()


async def _drain(process: EnvoyProcess, grace_s: float) -> None:
    try:
        await process.drain(grace_s)
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        log.warning("Envoy cannot be drained (%s); its requests are cut", error)


@asynccontextmanager
async def _services(policy_file: PolicyFile, *, observing: bool) -> AsyncIterator[Policy]:
    """The control plane, with observers in this process or, where the policy wants several, in workers."""
    policy = policy_file.load()
    if not observing:
        async with ControlPlane(policy_file, policy):
            yield policy
    elif policy.ext_proc.workers > 1:
        async with ControlPlane(policy_file, policy), Workers(policy_file.path, policy.ext_proc.workers).running():
            yield policy
    else:
        plane = ControlPlane(policy_file, policy, on_policy=lambda changed: observers.take_policy(changed))
        observers = Observers(policy, plane.observe)
        async with (
            plane,
            observers.serving(policy.services.ext_proc),
            reporting(observers, plane.take_usage),
        ):
            yield policy


async def _follow(policy_file: PolicyFile, observers: Observers) -> None:
    while True:
        await asyncio.sleep(1)
        try:
            policy = policy_file.poll()
        except PolicyError as error:
            log.error("%s; the last good policy stays in force", error)
            continue
        if policy is not None:
            observers.take_policy(policy)


@contextmanager
def _stop_signal() -> Iterator[asyncio.Event]:
    """An event that SIGINT and SIGTERM set."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    signals = (signal.SIGINT, signal.SIGTERM)
    for number in signals:
        loop.add_signal_handler(number, stop.set)
    try:
        yield stop
    finally:
        for number in signals:
            loop.remove_signal_handler(number)


async def _unless_stopped(stop: asyncio.Event, work: Awaitable[object]) -> None:
    """Wait for `work`, or until `stop` is set: then the work is given up."""
    task = asyncio.ensure_future(work)
    stopped = asyncio.create_task(stop.wait())
    await asyncio.wait((task, stopped), return_when=asyncio.FIRST_COMPLETED)
    stopped.cancel()
    if task.done():
        task.result()
    else:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
