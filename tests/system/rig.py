"""A control plane inside the test, so that every observation can be seen; the other parts are processes."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.harness import EnvoyProcess, until
from tests.system.stack import Trimtab, running
from trimtab.observation.kinds import Observation
from trimtab.policy import PolicyFile
from xds_server.config.bootstrap import render_bootstrap
from xds_server.control_plane import ControlPlane


class SeeingPlane(ControlPlane):
    """Keeps every observation that arrives."""

    seen: list[Observation]

    def observe(self, observations: Sequence[Observation]) -> None:
        self.seen.extend(observations)
        super().observe(observations)


@asynccontextmanager
async def observed(folder: Path, policy: Mapping[str, Any]) -> AsyncIterator[tuple[SeeingPlane, Trimtab, EnvoyProcess]]:
    """The control plane here, `trimtab ext-proc` and Envoy as processes of their own, ready to serve."""
    worker = Trimtab(folder, "ext-proc", policy)
    policy_file = PolicyFile(worker.policy_file)
    loaded = policy_file.load()
    plane = SeeingPlane(policy_file, loaded)
    plane.seen = []
    envoy = EnvoyProcess(render_bootstrap(loaded), loaded.services.envoy_admin, folder)
    async with plane, running(worker):
        # Envoy loses the records of the time before.
        await until(lambda: "observing on" in worker.log(), 20, "the ext_proc worker to listen")
        await envoy.start()
        try:
            await worker.wait_serving()
            yield plane, worker, envoy
        finally:
            await envoy.stop()
