"""Request traces: when requests came, and how many tokens they had."""

import csv
import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path

from trimtab.policy.words import shortened

_MOST_TOKENS = 10_000_000

_TRACES = resources.files("trimtab").joinpath("data/traces")


@dataclass(frozen=True, slots=True)
class Request:
    """One request of a trace."""

    arrival_s: float  # since the start of the trace
    prompt_tokens: int
    output_tokens: int


class TraceError(ValueError):
    """A trace that cannot be read; the message says where, as `FILE:LINE: what`."""


def load_trace(path: str | Path) -> list[Request]:
    """Read a trace: our own CSV, or a file as Azure, BurstGPT or Mooncake published it.

    A CSV file has a header, which names at least the columns of one of `_LAYOUTS`; lines that begin with # are
    comments. A file whose name ends in .jsonl is Mooncake's. Arrivals must not go backwards. Raises TraceError for
    all that is wrong with the content, OSError if there is no such file.
    """
    path = Path(path)
    with path.open(newline="", encoding="utf-8-sig") as file:
        lines = _Numbered(file)
        try:
            rows = _json_rows if path.suffix == ".jsonl" else _csv_rows
            return list(_requests(str(path), rows(str(path), lines)))
        except UnicodeDecodeError:
            raise TraceError(f"{path}:1: {_not_text(path)}") from None
        except csv.Error as error:
            raise TraceError(f"{path}:{lines.line}: not a CSV file: {error}") from None


def _not_text(path: Path) -> str:
    with path.open("rb") as file:
        start = file.read(2)
    if start == b"\x1f\x8b":
        return "compressed with gzip: unpack it with gunzip"
    return "not UTF-8 text: a trace is a CSV file, or .jsonl as Mooncake's"


def bundled_traces() -> Sequence[str]:
    """The names of the traces that come with Trimtab."""
    return sorted(entry.name.removesuffix(".csv") for entry in _TRACES.iterdir() if entry.name.endswith(".csv"))


def bundled_trace(name: str) -> list[Request]:
    """A trace that comes with Trimtab; its origin and licence are in the .md file beside it.

    `azure23_conv` is the busiest six minutes of a chat service. Raises TraceError for an unknown name.
    """
    known = bundled_traces()
    if name not in known:
        raise TraceError(f"{name}: no such bundled trace, there are {', '.join(known)}")
    with resources.as_file(_TRACES.joinpath(f"{name}.csv")) as path:
        return load_trace(path)


def scale(
    trace: Iterable[Request],
    *,
    speed: float = 1.0,
    prompt_factor: float = 1.0,
    max_prompt: int | None = None,
) -> list[Request]:
    """Play a trace `speed` times as fast, prompts `prompt_factor` times as long, at most `max_prompt`.

    Raises ValueError for a number that is not positive.
    """
    longest = math.inf if max_prompt is None else max_prompt
    if min(speed, prompt_factor, longest) <= 0:
        raise ValueError("speed, prompt_factor and max_prompt must be positive")
    return [
        replace(
            request,
            arrival_s=request.arrival_s / speed,
            prompt_tokens=int(min(longest, max(1, round(request.prompt_tokens * prompt_factor)))),
        )
        for request in trace
    ]


def cut(trace: Iterable[Request], seconds: float) -> list[Request]:
    """The requests that arrive in the first `seconds`."""
    return [request for request in trace if request.arrival_s < seconds]


@dataclass(frozen=True, slots=True)
class _Layout:
    """The columns of a kind of CSV file, and how its arrivals are read."""

    arrival: str
    prompt: str
    output: str
    seconds: Callable[[str], float]
    zero_within_s: float = 0.0  # arrivals are counted from the first row, if that is not so near to a zero of its own
    failures: bool = False  # requests without a token are there, and failed: they are left out


_LAYOUTS = (
    # A trace that begins later than an hour after its zero is on a clock, such as Unix time.
    _Layout("arrival_s", "prompt_tokens", "output_tokens", float, zero_within_s=3600.0),
    _Layout("TIMESTAMP", "ContextTokens", "GeneratedTokens", lambda text: _utc(text).timestamp()),
    _Layout("Timestamp", "Request tokens", "Response tokens", float, failures=True),
)

_Row = tuple[str, Request]  # where it stands, and what it says


def _requests(name: str, rows: Iterable[_Row]) -> Iterator[Request]:
    last = 0.0
    count = 0
    for where, request in rows:
        if request.arrival_s < last:
            raise TraceError(
                f"{where}: it arrives {last - request.arrival_s:g} s before the line above: sort the trace"
            )
        last = request.arrival_s
        count += 1
        yield request
    if count == 0:
        raise TraceError(f"{name}: no requests")


def _csv_rows(name: str, lines: "_Numbered") -> Iterator[_Row]:
    rows = csv.reader(lines)
    header = [field.strip() for field in next(rows, [])]
    layout = next((layout for layout in _LAYOUTS if layout.arrival in header), _LAYOUTS[0])
    columns = (layout.arrival, layout.prompt, layout.output)
    missing = [column for column in columns if column not in header]
    if missing:
        raise TraceError(f"{name}:{lines.line}: the header has no column {' and no '.join(missing)}")
    places = [header.index(column) for column in columns]
    first: float | None = None
    for row in rows:
        where = f"{name}:{lines.line}"
        if len(row) != len(header):
            raise TraceError(f"{where}: {len(row)} fields where the header has {len(header)}")
        arrival, prompt, output = (row[place] for place in places)
        if layout.failures and (prompt.strip() == "0" or output.strip() == "0"):
            continue
        at = _seconds(where, layout.arrival, arrival, layout.seconds)
        if first is None:
            first = at if at > layout.zero_within_s else 0.0
        yield (
            where,
            Request(
                round(at - first, 6) if first else at,
                _tokens(where, layout.prompt, prompt),
                _tokens(where, layout.output, output),
            ),
        )


def _json_rows(name: str, lines: "_Numbered") -> Iterator[_Row]:
    first: float | None = None
    for text in lines:
        where = f"{name}:{lines.line}"
        try:
            row = json.loads(text)
            arrival, prompt, output = (row[key] for key in ("timestamp", "input_length", "output_length"))
        except (ValueError, TypeError, KeyError, RecursionError):
            raise TraceError(f"{where}: not an object with timestamp, input_length and output_length") from None
        at = _seconds(where, "timestamp", str(arrival), lambda text: float(text) / 1000)
        first = at if first is None else first
        prompt_tokens = _tokens(where, "input_length", str(prompt))
        yield where, Request(round(at - first, 6), prompt_tokens, _tokens(where, "output_length", str(output)))


class _Numbered:
    """Lines without the empty ones and the comments; `line` is the number of the latest in the file."""

    def __init__(self, lines: Iterable[str]) -> None:
        self._lines = lines
        self.line = 1

    def __iter__(self) -> Iterator[str]:
        for number, text in enumerate(self._lines, start=1):
            self.line = number
            if text.strip() and not text.startswith("#"):
                yield text


def _seconds(where: str, column: str, text: str, read: Callable[[str], float]) -> float:
    try:
        value = read(text)
    except (ValueError, OverflowError):
        value = math.nan
    if not 0 <= value < math.inf:
        raise TraceError(f"{where}: {column} {shortened(text)!r} is not a time")
    return value


def _utc(text: str) -> datetime:
    """A time that names no zone is UTC: the zone of this machine may have an hour twice in a night, or not at all."""
    at = datetime.fromisoformat(text)
    return at if at.tzinfo else at.replace(tzinfo=UTC)


def _tokens(where: str, column: str, text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = 0
    if not 1 <= value <= _MOST_TOKENS:
        raise TraceError(f"{where}: {column} {shortened(text)!r} is not a positive whole number up to {_MOST_TOKENS:,}")
    return value
