"""The recorded answers in `data/`, as they were on the wire."""

import re
from dataclasses import dataclass
from pathlib import Path

_DATA = Path(__file__).parent / "data"
_STAMPED = re.compile(r"^\s*\d+\.\d\d ms \| (.*)$")
_RESPONSE = re.compile(r"^HTTP/1\.1 (\d{3})[^\n]*\n(.*?)\n\n([^\n]*)", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Response:
    """One whole answer."""

    status: int
    headers: dict[str, str]
    body: bytes


def stream(file: str, section: str = "") -> bytes:
    """The event stream of a capture, or of the section `--- section` in it."""
    text = (_DATA / file).read_text(encoding="utf-8")
    if section:
        text = text.partition(f"--- {section}\n")[2].partition("\n--- ")[0]
    lines = [match[1] for line in text.splitlines() if (match := _STAMPED.match(line))]
    events = [line for line in lines if line.startswith("data:")]
    assert events, f"no stream in {file} {section}"
    return b"".join(event.encode() + b"\n\n" for event in events)


def responses(file: str) -> dict[str, Response]:
    """The whole answers of a capture by the title above each."""
    found: dict[str, Response] = {}
    for part in re.split(r"^--- ", (_DATA / file).read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        title, _, rest = part.partition("\n")
        if match := _RESPONSE.search(rest):
            headers = dict(line.lower().split(": ", 1) for line in match[2].splitlines() if ": " in line)
            found[title] = Response(int(match[1]), headers, match[3].encode())
    return found
