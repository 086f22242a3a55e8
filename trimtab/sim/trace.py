"""Request traces: when requests came, and how many tokens they had."""

import csv
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path

_COLUMNS = ("arrival_s", "prompt_tokens", "output_tokens")
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
    """Read a CSV file with a header that names at least arrival_s, prompt_tokens and output_tokens.

    Lines that begin with # are comments. Arrivals must not go backwards. Raises TraceError for all that is
    wrong with the content, OSError if there is no such file.
    """
    path = Path(path)
    with path.open(newline="", encoding="utf-8-sig") as file:
        try:
            return list(_read(str(path), file))
        except (UnicodeDecodeError, csv.Error) as error:
            raise TraceError(f"{path}: not a CSV file: {error}") from None


def bundled_trace(name: str) -> list[Request]:
    """A trace that comes with Trimtab; its origin and licence are in the .md file beside it.

    `azure23_conv` is the busiest six minutes of a chat service. Raises TraceError for an unknown name.
    """
    known = sorted(entry.name.removesuffix(".csv") for entry in _TRACES.iterdir() if entry.name.endswith(".csv"))
    if name not in known:
        raise TraceError(f"{name}: no such bundled trace, there is {', '.join(known)}")
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


def _read(name: str, lines: Iterable[str]) -> Iterator[Request]:
    numbered = _Numbered(lines)
    rows = csv.reader(numbered)
    header = [field.strip() for field in next(rows, [])]
    missing = [column for column in _COLUMNS if column not in header]
    if missing:
        raise TraceError(f"{name}:{numbered.line}: the header has no column {' and no '.join(missing)}")
    places = [header.index(column) for column in _COLUMNS]
    last = 0.0
    count = 0
    for row in rows:
        where = f"{name}:{numbered.line}"
        if len(row) != len(header):
            raise TraceError(f"{where}: {len(row)} fields where the header has {len(header)}")
        arrival, prompt, output = (row[place] for place in places)
        request = Request(
            _seconds(where, arrival),
            _tokens(where, "prompt_tokens", prompt),
            _tokens(where, "output_tokens", output),
        )
        if request.arrival_s < last:
            raise TraceError(f"{where}: arrival_s {request.arrival_s:g} is before the line above, {last:g}")
        last = request.arrival_s
        count += 1
        yield request
    if count == 0:
        raise TraceError(f"{name}:{numbered.line}: no requests")


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


def _seconds(where: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise TraceError(f"{where}: arrival_s {text!r} is not a number of seconds")
    return value


def _tokens(where: str, column: str, text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise TraceError(f"{where}: {column} {text!r} is not a positive whole number")
    return value
