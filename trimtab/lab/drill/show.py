"""The drills as a table for people, and as Markdown."""

from collections.abc import Iterator, Mapping, Sequence

from rich.box import SIMPLE
from rich.table import Table

from trimtab.lab.drill.drills import DRILLS
from trimtab.lab.drill.figures import Figures

HEADINGS = (
    "drill",
    "requests",
    "lost",
    "other ends",
    "added ms",
    "P99",
    "gap s",
    "drain s",
    "return s",
    "attempts",
    "kept",
)


def rows(found: Mapping[str, Figures]) -> Iterator[Sequence[str]]:
    """One row for each drill, as `HEADINGS` has its columns."""
    for name, seen in found.items():
        yield (
            name,
            str(seen.requests),
            str(seen.lost),
            ", ".join(f"{count} {outcome}" for outcome, count in sorted(seen.outcomes.items())) or "-",
            f"{seen.added_ms:,.0f}",
            f"{seen.added_p99_ms:,.0f}",
            _number(seen.gap_s),
            _number(seen.drain_s),
            _number(seen.return_s),
            _number(seen.attempts, 2),
            "; ".join(seen.missed(DRILLS[name].bounds)) or "yes",
        )


def table(found: Mapping[str, Figures]) -> Table:
    """For a terminal."""
    made = Table(title="What clients saw", title_justify="left", box=SIMPLE, pad_edge=False)
    for heading in HEADINGS:
        made.add_column(heading, justify="left" if heading in ("drill", "other ends", "kept") else "right")
    for row in rows(found):
        made.add_row(*row)
    return made


def markdown(found: Mapping[str, Figures]) -> str:
    """For a page."""
    lines = [f"| {' | '.join(HEADINGS)} |", f"|{'---|' * len(HEADINGS)}"]
    lines += [f"| `{name}`: {DRILLS[name].about} | {' | '.join(row)} |" for name, *row in rows(found)]
    return "\n".join(lines) + "\n"


def _number(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
