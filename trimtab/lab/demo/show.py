"""What the demo shows: a live table while it runs, and the comparison at its end."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE
from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from trimtab.lab.demo.arms import FLEET, Arm
from trimtab.lab.states import state_text
from trimtab.sim.client import Outcome

_TEXT = {"engine", "endpoint", "arm", "state", "why"}


def engine_table() -> Table:
    """The parameters of the simulated engines."""
    table = _table(
        "Simulated engines, the same in every arm",
        ("engine", "prefill tok/s", "step ms", "ms/seq", "KV tokens", "max seqs", "capacity"),
    )
    for kind, capacity in FLEET:
        table.add_row(
            kind.name,
            f"{kind.prefill_tokens_per_s:,.0f}",
            f"{kind.step0_ms:g}",
            f"{kind.per_sequence_ms:g}",
            f"{kind.usable_blocks * kind.block_size:,}",
            str(kind.max_num_seqs),
            str(capacity),
        )
    return table


def live_view(
    arms: Sequence[Arm], endpoints: Sequence[Mapping[str, Any]], elapsed_s: float, total_s: float, note: str
) -> RenderableType:
    """The whole screen at one moment. `endpoints` are rows of Trimtab's /endpoints page."""
    parts: list[RenderableType] = [
        Group(ProgressBar(total=total_s, completed=min(elapsed_s, total_s), width=60), Text(note))
    ]
    if endpoints:
        parts.append(_endpoint_table(endpoints))
    parts.append(_arm_table(arms))
    return Group(*parts)


def _endpoint_table(endpoints: Sequence[Mapping[str, Any]]) -> Table:
    table = _table(
        "Trimtab's endpoints",
        ("endpoint", "weight", "score", "TTFT ms", "in flight", "waiting", "KV %", "state", "why"),
    )
    for row in endpoints:
        ttft_s, signals = row["ttft_s"], row["signals"]
        table.add_row(
            row["labels"].get("gpu", row["name"]),
            f"{row['weight']:,}" if row["takes_work"] else "-",
            f"{row['effective_score']:.0f}",
            "?" if ttft_s is None else f"{1000 * ttft_s:,.0f}",
            str(row["in_flight"]),
            _number(signals["waiting"]),
            _number(signals["kv_usage"], 100),
            state_text(row["state"]),
            Text(row["reason"], overflow="ellipsis"),
        )
    return table


def _arm_table(arms: Sequence[Arm]) -> Table:
    table = _table("So far", ("arm", "sent", "with a token", "ended", "failed"))
    for arm in arms:
        ended = [result for result in arm.results if result.outcome is not None]
        table.add_row(
            arm.name,
            str(len(arm.results)),
            str(sum(bool(result.token_s) for result in arm.results)),
            str(len(ended)),
            str(sum(result.outcome is not Outcome.OK for result in ended)),
        )
    return table


def comparison(summaries: Mapping[str, Mapping[str, Any]]) -> Table:
    """The end of the demo: what clients saw in each arm."""
    engines = [kind.name for kind, _ in FLEET]
    table = _table(
        f"The same arrivals, the same fault. TTFT in ms; share: answered by {' / '.join(engines)}",
        ("arm", "requests", "success", "mean", "P50", "P99", "tokens/s", "share"),
    )
    for name, summary in summaries.items():
        ttft = summary["ttft_ms"]
        table.add_row(
            name,
            str(summary["requests"]),
            f"{summary['succeeded'] / summary['requests']:.1%}",
            f"{ttft['mean']:,.0f}",
            f"{ttft['p50']:,.0f}",
            f"{ttft['p99']:,.0f}",
            f"{summary['output_tokens_per_s']:,.0f}",
            " / ".join(str(summary["share"].get(engine, 0)) for engine in engines),
        )
    return table


def _table(title: str, headings: Sequence[str]) -> Table:
    """A table whose first column is text and whose others are numbers, narrow enough for 80 columns."""
    table = Table(title=title, title_justify="left", box=SIMPLE, pad_edge=False)
    for heading in headings:
        table.add_column(heading, justify="left" if heading in _TEXT else "right", no_wrap=True)
    return table


def _number(value: float | None, factor: float = 1) -> str:
    return "?" if value is None else f"{factor * value:.0f}"
