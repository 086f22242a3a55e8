"""How the report of a replay is shown."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

_TTFT = ("mean", "p50", "p90", "p99")

Rows = Mapping[str, Sequence[str]]

_LAW_NOTE = (
    "TTFT and end to end in seconds, time per output token (TPOT) in ms; × is P99 by that of {base}; "
    "spread of utilisation (sequences in use) over engines"
)
_ONE_SEED = "; one seed: a difference may be chance, which --seeds 3 shows"
_ENGINE_NOTE = "Share of the answers / utilisation of each kind of engine, in %; retries, refusals, preemptions, pushes"


def show(report: Mapping[str, Any], console: Console) -> None:
    """The report as tables for people."""
    console.print(title(report), highlight=False)
    console.print(_law_table(report))
    console.print(_engine_table(report))
    for name, law in report["laws"].items():
        if law["errors"]:
            errors = ", ".join(f"{count:,.0f} × {error}" for error, count in law["errors"].items())
            console.print(f"{name}: {errors}", highlight=False)


def markdown(report: Mapping[str, Any]) -> str:
    """The report as tables in Markdown."""
    headings, rows = _law_rows(report)
    lines = [f"{title(report)}. {_law_note(report)}.", "", *_markdown_table(headings, rows)]
    headings, rows = _engine_rows(report)
    return "\n".join([*lines, "", f"{_ENGINE_NOTE}.", "", *_markdown_table(headings, rows), ""])


def title(report: Mapping[str, Any]) -> str:
    """What was replayed, in a line."""
    seeds = f", mean ± deviation over {report['seeds']} seeds" if report["seeds"] > 1 else ""
    engines = len(report["kinds"])
    return f"{report['requests']:,} requests of {report['trace']} on {report['fleet']} ({engines} engines){seeds}"


def _law_table(report: Mapping[str, Any]) -> Table:
    headings, rows = _law_rows(report)
    return show_table(_law_note(report), headings, rows)


def _law_note(report: Mapping[str, Any]) -> str:
    return _LAW_NOTE.format(**report) + (_ONE_SEED if report["seeds"] == 1 else "")


def _engine_table(report: Mapping[str, Any]) -> Table:
    headings, rows = _engine_rows(report)
    return show_table(_ENGINE_NOTE, headings, rows)


def _law_rows(report: Mapping[str, Any]) -> tuple[Sequence[str], Rows]:
    base_p99 = report["laws"][report["base"]]["ttft_ms"]["p99"]
    several = report["seeds"] > 1
    rows = {}
    for name, law in report["laws"].items():
        ttft, deviation = law["ttft_ms"], law["ttft_ms_deviation"]
        rows[name] = (
            *(_seconds(ttft[key]) + (f" ±{_seconds(deviation[key])}" if several else "") for key in _TTFT),
            _digits(ttft["p99"] / base_p99) if base_p99 else "?",
            f"{law['tpot_ms'].get('mean', 0):.1f}",
            _seconds(law["e2e_ms"].get("mean", 0)),
            f"{law['output_tokens_per_s']:,.0f}",
            f"{law['success']:.2%}",
            f"{law['utilisation_spread']:.2f}",
        )
    return ("mean", "P50", "P90", "P99", "×", "TPOT", "e2e", "tokens/s", "success", "spread"), rows


def _engine_rows(report: Mapping[str, Any]) -> tuple[Sequence[str], Rows]:
    kind_of = report["kinds"]
    groups = {kind: [name for name in kind_of if kind_of[name] == kind] for kind in dict.fromkeys(kind_of.values())}
    rows = {}
    for name, law in report["laws"].items():
        answered = sum(law["share"].values()) or 1
        rows[name] = (
            *(
                f"{100 * sum(law['share'][one] for one in members) / answered:.1f} / "
                f"{100 * fmean(law['utilisation'][one] for one in members):.0f}"
                for members in groups.values()
            ),
            *(f"{law[key]:,.0f}" for key in ("retries", "refused", "preemptions", "pushes")),
        )
    headings = (f"{len(members)} {kind}" for kind, members in groups.items())
    return (*headings, "retries", "refused", "preempted", "pushes"), rows


def _seconds(milliseconds: float) -> str:
    return _digits(milliseconds / 1000)


def _digits(value: float) -> str:
    """Three digits that count, where there are so many."""
    if value >= 99.95:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 9.995 else f"{value:.2f}" if value >= 0.9995 else f"{value:.3f}"


def _markdown_table(headings: Sequence[str], rows: Rows) -> list[str]:
    lines = [
        ("law", *headings),
        *[("---",) * (len(headings) + 1)],
        *((f"`{name}`", *row) for name, row in rows.items()),
    ]
    return ["| " + " | ".join(line) + " |" for line in lines]


def show_table(title: str, headings: Sequence[str], rows: Rows) -> Table:
    """A table whose first column is a name and whose others are numbers."""
    table = Table(title=title, title_justify="left", box=SIMPLE, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("law", no_wrap=True)
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    for name, row in rows.items():
        table.add_row(name, *row)
    return table
