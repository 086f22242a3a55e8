"""What readers of engines have in common: a task for each thing that is read, as pools and policies come and go."""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence, Set
from typing import Generic, Protocol, TypeVar

from trimtab.policy.model import Pool
from trimtab.pool import EndpointSpec
from xds_server.access import unforeseen

logger = logging.getLogger(__name__)

_BEGIN_ANEW_S = 10.0


class Job(Protocol):
    """What one task reads. Equal jobs are one; its text names the task."""

    @property
    def pool(self) -> str:
        """The pool's name."""


_J = TypeVar("_J", bound=Job)


class PoolReader(ABC, Generic[_J]):
    """Reads for the pools that it is told of, until `close`. A job that stays as it was keeps its task, and its pace.

    Everything runs on the event loop of the caller.
    """

    def __init__(self) -> None:
        self._endpoints: dict[str, tuple[EndpointSpec, ...]] = {}
        self._tasks: dict[_J, asyncio.Task[None]] = {}

    def update(self, pool: Pool, endpoints: Sequence[EndpointSpec]) -> None:
        """Read for these endpoints of `pool` from now on."""
        self._endpoints[pool.name] = tuple(endpoints)
        self._aim(pool.name, self._jobs(pool, endpoints))

    def reconfigure(self, pools: Iterable[Pool]) -> None:
        """Take the sources of a new policy for the known endpoints; those of a pool that is gone are left."""
        kept = {pool.name: pool for pool in pools}
        for name in self._endpoints.keys() - kept.keys():
            del self._endpoints[name]
            self._aim(name, set())
        for name, endpoints in self._endpoints.items():
            self._aim(name, self._jobs(kept[name], endpoints))

    async def close(self) -> None:
        """Stop all reading, and wait until it has stopped."""
        tasks = list(self._tasks.values())
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @abstractmethod
    def _jobs(self, pool: Pool, endpoints: Sequence[EndpointSpec]) -> Set[_J]:
        """What is to be read for a pool."""

    @abstractmethod
    async def _run(self, job: _J) -> None:
        """Read it, again and again."""

    def _aim(self, pool: str, wanted: Set[_J]) -> None:
        for job in [job for job in self._tasks if job.pool == pool and job not in wanted]:
            self._tasks.pop(job).cancel()
            self._dropped(job)
        for job in wanted - self._tasks.keys():
            self._tasks[job] = asyncio.create_task(self._keep_running(job), name=str(job))

    async def _keep_running(self, job: _J) -> None:
        """Begin anew when a job ends in a way that nobody foresaw."""
        said = ""
        while True:
            try:
                await self._run(job)
            except Exception as error:
                if said != (said := unforeseen(error)):
                    logger.exception("pool %s: %s ended, and begins anew every %g s", job.pool, job, _BEGIN_ANEW_S)
            await asyncio.sleep(_BEGIN_ANEW_S)

    def _dropped(self, job: _J) -> None:
        """Called for what is read no longer."""
