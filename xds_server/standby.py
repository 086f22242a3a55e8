"""Standing by for the control plane: an Envoy that starts while it is away gets what it served last."""

import asyncio
import logging
import socket
import time
from datetime import datetime
from pathlib import Path

import grpc.aio

from trimtab.policy import PolicyError, load_policy, problem_at
from trimtab.process.listening import bind
from trimtab.process.stopping import stop_signal, unless_stopped
from xds_server.ads.events import XdsEvents
from xds_server.ads.mirror import Mirror, Resources
from xds_server.ads.server import AdsService
from xds_server.ads.snapshot import InconsistentSnapshotError, SnapshotCache
from xds_server.ads.transport import SERVER_OPTIONS
from xds_server.kept_file import kept_path
from xds_server.view_file import ViewFile

log = logging.getLogger(__name__)

_PERIOD_S = 0.5
# Envoy goes over to a control plane that is well again only when its stream ends. While the control plane answers us, a
# stream lasts long enough to take everything over, for an Envoy that cannot reach what we can; else it ends now and
# then, for an Envoy that can reach what we cannot. It costs Envoy nothing: it keeps what it has.
_STREAM_WHILE_ANSWERING_S = 2.0
_STREAM_S = 30.0


async def stand_by(policy_path: Path) -> None:
    """Follow the control plane at `services.xds`, and serve its last view at `services.standby`, until a signal.

    Raises PolicyError, CannotListenError.
    """
    policy = load_policy(policy_path)
    address = policy.services.standby
    if address is None:
        fix = "no address is set for the standby: name one, as in 127.0.0.1:18002, and print Envoy's bootstrap anew"
        raise PolicyError([problem_at(policy_path, ("services", "standby"), fix)])
    path = kept_path(policy, policy_path, suffix=".view")
    mirror = Mirror(policy.services.xds, f"standby@{socket.gethostname()}")
    standby = Standby(mirror, ViewFile(path) if path else None)
    with stop_signal() as stop:
        server = grpc.aio.server(options=SERVER_OPTIONS)
        standby.ads.add_to(server)
        bind(server, address, "services.standby")
        await server.start()
        log.info("standing by on %s for the control plane at %s", address, policy.services.xds)
        try:
            await unless_stopped(stop, standby.run())
        finally:
            standby.ads.close()
            await server.stop(1.0)


class Standby(XdsEvents):
    """Keeps the last full view that `replica` had, in memory and in `file`, for the Envoys that `ads` serves."""

    def __init__(self, mirror: Mirror, file: ViewFile | None) -> None:
        self._mirror = mirror
        self._file = file
        self._cache = SnapshotCache()
        self._changed = asyncio.Event()
        self._seen_at = 0.0  # when the view was in force last, Unix seconds
        self._answers = False
        self._misfit = ""
        self._served: set[str] = set()  # nodes, since the control plane began to answer or ceased to
        self.ads = AdsService(self._cache, self)
        self._restore()

    async def run(self) -> None:
        """Follow, keep and save, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._mirror.follow())
            if self._file is not None:
                tasks.create_task(self._save(self._file))
            while True:
                await asyncio.sleep(_PERIOD_S)
                self._keep()

    def connected(self, node: str, protocol: str) -> None:
        if node in self._served:
            return
        self._served.add(node)
        if self._cache.snapshot is None:
            log.warning("%s asks, but no view is kept yet", node)
        else:
            log.info("%s is served the view of %s", node, self._age())

    def _restore(self) -> None:
        kept = self._file.read() if self._file else None
        if kept is not None:
            resources, self._seen_at = kept
            try:
                self._cache.publish(resources)
            except InconsistentSnapshotError as error:
                log.warning("the view that is kept is not used: %s", error)
        if self._cache.snapshot is None:
            log.warning("no view is kept yet: until the control plane has answered, nothing can be served in its place")
        else:
            log.info("the view of %s is kept", self._age())

    def _keep(self) -> None:
        answers = self._mirror.answers
        if self._mirror.resources is not None and self._take(self._mirror.resources) and answers:
            self._seen_at = time.time()
        if answers != self._answers:
            self._answers = answers
            self._served.clear()
            if answers:
                log.info("the control plane answers; its view is kept, and Envoys are sent back to it")
            else:
                log.warning("the control plane is away: Envoys that ask are served the view of %s", self._age())
        short = answers or self._cache.snapshot is None
        self.ads.hang_up(older_than_s=_STREAM_WHILE_ANSWERING_S if short else _STREAM_S)

    def _take(self, resources: Resources) -> bool:
        """Make `resources` the view, if they are whole."""
        try:
            if self._cache.publish(resources):
                self._changed.set()
        except InconsistentSnapshotError as error:
            if str(error) != self._misfit:
                self._misfit = str(error)
                log.info("the control plane is half way through a change, and the view before it stays: %s", error)
            return False
        self._misfit = ""
        return True

    async def _save(self, file: ViewFile) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            if (snapshot := self._cache.snapshot) is not None:
                await asyncio.to_thread(file.write, snapshot)  # it waits for the disk

    def _age(self) -> str:
        return datetime.fromtimestamp(self._seen_at).isoformat(" ", "seconds")
