"""The body of an error answer in all its shapes: objects, strings, lists, events, HTML, text, cut JSON."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from trimtab.llmapi.sse import SseParser

MAX_TEXT = 4096  # characters of an error's text that are kept: bounds what a regular expression can cost
_MAX_VALUE = 512  # characters of one value
_MAX_LEVELS = 4
_MAX_ITEMS = 32  # of a list

# Where an error hides in the object around it. A gateway may even put the upstream's whole JSON in a message.
_WRAPPERS = ("error", "detail", "response", "message")
_MESSAGES = ("message", "error", "detail", "msg")

_SSE_LINE = re.compile(r"(?:data|event|error|id|retry)?:")
_BROKEN_FIELD = re.compile(
    r'"(type|code|status|error_type|error|message|detail)"\s*:\s*(?:"([^"\\]*(?:\\.[^"\\]*)*)|([0-9]+))',
    re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class ErrorBody:
    """An error's text, and its JSON objects from the innermost error out to the whole body, if it has any."""

    text: str = ""
    levels: tuple[Mapping[str, Any], ...] = ()

    def values(self, path: str) -> Iterator[str]:
        """The values at a dotted path, as text: of the innermost object that has any.

        `$.path` is looked up in the whole body only. A step into a list is a number, or goes into every item.
        Objects, lists and nulls are no values; whole floats are written like integers, booleans as in JSON.
        """
        levels = self.levels
        if path.startswith("$."):
            path, levels = path[2:], levels[-1:]
        steps = path.split(".")
        for level in levels:
            found = [text for value in _walk(level, steps) if (text := _as_text(value)) is not None]
            if found:
                yield from found
                return

    def value(self, path: str) -> str | None:
        """The first value at `path`, or None."""
        return next(self.values(path), None)


def read_error_body(body: bytes) -> ErrorBody:
    """Read a decoded body (as far as it came). Never raises."""
    text = body.decode("utf-8", "replace").strip("\ufeff \t\r\n")
    if text[:1] in ("{", "[", '"'):
        return _from_json(text)
    if _SSE_LINE.match(text):
        events = SseParser().feed(body, end=True)
        payloads = [event.data.decode("utf-8", "replace") for event in events[:_MAX_ITEMS]]
        text = next((payload for payload in payloads if payload.startswith("{")), "\n".join(payloads) or text)
        return _from_json(text) if text.startswith("{") else ErrorBody(text[:MAX_TEXT])
    if text.startswith("<"):
        text = _without_markup(text)
    return ErrorBody(text[:MAX_TEXT])


def _without_markup(page: str) -> str:
    shown: list[str] = []
    hidden = False
    for piece in page.split("<"):
        tag, _, text = piece.partition(">")
        tag = tag[:7].lower()
        if tag.startswith(("script", "style")):
            hidden = True
        elif tag.startswith(("/script", "/style")):
            hidden = False
        if not hidden:
            shown.append(text)
    return " ".join(" ".join(shown).split())


def _from_json(text: str) -> ErrorBody:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return _from_broken_json(text)
    if isinstance(document, str):
        return ErrorBody(document[:MAX_TEXT])
    root = _as_object(document)
    if root is None:
        return ErrorBody(text[:MAX_TEXT])
    levels = [root]
    while len(levels) < _MAX_LEVELS and (inner := _inside(levels[0])) is not None:
        levels.insert(0, inner)
    messages = [message for level in levels if (message := _message(level))]
    if not messages:
        messages = [value for level in levels for value in level.values() if isinstance(value, str)]
    return ErrorBody("\n".join(messages[:_MAX_ITEMS])[:MAX_TEXT], tuple(levels))


def _from_broken_json(text: str) -> ErrorBody:
    """JSON that was cut or never was any: its telling fields as far as they can be made out."""
    fields: dict[str, Any] = {}
    for name, string, number in _BROKEN_FIELD.findall(text):
        value = string or number
        if value and value != "error":  # Anthropic's envelope has a type of its own, which says nothing
            fields.setdefault(name, value)
    return ErrorBody((_message(fields) or text)[:MAX_TEXT], (fields,) if fields else ())


def _as_object(value: Any) -> Mapping[str, Any] | None:
    if isinstance(value, list):
        value = next((item for item in value[:_MAX_ITEMS] if isinstance(item, dict)), None)
    return value if isinstance(value, dict) else None


def _inside(level: Mapping[str, Any]) -> Mapping[str, Any] | None:
    for key in _WRAPPERS:
        value = level.get(key)
        if isinstance(value, str) and value.startswith("{"):
            try:
                value = json.loads(value)
            except (ValueError, RecursionError):
                continue
        inner = _as_object(value)
        if inner:
            return inner
    return None


def _message(level: Mapping[str, Any]) -> str:
    for key in _MESSAGES:
        value = level.get(key)
        if isinstance(value, str) and value:
            return value
    return ""


def _walk(value: Any, steps: list[str]) -> Iterator[Any]:
    if not steps:
        yield value
    elif isinstance(value, dict):
        if steps[0] in value:
            yield from _walk(value[steps[0]], steps[1:])
    elif isinstance(value, list):
        if steps[0].isdecimal():
            yield from _walk(value[int(steps[0])], steps[1:]) if int(steps[0]) < len(value) else ()
        else:
            for item in value[:_MAX_ITEMS]:
                if isinstance(item, dict):
                    yield from _walk(item, steps)


def _as_text(value: Any) -> str | None:
    if isinstance(value, str):
        return value[:_MAX_VALUE]
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, int | float):
        return f"{value}"[:_MAX_VALUE] if abs(value) < 1e18 else None
    return None
