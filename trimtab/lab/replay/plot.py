"""A picture of a replay: how TTFT was spread, and how it went over time."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import quantiles
from typing import Any

from trimtab.process.errors import UserError, ensure_folder, told_if_unwritable
from trimtab.sim.replay.jobs import Made

_BINS = 60  # over the time of arrivals
_LEAST_S = 1e-3  # a logarithmic axis has no 0


def check_plot(path: Path) -> None:
    """Raises UserError if no picture could be drawn there."""
    ensure_folder("--plot", path)
    try:
        from matplotlib.backend_bases import FigureCanvasBase
    except ImportError:
        raise UserError("--plot needs matplotlib: pip install matplotlib") from None
    known = FigureCanvasBase.get_supported_filetypes()
    if path.suffix and path.suffix[1:].lower() not in known:
        raise UserError(f"--plot {path}: a picture cannot be {path.suffix}, only one of {', '.join(sorted(known))}")


def plot(by_strategy: Mapping[str, Sequence[Made]], title: str, path: Path) -> None:
    """Draw the cumulative distribution of TTFT, and its P90 over time, of each strategy over all its seeds."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 5), layout="constrained")
    spread, course = figure.subplots(1, 2)
    for name, made in by_strategy.items():
        ttft_s = sorted(max(_LEAST_S, value) for one in made for value in one.ttft_s)
        spread.plot(ttft_s, [(number + 1) / len(ttft_s) for number in range(len(ttft_s))], label=name)
        times, levels = _over_time(made)
        course.plot(times, levels, label=name)
    spread.set(xscale="log", xlabel="TTFT, s", ylabel="share of the requests", title="Distribution")
    course.set(yscale="log", xlabel="arrival, s", ylabel="P90 of TTFT, s", title="Over time")
    for axes in (spread, course):
        axes.grid(visible=True, alpha=0.3)
    spread.legend(fontsize="small")
    figure.suptitle(title, fontsize="medium")
    with told_if_unwritable("--plot", path):
        figure.savefig(path, dpi=120)


def _over_time(made: Sequence[Made]) -> tuple[list[float], list[float]]:
    length = max((one.arrived_s[-1] for one in made if len(one.arrived_s)), default=0.0) / _BINS or 1.0
    bins: dict[int, list[float]] = defaultdict(list)
    for one in made:
        for arrived_s, ttft_s in zip(one.arrived_s, one.ttft_s, strict=True):
            bins[min(_BINS - 1, int(arrived_s / length))].append(ttft_s)
    times = sorted(bins)
    return [(number + 0.5) * length for number in times], [max(_LEAST_S, _p90(bins[number])) for number in times]


def _p90(values: list[Any]) -> float:
    return float(quantiles(values, n=10)[-1] if len(values) > 1 else values[0])
