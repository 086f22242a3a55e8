"""When to come back: the hint of an error answer, in seconds.

Order of precedence, from what speaks of this refusal to what speaks of limits in general; the first that can
be read wins:

1. `retry-after-ms`, `x-ms-retry-after-ms`: milliseconds
2. `retry-after`: seconds or a date
3. the body's fields: Google's `RetryInfo.retryDelay`, `retry_after_ms`, `retry_after`, `reset_at`
4. the body's text: "try again in 20s", "retry after 6 seconds", "27h41m36s"
5. `reset_at` and rate-limit reset headers. Of the limits that are used up (`...remaining...: 0`) the last to
   reset; else the first to reset of those that do not say what remains. One with something left says nothing.
"""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from trimtab.llmapi.errors import ErrorBody

_NUMBER = re.compile(r"[0-9]{1,15}(?:\.[0-9]{1,12})?")
_UNIT_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_AMOUNT = re.compile(
    r"([0-9]{1,9}(?:\.[0-9]{1,9})?)\s{0,2}"
    r"(?:(ms|milliseconds?|msecs?)|(s|secs?|seconds?)|(m|mins?|minutes?)|(h|hrs?|hours?)|(d|days?))(?![a-z])",
    re.IGNORECASE,
)
_BETWEEN = re.compile(r"(?:\s|,|and\b){0,4}", re.IGNORECASE)
_ANCHOR = re.compile(
    r"\b(?:again|retry|retrying|wait|reset|resets|available|back)\b[^.\n0-9]{0,40}?(?=[0-9])", re.IGNORECASE
)
_BODY_FIELDS = (
    ("details.retryDelay", 1.0),
    ("retry_after_ms", 0.001),
    ("retry_after", 1.0),
    ("retry_after_seconds", 1.0),
    ("reset_at", 1.0),
)
_EPOCH_S = 1e8  # a larger number is a point in time, not a delay: three years are no hint
_EPOCH_MS = 1e11
_ABSURD = 1e14


def retry_hint_s(headers: Mapping[str, str], error: ErrorBody, now: float, cap_s: float) -> float | None:
    """Seconds from `now` (Unix time) until a retry makes sense, 0 to `cap_s`; None if nothing is said of it.

    Header names are in lower case.
    """
    hint = _explicit(headers, now)
    if hint is None:
        hint = _from_fields(error, now)
    if hint is None:
        hint = _from_text(error.text)
    if hint is None:
        hint = _from_resets(headers, now)
    return None if hint is None else min(max(hint, 0.0), cap_s)


def _explicit(headers: Mapping[str, str], now: float) -> float | None:
    for name, unit in (("retry-after-ms", 0.001), ("x-ms-retry-after-ms", 0.001), ("retry-after", 1.0)):
        if name in headers and (wait := _wait(headers[name], unit, now)) is not None:
            return wait
    return None


def _from_fields(error: ErrorBody, now: float) -> float | None:
    for path, unit in _BODY_FIELDS:
        value = error.value(path)
        if value is not None and (wait := _wait(value, unit, now)) is not None:
            return wait
    return None


def _from_text(text: str) -> float | None:
    for anchor in _ANCHOR.finditer(text):
        wait, _ = _duration(text, anchor.end())
        if wait is not None:
            return wait
    return None


def _from_resets(headers: Mapping[str, str], now: float) -> float | None:
    used_up: list[float] = []
    unsaid: list[float] = []
    for name, value in headers.items():
        if name != "reset_at" and not ("reset" in name and "ratelimit" in name.replace("-", "")):
            continue
        if (wait := _wait(value, 1.0, now)) is None:
            continue
        remaining = headers.get(name.replace("reset", "remaining"))
        if remaining is None or name == "reset_at":
            unsaid.append(wait)
        elif re.fullmatch(r"\s*0+(?:\.0*)?\s*", remaining):
            used_up.append(wait)
    return max(used_up) if used_up else min(unsaid, default=None)


def _wait(value: str, unit_s: float, now: float) -> float | None:
    """A delay or a point in time in any of the notations in use, as seconds from `now`."""
    value = value[:64].strip()
    if _NUMBER.fullmatch(value):
        number = float(value)
        if number >= _ABSURD:
            return None
        if number >= _EPOCH_MS:
            return number / 1000 - now
        return number - now if number >= _EPOCH_S else number * unit_s
    wait, end = _duration(value, 0)
    if wait is not None and end == len(value):
        return wait
    moment = _moment(value)
    return None if moment is None else moment - now


def _duration(text: str, start: int) -> tuple[float | None, int]:
    """Add up `6m0s`, `27h41m36s`, `20 ms`, `1 hour and 5 minutes` from `start`; also where it ends."""
    total = None
    end = start
    while amount := _AMOUNT.match(text, start):
        unit = next(name for name, word in zip(_UNIT_S, amount.groups()[1:], strict=True) if word)
        total = (total or 0.0) + float(amount[1]) * _UNIT_S[unit]
        end = amount.end()
        between = _BETWEEN.match(text, end)
        start = between.end() if between else end
    return total, end


def _moment(value: str) -> float | None:
    for parse in (datetime.fromisoformat, parsedate_to_datetime):
        try:
            moment = parse(value)
        except (ValueError, TypeError, IndexError, OverflowError):
            continue
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        try:
            return moment.timestamp()
        except OverflowError:
            return None
    return None
