"""Running the ext_proc workers alone, beside a control plane in another process."""

import asyncio
import logging
import os
from pathlib import Path

from ext_proc.reporter import Reporter
from ext_proc.workers import ObservationServices, Workers
from trimtab.policy import PolicyFile
from trimtab.process.collector import spare_what_is_loaded
from trimtab.process.policy_follower import follow
from trimtab.process.stopping import stop_signal

log = logging.getLogger(__name__)

_FLUSH_S = 2.0


async def observe(policy_path: Path, *, worker: bool) -> None:
    """The ext_proc workers alone; they report to the control plane at `services.xds`."""
    policy_file = PolicyFile(policy_path)
    policy = policy_file.load()
    with stop_signal() as stop:
        if policy.ext_proc.workers > 1 and not worker:
            async with Workers(policy_path, policy).running():
                await stop.wait()
            return
        reporter = Reporter(
            policy.services.xds,
            f"ext-proc-{os.getpid()}",
            on_states=lambda states: services.take_states(states),
            watched=lambda: services.watched,
            faults=lambda: services.faults,
            gated=lambda: services.gated,
        )
        services = ObservationServices(policy, reporter.report)
        reporter.start()
        async with services.serving(policy.services.ext_proc, shared_port=worker):
            spare_what_is_loaded()
            log.info("observing on %s, reporting to %s", policy.services.ext_proc, policy.services.xds)
            following = asyncio.create_task(follow(policy_file, services.take_policy))
            await stop.wait()
            log.info("stopping; Envoy serves on unobserved")
            following.cancel()
        await reporter.close(_FLUSH_S)
