"""Reading the captures."""

import json
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data"


def streamed_events(name: str) -> list[str]:
    """The data of each event of a captured stream."""
    lines = (line.partition(" | ")[2] for line in (DATA / name).read_text().splitlines())
    return [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]


def streamed_headers(name: str) -> set[str]:
    """The names of the headers of a captured stream."""
    lines = [line.partition(" | ")[2] for line in (DATA / name).read_text().splitlines()]
    end = next(place for place, line in enumerate(lines) if place and ": " not in line)
    return {line.partition(":")[0] for line in lines[1:end]}


def answers(name: str) -> dict[str, tuple[int, dict[str, str], str]]:
    """Titled answers: title -> (status, headers, body)."""
    found = {}
    for part in (DATA / name).read_text().split("--- ")[1:]:
        title, _, rest = part.partition("\n")
        head, _, body = rest.replace("\r\n", "\n").partition("\n\n")
        status_line, *lines = head.split("\n")
        if status_line.startswith("HTTP/"):
            headers = dict(line.split(": ", 1) for line in lines)
            found[title] = (int(status_line.split()[1]), headers, body.strip("\n"))
    return found


def shape(value: Any) -> Any:
    """A JSON value without its particulars: keys in order, types, and null."""
    if isinstance(value, dict):
        return [(key, shape(item)) for key, item in value.items()]
    if isinstance(value, list):
        return [shape(item) for item in value]
    return None if value is None else type(value)


def shape_of(text: str) -> Any:
    """The shape of JSON text, or the text itself if it is none."""
    try:
        return shape(json.loads(text))
    except ValueError:
        return text
