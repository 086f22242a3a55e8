"""Many replays on several cores."""

import multiprocessing
from array import array
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from trimtab.policy.model import Pool
from trimtab.sim.replay.arms import Arm, make_arm, policy_arm
from trimtab.sim.replay.figures import figures, ttft_s
from trimtab.sim.replay.fleet import SimulatedFleet
from trimtab.sim.replay.simulation import Conditions, Simulation
from trimtab.sim.trace import Request

_REFRESH_S = 0.2


@dataclass(frozen=True, slots=True)
class ArmSpec:
    """What an arm is made of, in another process too."""

    name: str
    policy: Pool | None = None
    whole: bool = False  # the arm is what the policy says, whatever its name

    def arm(self, fleet: SimulatedFleet) -> Arm:
        """The arm in front of `fleet`. Raises UnknownLawError or NotSimulatedError."""
        if self.whole and self.policy is not None:
            return policy_arm(self.name, fleet, self.policy)
        return make_arm(self.name, fleet, self.policy)


@dataclass(frozen=True, slots=True)
class Job:
    """One replay to be made."""

    trace: Sequence[Request]
    fleet: SimulatedFleet
    spec: ArmSpec
    seed: int
    conditions: Conditions


@dataclass(frozen=True, slots=True)
class Made:
    """A job that is done: its figures, and for each request when it arrived and its TTFT [s]."""

    job: int  # its place among the jobs
    figures: dict[str, Any]
    arrived_s: "array[float]"
    ttft_s: "array[float]"


def run_jobs(jobs: Sequence[Job], processes: int, on_progress: Callable[[int], None]) -> list[Made]:
    """Make the replays, in the order of `jobs`. `on_progress` hears now and then how many requests have ended."""
    if processes <= 1 or len(jobs) == 1:
        return [_run(number, job, _adding(jobs[:number], on_progress)) for number, job in enumerate(jobs)]
    context = multiprocessing.get_context("spawn")  # the caller may have threads
    ended = context.Array("q", len(jobs), lock=False)
    with ProcessPoolExecutor(min(processes, len(jobs)), context, _share, (ended,)) as pool:
        running = [pool.submit(_run_shared, number, job) for number, job in enumerate(jobs)]
        with _cancelling(pool):
            while wait(running, _REFRESH_S).not_done:
                on_progress(sum(ended))
                if any(one.done() and one.exception() for one in running):
                    break
            return [one.result() for one in running]


@contextmanager
def _cancelling(pool: ProcessPoolExecutor) -> Iterator[None]:
    """What has not begun is not begun after an error or Ctrl-C."""
    try:
        yield
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        raise


def _adding(before: Sequence[Job], on_progress: Callable[[int], None]) -> Callable[[int], None]:
    done = sum(len(job.trace) for job in before)
    return lambda ended: on_progress(done + ended)


_ended: Any = None  # in a child: how many requests of each job have ended


def _share(ended: Any) -> None:
    global _ended
    _ended = ended


def _run_shared(number: int, job: Job) -> Made:
    def notify(ended: int) -> None:
        _ended[number] = ended

    return _run(number, job, notify)


def _run(number: int, job: Job, on_progress: Callable[[int], None]) -> Made:
    replay = Simulation(job.trace, job.fleet, job.spec.arm(job.fleet), job.seed, job.conditions, on_progress).run()
    on_progress(len(job.trace))
    return Made(
        number,
        figures(replay),
        array("d", (one.arrived_s for one in replay.served)),
        array("d", (ttft_s(one, replay.ended_s) for one in replay.served)),
    )
