"""`trimtab replay`: what each law would have done to a trace."""

import json
import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from trimtab.cli.errors import UserError
from trimtab.policy import load_policy
from trimtab.policy.model import Pool
from trimtab.sim.replay.arms import UnknownLawError, make_arm, usable_names
from trimtab.sim.replay.figures import over_seeds
from trimtab.sim.replay.fleet import SimulatedFleet, load_fleet
from trimtab.sim.replay.jobs import ArmSpec, Job, Made, run_jobs
from trimtab.sim.replay.simulation import Conditions
from trimtab.sim.replay.workload import generate
from trimtab.sim.trace import Request, bundled_trace, bundled_traces, load_trace, scale

_ALL = "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What was asked for on the command line."""

    fleet: str
    laws: str
    trace: str | None = None
    policy: Path | None = None
    pool: str | None = None
    compare: Sequence[Path] = ()
    speed: float = 1
    length: float = 1
    max_prompt: int | None = None
    requests: int | None = None
    rate_per_s: float | None = None
    seeds: int = 1
    base: str | None = None
    processes: int | None = None
    conditions: Conditions = Conditions()  # noqa: RUF009 - it is frozen


def make_replays(wanted: Wanted, console: Console) -> tuple[dict[str, Any], dict[str, list[Made]]]:
    """Make the replays. Returns the report, and by law the replays with each seed."""
    fleet = load_fleet(wanted.fleet)
    specs = _specs(wanted, fleet)
    base = _base(wanted.base, [spec.name for spec in specs])
    traces = [_trace(wanted, fleet, seed) for seed in range(1, wanted.seeds + 1)]
    conditions = wanted.conditions
    if wanted.trace is None and fleet.workload is not None:
        own = fleet.workload
        conditions = replace(
            conditions,
            clients=own.clients if conditions.clients is None else conditions.clients,
            patience_s=own.patience_s if conditions.patience_s is None else conditions.patience_s,
        )
    jobs = [Job(trace, fleet, spec, seed, conditions) for spec in specs for seed, trace in enumerate(traces, start=1)]
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("requests", total=sum(len(job.trace) for job in jobs))
        made = run_jobs(
            jobs, wanted.processes or os.cpu_count() or 1, lambda ended: progress.update(task, completed=ended)
        )
    by_law: dict[str, list[Made]] = defaultdict(list)
    for job, result in zip(jobs, made, strict=True):
        by_law[job.spec.name].append(result)
    laws = {name: over_seeds([one.figures for one in results]) for name, results in by_law.items()}
    report = {
        "laws": laws,
        "seeds": wanted.seeds,
        "fleet": fleet.name,
        "trace": _trace_name(wanted, fleet),
        "speed": wanted.speed,
        "length": wanted.length,
        "requests": len(traces[0]),
        "base": base,
        "kinds": {endpoint.name: endpoint.kind.name for endpoint in fleet.endpoints},
    }
    return report, dict(by_law)


def _specs(wanted: Wanted, fleet: SimulatedFleet) -> list[ArmSpec]:
    if wanted.compare:
        names = _distinct(wanted.compare)
        return [
            ArmSpec(name, _pool(path, wanted.pool), whole=True)
            for name, path in zip(names, wanted.compare, strict=True)
        ]
    policy = _pool(wanted.policy, wanted.pool) if wanted.policy is not None else None
    names = [name.strip() for name in wanted.laws.split(",") if name.strip()]
    if names == [_ALL]:
        names = usable_names(fleet)
    if not names:
        raise UserError("--laws: no law is named")
    specs = [ArmSpec(name, policy) for name in dict.fromkeys(names)]
    for spec in specs:
        try:
            make_arm(spec.name, fleet, policy)
        except UnknownLawError as error:
            raise UserError(f"--laws: {error}") from None
    return specs


def _distinct(paths: Sequence[Path]) -> Sequence[str]:
    """A short name for each file."""
    stems = [path.stem for path in paths]
    if len(set(stems)) == len(stems):
        return stems
    if len(set(paths)) < len(paths):
        raise UserError(f"--compare {paths[0]}: it cannot be compared with itself")
    return [str(path) for path in paths]


def _pool(path: Path, name: str | None) -> Pool:
    pools = {pool.name: pool for pool in load_policy(path).pools}
    if name is None:
        return next(iter(pools.values()))
    if name not in pools:
        raise UserError(f"--pool {name}: {path} has {', '.join(pools)}")
    return pools[name]


def _trace(wanted: Wanted, fleet: SimulatedFleet, seed: int) -> list[Request]:
    if wanted.trace is None:
        if fleet.workload is None:
            raise UserError(f"{fleet.name} has no workload of its own: name a --trace")
        changes: dict[str, Any] = {}
        if wanted.requests is not None:
            changes["requests"] = wanted.requests
        if wanted.rate_per_s is not None:
            if fleet.workload.rate_per_s is None:
                raise UserError(f"--rate: the workload of {fleet.name} is a closed loop of clients")
            changes["rate_per_s"] = wanted.rate_per_s
        trace = generate(fleet.workload.model_copy(update=changes), seed)
    else:
        if wanted.rate_per_s is not None:
            raise UserError("--rate is for a fleet's own workload; a trace is made faster by --speed")
        try:
            trace = bundled_trace(wanted.trace) if wanted.trace in bundled_traces() else load_trace(wanted.trace)
        except FileNotFoundError:
            known = ", ".join(bundled_traces())
            raise UserError(f"--trace {wanted.trace}: no such file, and no bundled trace; there are {known}") from None
        except OSError as error:
            raise UserError(f"{error.filename}: {error.strerror}") from None
        trace = trace[: wanted.requests]
    return scale(trace, speed=wanted.speed, prompt_factor=wanted.length, max_prompt=wanted.max_prompt)


def _trace_name(wanted: Wanted, fleet: SimulatedFleet) -> str:
    name = f"{fleet.name}'s own workload" if wanted.trace is None else Path(wanted.trace).name
    return name + (f" × {wanted.speed:g}" if wanted.speed != 1 else "")


def _base(base: str | None, names: Sequence[str]) -> str:
    if base is not None and base not in names:
        raise UserError(f"--base {base}: it is none of {', '.join(names)}")
    return base or names[0]


def write_report(report: Mapping[str, Any], path: Path) -> None:
    """The report as JSON."""
    path.write_text(json.dumps(report, indent=2) + "\n")
