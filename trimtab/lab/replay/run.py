"""`trimtab replay`: what each strategy would have done to a trace."""

import json
import os
from collections import defaultdict
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from trimtab.policy import load_policy
from trimtab.policy.model import Pool
from trimtab.process.errors import UserError, told_if_unwritable
from trimtab.sim.replay.arms import UnknownStrategyError, usable_names
from trimtab.sim.replay.figures import over_seeds
from trimtab.sim.replay.fleet import SimulatedFleet, load_fleet
from trimtab.sim.replay.jobs import ArmSpec, Job, Made, run_jobs
from trimtab.sim.replay.simulated import NotSimulatedError
from trimtab.sim.replay.simulation import Conditions
from trimtab.sim.replay.workload import generate
from trimtab.sim.trace import Request, bundled_trace, bundled_traces, load_trace, scale

_ALL = "all"

# A control loop steps ten times in each virtual second: a week of them takes hours.
_LONGEST_S = 7 * 86_400.0

_OF_VALIDATION = frozenset({"validate", "validate_s", "seeds", "report"})
# Options that another one leaves nothing to do: the idle one, the other, and why.
_IDLE = (
    ("strategies", "compare", "the two policies have their own"),
    ("policy", "compare", "it takes two policies as they stand"),
    ("rate", "clients", "in a closed loop a client sends when it has its answer"),
    ("speed", "clients", "in a closed loop a client sends when it has its answer"),
    ("cut_after_s", "clients", "in a closed loop each request is followed to its end"),
    ("as_markdown", "as_json", "give one of them"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What was asked for on the command line."""

    fleet: str
    strategies: str
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


def refuse_idle_options(given: Set[str]) -> None:
    """Raises UserError if one of the options that were `given`, by parameter, would be passed over in silence."""
    if "validate" in given:
        for name in sorted(given - _OF_VALIDATION):
            raise UserError(f"{_flag(name)} is of no use with --validate, whose scenario is fixed: remove one of them")
    elif "validate_s" in given:
        raise UserError("--validate-s is of no use without --validate")
    for idle, other, why in _IDLE:
        if idle in given and other in given:
            raise UserError(f"{_flag(idle)} is of no use with {_flag(other)}: {why}")
    if "pool" in given and not given & {"policy", "compare"}:
        raise UserError("--pool is of no use without the --policy or --compare whose pool it names")


def _flag(name: str) -> str:
    return f"--{name.removeprefix('as_').replace('_', '-')}"


def make_replays(wanted: Wanted, console: Console) -> tuple[dict[str, Any], dict[str, list[Made]]]:
    """Make the replays. Returns the report, and by strategy the replays with each seed.

    `console` is told what of a policy is of no effect here. Raises UserError, PolicyError or TraceError.
    """
    fleet = load_fleet(wanted.fleet)
    specs = _specs(wanted, fleet, console)
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
    _refuse_endless(traces, wanted, conditions)
    jobs = [Job(trace, fleet, spec, seed, conditions) for spec in specs for seed, trace in enumerate(traces, start=1)]
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("requests", total=sum(len(job.trace) for job in jobs))
        made = run_jobs(
            jobs, wanted.processes or os.cpu_count() or 1, lambda ended: progress.update(task, completed=ended)
        )
    by_strategy: dict[str, list[Made]] = defaultdict(list)
    for job, result in zip(jobs, made, strict=True):
        by_strategy[job.spec.name].append(result)
    strategies = {name: over_seeds([one.figures for one in results]) for name, results in by_strategy.items()}
    report = {
        "strategies": strategies,
        "seeds": wanted.seeds,
        "fleet": fleet.name,
        "trace": _trace_name(wanted, fleet),
        "speed": wanted.speed,
        "length": wanted.length,
        "requests": len(traces[0]),
        "base": base,
        "kinds": {endpoint.name: endpoint.kind.name for endpoint in fleet.endpoints},
    }
    return report, dict(by_strategy)


def _refuse_endless(traces: Sequence[Sequence[Request]], wanted: Wanted, conditions: Conditions) -> None:
    if conditions.clients is not None:
        if wanted.speed != 1:
            raise UserError("--speed is of no use here: the workload of the fleet is a closed loop of clients")
        return
    longest_s = max(trace[-1].arrival_s for trace in traces)
    if longest_s > _LONGEST_S:
        raise UserError(
            f"the requests of {wanted.trace or wanted.fleet} arrive over {longest_s / 3600:,.0f} hours, and "
            f"{_LONGEST_S / 3600:g} is the most: let them come faster (--speed, --rate), or take fewer (--requests)"
        )


def _specs(wanted: Wanted, fleet: SimulatedFleet, console: Console) -> list[ArmSpec]:
    if wanted.compare:
        names = _distinct(wanted.compare)
        specs = [
            ArmSpec(name, _pool(path, wanted.pool), whole=True)
            for name, path in zip(names, wanted.compare, strict=True)
        ]
    else:
        policy = _pool(wanted.policy, wanted.pool) if wanted.policy is not None else None
        specs = [ArmSpec(name, policy) for name in _strategy_names(wanted, fleet, policy)]
    told = set()
    for spec in specs:
        try:
            arm = spec.arm(fleet)
        except UnknownStrategyError as error:
            raise UserError(f"--strategies: {error}") from None
        except NotSimulatedError as error:
            raise UserError(f"{spec.name}: {error}") from None
        for line in arm.lost:
            # Under one policy several strategies lose the same.
            if (told_as := f"{spec.name}: {line}" if wanted.compare else line) not in told:
                told.add(told_as)
                console.print(told_as, style="yellow", highlight=False, soft_wrap=True)
    return specs


def _strategy_names(wanted: Wanted, fleet: SimulatedFleet, policy: Pool | None) -> Sequence[str]:
    names: dict[str, None] = {}
    for name in filter(None, map(str.strip, wanted.strategies.split(","))):
        names |= dict.fromkeys(usable_names(fleet, policy) if name == _ALL else (name,))
    if not names:
        raise UserError("--strategies: no strategy is named")
    return list(names)


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
    """The report as JSON. Raises UserError if the file cannot be written."""
    with told_if_unwritable("--report", path):
        path.write_text(json.dumps(report, indent=2) + "\n")
