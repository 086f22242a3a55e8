"""`trimtab replay --validate`: one scenario in virtual time and on real Envoys, side by side."""

import asyncio
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console

from trimtab.lab.demo.arms import FLEET, MAX_QUEUED_REQS, MODEL, demo_policy, running
from trimtab.lab.demo.run import CUT_AFTER_LAST_S, SPEED
from trimtab.lab.progress import told
from trimtab.lab.replay.show import show_table
from trimtab.policy.model import Pool
from trimtab.sim.client import replay, summarise
from trimtab.sim.process import EngineAddress
from trimtab.sim.replay.arms import make_arm, policy_arm
from trimtab.sim.replay.figures import figures
from trimtab.sim.replay.fleet import SimulatedEndpoint, SimulatedFleet
from trimtab.sim.replay.simulation import Conditions, Simulation
from trimtab.sim.trace import Request, bundled_trace, cut, scale

ARMS: Mapping[str, str] = {
    "round_robin": "round_robin",
    "least_request": "least_request",
    "capacity": "capacity",
    "trimtab": "predicted_ttft",
}
"""The demo's arms, and the strategies that they stand for."""

_CHANCES = 20  # virtual runs of each arm: where a request goes is a matter of chance, and P99 is that of three
_COMPARED = ("p50", "p99")
_TOLERANCE = 0.25
_SETTLE_S = 1.0


def validate(seconds: float, runs: int, console: Console) -> dict[str, Any]:
    """Run every arm of the demo, without its fault, `runs` times for real and many times in virtual time.

    Of each side the medians are compared, and whether each real P50 and P99 lies within what chance did to the virtual
    ones.
    """
    piece = cut(scale(bundled_trace("azure23_conv"), speed=SPEED), seconds)
    console.print(
        f"{len(piece)} requests in {seconds:g} s; all that is open {CUT_AFTER_LAST_S:g} s after the last is cut off",
        highlight=False,
    )
    virtual = {strategy: _virtual(arm, strategy, piece) for arm, strategy in ARMS.items()}
    real: dict[str, list[dict[str, Any]]] = {strategy: [] for strategy in ARMS.values()}
    for run in range(runs):
        for arm, strategy in ARMS.items():
            about = f"on real Envoy, run {run + 1} of {runs}"
            with told(arm, about, console), console.status(f"{arm} {about}"):
                real[strategy].append(asyncio.run(_real(arm, piece, seed=run)))
    rows: dict[str, dict[str, Any]] = {}
    for strategy in ARMS.values():
        seen, said = _medians(real[strategy]), _medians(virtual[strategy])
        of_runs = {
            key: {"real": _sorted(real[strategy], key), "virtual": _sorted(virtual[strategy], key)} for key in _COMPARED
        }
        rows[strategy] = {
            "real": seen,
            "virtual": said,
            "error": {key: said["ttft_ms"][key] / seen["ttft_ms"][key] - 1 for key in _COMPARED},
            "runs_ms": of_runs,
            "in_range": {key: _is_in_range(**runs) for key, runs in of_runs.items()},
        }
    ranking = {side: sorted(rows, key=lambda strategy: _rank(rows[strategy][side])) for side in ("real", "virtual")}
    report = {
        "strategies": rows,
        "ranking": ranking,
        "ranking_agrees": ranking["real"] == ranking["virtual"],
        "within": {key: all(abs(row["error"][key]) <= _TOLERANCE for row in rows.values()) for key in _COMPARED},
        "in_range": {key: all(row["in_range"][key] for row in rows.values()) for key in _COMPARED},
    }
    _show(report, console)
    return report


def _virtual(arm: str, strategy: str, piece: Sequence[Request]) -> list[dict[str, Any]]:
    fleet = SimulatedFleet(
        "demo",
        "",
        tuple(
            SimulatedEndpoint(
                kind.name, f"127.0.0.1:{number}", replace(kind, max_num_queued_reqs=MAX_QUEUED_REQS), capacity
            )
            for number, (kind, capacity) in enumerate(FLEET, start=1)
        ),
        None,
    )
    if arm == "trimtab":
        addresses = [EngineAddress(one.name, one.kind.name, one.address, 0) for one in fleet.endpoints]
        made = policy_arm(strategy, fleet, Pool.model_validate(demo_policy(addresses, strategy)["pools"][0]))
    else:
        made = make_arm(strategy, fleet)
    conditions = Conditions(cut_after_last_s=CUT_AFTER_LAST_S)
    runs = [figures(Simulation(piece, fleet, made, seed, conditions).run()) for seed in range(1, _CHANCES + 1)]
    return [{key: run[key] for key in ("ttft_ms", "success", "share")} for run in runs]


def _sorted(runs: Sequence[Mapping[str, Any]], key: str) -> list[float]:
    return sorted(run["ttft_ms"][key] for run in runs)


def _is_in_range(real: Sequence[float], virtual: Sequence[float]) -> bool:
    low, high = virtual[0] / (1 + _TOLERANCE), virtual[-1] * (1 + _TOLERANCE)
    return all(low <= value <= high for value in real)


def _span(values: Sequence[float]) -> str:
    return f"{values[0]:,.0f}..{values[-1]:,.0f}" if len(values) > 1 else ""


def _medians(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    ttft = {key: median(run["ttft_ms"][key] for run in runs) for key in ("mean", "p50", "p90", "p99")}
    share = {kind.name: median(run["share"].get(kind.name, 0) for run in runs) for kind, _ in FLEET}
    return {"ttft_ms": ttft, "success": median(run["success"] for run in runs), "share": share}


async def _real(arm: str, piece: Sequence[Request], seed: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="trimtab-validate-") as folder:
        async with running(arm, Path(folder)) as started:
            await asyncio.sleep(_SETTLE_S)
            results = await replay(started.url, piece, model=MODEL, seed=seed, cut_after_last_s=CUT_AFTER_LAST_S)
            summary = summarise(results)
    return {
        "ttft_ms": summary["ttft_ms"],
        "success": summary["succeeded"] / summary["requests"],
        "share": summary["share"],
    }


def _rank(side: Mapping[str, Any]) -> float:
    mean: float = side["ttft_ms"]["mean"]
    return mean


def _show(report: Mapping[str, Any], console: Console) -> None:
    rows = {}
    for strategy, row in report["strategies"].items():
        for side in ("real", "virtual"):
            ttft, share = row[side]["ttft_ms"], row[side]["share"]
            off = " / ".join(f"{row['error'][key]:+.0%}" for key in _COMPARED) if side == "virtual" else ""
            rows[f"{strategy} {side}"] = (
                *(f"{ttft[key]:,.0f}" for key in ("mean", "p50", "p90", "p99")),
                off,
                *(_span(row["runs_ms"][key][side]) for key in _COMPARED),
                f"{row[side]['success']:.1%}",
                " / ".join(f"{share[kind.name]:.0f}" for kind, _ in FLEET),
            )
    engines = " / ".join(kind.name for kind, _ in FLEET)
    headings = ("mean", "P50", "P90", "P99", "off", "P50s", "P99s", "success", "share")
    note = (
        f"TTFT in ms, medians of the runs; off: virtual by real, P50 / P99; P50s, P99s: from run to run; "
        f"share: answered by {engines}"
    )
    console.print(show_table(note, headings, rows))
    same = "the same ranking" if report["ranking_agrees"] else f"rankings differ: {report['ranking']}"
    console.print(f"{same} by mean TTFT", highlight=False)
    for key in _COMPARED:
        for holds, what in (
            (report["within"][key], f"the median {key.upper()} within {_TOLERANCE:.0%}"),
            (
                report["in_range"][key],
                f"every real {key.upper()} within what chance does in virtual time, and {_TOLERANCE:.0%}",
            ),
        ):
            console.print(f"{'yes' if holds else 'no':3} {what}", highlight=False)
