"""Running the observers alone, beside a control plane in another process."""

import asyncio
import logging
import os
from pathlib import Path

from ext_proc.report import Reporter
from trimtab.cli.observers import Observers, Workers
from trimtab.cli.stopping import stop_signal
from trimtab.policy import PolicyError, PolicyFile

log = logging.getLogger(__name__)

_RELOAD_PERIOD_S = 1.0
_FLUSH_S = 2.0


async def observe(policy_path: Path, *, worker: bool) -> None:
    """The observers alone; they report to the control plane at `services.xds`."""
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
            watched=lambda: observers.watched,
            faults=lambda: observers.faults,
        )
        observers = Observers(policy, reporter.report)
        reporter.start()
        async with observers.serving(policy.services.ext_proc, shared_port=worker):
            log.info("observing on %s, reporting to %s", policy.services.ext_proc, policy.services.xds)
            follow = asyncio.create_task(_follow(policy_file, observers))
            await stop.wait()
            log.info("stopping; Envoy serves on unobserved")
            follow.cancel()
        await reporter.close(_FLUSH_S)


async def _follow(policy_file: PolicyFile, observers: Observers) -> None:
    while True:
        await asyncio.sleep(_RELOAD_PERIOD_S)
        try:
            policy = policy_file.poll()
        except PolicyError as error:
            log.error("%s; the last good policy stays in force", error)
            continue
        if policy is not None:
            observers.take_policy(policy)
