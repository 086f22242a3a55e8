"""Running the control plane, with or without ext_proc workers and Envoy, until a signal ends it."""

import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp

from ext_proc.workers import ObservationServices, Workers, usage_told
from trimtab.policy import Policy, PolicyFile
from trimtab.process.collector import spare_what_is_loaded
from trimtab.process.envoy_binary import find_envoy
from trimtab.process.envoy_process import EnvoyProcess
from trimtab.process.listening import ensure_free
from trimtab.process.stopping import stop_signal, unless_stopped
from xds_server.ads.snapshot import TypeUrl
from xds_server.config.bootstrap import render_bootstrap
from xds_server.control_plane import ControlPlane

log = logging.getLogger(__name__)

_ENVOY_START_S = 20.0


async def serve(policy_path: Path, *, observing: bool) -> None:
    """The control plane, and with `observing` the ext_proc workers too, for an Envoy that runs elsewhere."""
    with stop_signal() as stop:
        async with _services(PolicyFile(policy_path), observing=observing) as plane:
            spare_what_is_loaded()
            services = plane.policy.services
            log.info("serving xDS on %s; pages on http://%s", services.xds, services.admin)
            await stop.wait()
            log.info("stopping; Envoy goes on with the last weights")


async def up(
    policy_path: Path,
    *,
    envoy: str | None,
    concurrency: int | None,
    grace_s: float,
    on_ready: Callable[[Policy], None],
) -> None:
    """Everything, with a child Envoy that ends with this process. `on_ready` is called when clients are served.

    The first SIGINT or SIGTERM drains, the second one ends at once. Raises EnvoyFailedError, EnvoyNotFoundError,
    CannotListenError, PolicyError.
    """
    binary = find_envoy(envoy)
    with stop_signal() as stop:
        async with _services(PolicyFile(policy_path), observing=True) as plane:
            policy = plane.policy
            ensure_free(policy.listen.socket, "listen")
            ensure_free(policy.services.envoy_admin, "services.envoy_admin")
            process = EnvoyProcess(
                binary, render_bootstrap(policy), policy.services.envoy_admin, concurrency=concurrency
            )
            await process.start()
            try:
                serving = process.wait_serving(policy.listen.socket, _ENVOY_START_S, lambda: _refusal(plane))
                await unless_stopped(stop, serving)
                spare_what_is_loaded()
                if not stop.is_set():
                    on_ready(policy)
                await unless_stopped(stop, process.ended())
                if not stop.is_set():
                    raise process.why_ended()
                log.info("draining for at most %g s; once more ends at once", grace_s)
                plane.begin_to_drain()
                stop.clear()
                await unless_stopped(stop, _drain(process, grace_s))
            finally:
                await process.stop()


def _refusal(plane: ControlPlane) -> str:
    """What an Envoy refuses of what it cannot serve without."""
    for client in plane.clients:
        for type_url in (TypeUrl.LDS, TypeUrl.RDS):
            if type_url in client.types and (why := client.types[type_url].refusal):
                return f"its {'listener' if type_url is TypeUrl.LDS else 'routes'} ({why})"
    return ""


async def _drain(process: EnvoyProcess, grace_s: float) -> None:
    try:
        await process.drain(grace_s)
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        why = str(error).replace(" ssl:default", "")  # aiohttp says so of plain HTTP
        log.warning("Envoy cannot be drained (%s); its requests are cut", why)


@asynccontextmanager
async def _services(policy_file: PolicyFile, *, observing: bool) -> AsyncIterator[ControlPlane]:
    """The control plane, with ext_proc workers in this process or, where the policy wants several, in workers."""
    policy = policy_file.load()
    if not observing:
        async with ControlPlane(policy_file, policy) as plane:
            yield plane
    elif policy.ext_proc.workers > 1:
        async with (
            ControlPlane(policy_file, policy) as plane,
            Workers(policy_file.path, policy).running(),
        ):
            yield plane
    else:
        plane = ControlPlane(
            policy_file,
            policy,
            on_policy=lambda changed: services.take_policy(changed),
            on_states=lambda states: services.take_states(states),
        )
        services = ObservationServices(policy, plane.observe)
        async with plane, services.serving(policy.services.ext_proc), usage_told(services, plane.take_usage):
            yield plane
