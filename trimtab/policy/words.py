"""How messages and pages speak of what a policy file says."""

import re
from collections.abc import Sequence

_LONGEST = 60

_UNITS = {
    "points_per_s": "points per second",
    "per_s": "per second",
    "per_ms": "per millisecond",
    "s": "seconds",
    "ms": "milliseconds",
    "mib": "MiB",
    "percent": "percent",
    "cores": "CPU cores",
}
_NOT_OURS = "us|ns|sec|secs|seconds|min|minutes|h|hours|millis|kb|mb|gb|kib|gib|bytes|pct|ratio|share"
_UNIT = re.compile(rf"_({'|'.join(_UNITS)}|{_NOT_OURS})$")


def unit(key: str) -> str:
    """The unit that a field's name ends with, in words; empty if there is none."""
    found = _UNIT.search(key)
    return _UNITS.get(found[1], "") if found else ""


def without_unit(key: str) -> str:
    """A field's name without its unit, whether or not policies use that unit."""
    return _UNIT.sub("", key)


def shortened(text: str) -> str:
    """`text`, cut where it is too long for a message."""
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def quoted(text: str) -> str:
    """`text` in double quotes, shortened."""
    return f'"{shortened(text)}"'


def shown(value: object) -> str:
    """A value as YAML would write it; a list or a mapping only by what it is."""
    match value:
        case None:
            return "nothing"
        case bool():
            return str(value).lower()
        case str():
            return quoted(value) if value else "empty text"
        case dict():
            return "a mapping" if value else "an empty mapping"
        case list() | tuple():
            return "a list" if value else "an empty list"
        case _:
            return str(value)


def listed(values: Sequence[object]) -> str:
    """The values with commas and an "or" between them."""
    *others, last = (shown(value) for value in values)
    return f"{', '.join(others)} or {last}" if others else last
