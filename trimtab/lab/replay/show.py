"""How the report of a replay is shown."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean, pstdev
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

_TTFT = ("mean", "p50", "p90", "p99")
_TTFT_HEADINGS = ("mean", "P50", "P90", "P99")
_ONE_SEED = "; one seed: a difference may be chance, which --seeds 3 shows"

Rows = Mapping[str, Sequence[str]]

_MOST_COLUMNS = 8  # engines; a larger fleet is shown kind by kind


def show(report: Mapping[str, Any], console: Console) -> None:
    """The report as tables for people."""
    console.print(title(report), highlight=False)
    for note, headings, rows in _tables(report):
        console.print(show_table(note, headings, rows))
    for name, strategy in report["strategies"].items():
        if strategy["errors"]:
            errors = ", ".join(f"{count:,.0f} × {error}" for error, count in strategy["errors"].items())
            console.print(f"{name}: {errors}", highlight=False)


def markdown(report: Mapping[str, Any]) -> str:
    """The report as tables in Markdown."""
    lines = [f"{title(report)}."]
    for note, headings, rows in _tables(report):
        lines += ["", f"{note}.", "", *_markdown_table(headings, rows)]
    return "\n".join([*lines, ""])


def title(report: Mapping[str, Any]) -> str:
    """What was replayed, in a line."""
    seeds = f", mean ± deviation over {report['seeds']} seeds" if report["seeds"] > 1 else ""
    engines = len(report["kinds"])
    return f"{report['requests']:,} requests of {report['trace']} on {report['fleet']} ({engines} engines){seeds}"


def _tables(report: Mapping[str, Any]) -> Iterator[tuple[str, Sequence[str], Rows]]:
    """What each table shows, its headings and its rows."""
    strategies = report["strategies"]
    several, base = report["seeds"] > 1, strategies[report["base"]]["ttft_ms"]
    yield (
        f"TTFT in seconds; × is by that of {report['base']}{'' if several else _ONE_SEED}",
        (*_TTFT_HEADINGS, *(f"× {heading}" for heading in _TTFT_HEADINGS)),
        {
            name: (*_ttft(strategy, several), *_ratios(strategy["ttft_ms"], base))
            for name, strategy in strategies.items()
        },
    )
    yield (
        "Time per output token (TPOT) in ms, end to end (e2e) in seconds; spread is that of utilisation over engines",
        ("TPOT", "e2e", "tokens/s", "success", "retries", "refused", "preempted", "pushes", "spread"),
        {name: _others(strategy) for name, strategy in strategies.items()},
    )
    columns = _engine_columns(report["kinds"])
    each = "engine" if len(columns) == len(report["kinds"]) else "kind of engine (± spread within it)"
    yield (
        f"Share of the answers / utilisation (sequences in use) of each {each}, in %",
        tuple(columns),
        {
            name: tuple(_engines(strategy, members) for members in columns.values())
            for name, strategy in strategies.items()
        },
    )


def _ttft(strategy: Mapping[str, Any], with_deviation: bool) -> Iterator[str]:
    ttft, deviation = strategy["ttft_ms"], strategy["ttft_ms_deviation"]
    for key in _TTFT:
        yield _seconds(ttft[key]) + (f" ±{_seconds(deviation[key])}" if with_deviation else "")


def _ratios(ttft: Mapping[str, float], base: Mapping[str, float]) -> Iterator[str]:
    return (_digits(ttft[key] / base[key]) if base[key] else "?" for key in _TTFT)


def _others(strategy: Mapping[str, Any]) -> Sequence[str]:
    return (
        f"{strategy['tpot_ms'].get('mean', 0):.1f}",
        _seconds(strategy["e2e_ms"].get("mean", 0)),
        f"{strategy['output_tokens_per_s']:,.0f}",
        f"{strategy['success']:.2%}",
        *(f"{strategy[key]:,.0f}" for key in ("retries", "refused", "preemptions", "pushes")),
        f"{strategy['utilisation_spread']:.2f}",
    )


def _engine_columns(kind_of: Mapping[str, str]) -> Mapping[str, Sequence[str]]:
    """The engines that are shown together, by heading."""
    if len(kind_of) <= _MOST_COLUMNS:
        return {name: [name] for name in kind_of}
    groups = {kind: [name for name in kind_of if kind_of[name] == kind] for kind in dict.fromkeys(kind_of.values())}
    return {f"{len(members)} {kind}": members for kind, members in groups.items()}


def _engines(strategy: Mapping[str, Any], members: Sequence[str]) -> str:
    answered = sum(strategy["share"].values()) or 1
    share = sum(strategy["share"][name] for name in members) / answered
    used = [100 * strategy["utilisation"][name] for name in members]
    spread = f" ±{pstdev(used):.0f}" if len(used) > 1 else ""
    return f"{100 * share:.1f} / {fmean(used):.0f}{spread}"


def _seconds(milliseconds: float) -> str:
    return _digits(milliseconds / 1000)


def _digits(value: float) -> str:
    """Three digits that count, where there are so many."""
    if value >= 99.95:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 9.995 else f"{value:.2f}" if value >= 0.9995 else f"{value:.3f}"


def _markdown_table(headings: Sequence[str], rows: Rows) -> list[str]:
    lines = [
        ("strategy", *headings),
        *[("---",) * (len(headings) + 1)],
        *((f"`{name}`", *row) for name, row in rows.items()),
    ]
    return ["| " + " | ".join(line) + " |" for line in lines]


def show_table(title: str, headings: Sequence[str], rows: Rows) -> Table:
    """A table whose first column is a name and whose others are numbers."""
    table = Table(title=title, title_justify="left", box=SIMPLE, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("strategy", no_wrap=True)
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    for name, row in rows.items():
        table.add_row(name, *row)
    return table
