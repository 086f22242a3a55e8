"""The policy's reference as Markdown tables, from the JSON Schema."""

import json
import re
from collections.abc import Iterator

from trimtab.policy.schema import Schema, Section, resolved, sections, wanted
from trimtab.policy.words import unit

_AT_ZERO = re.compile(r"(?:^|(?<=\. ))(?:0|Empty) (.+?)\.(?: |$)")
_NOTHING = "–"


def policy_reference() -> str:
    """A heading and a table of the fields for each section of the policy."""
    return "\n".join(line for section in sections() for line in _table(section))


def _table(section: Section) -> Iterator[str]:
    yield f"### `{section.title}`" if section.path else f"### {section.title.capitalize()}"
    yield ""
    yield section.schema["description"].replace("\n", " ").replace("  ", "\n\n")
    yield ""
    yield "| Key | Value | Default | Meaning | At 0, or empty |"
    yield "|---|---|---|---|---|"
    required = section.schema.get("required", ())
    for key, unresolved in section.schema["properties"].items():
        field = resolved(unresolved)
        default = "**required**" if key in required else _default(field)
        cells = (f"`{key}`", _value(section, key, field), default, _meaning(field), _at_zero(field))
        yield f"| {' | '.join(cells)} |"
    yield ""


def _value(section: Section, key: str, field: Schema) -> str:
    match field:
        case {"properties": _} | {"oneOf": _} | {"items": {"$ref": _}}:
            path = f"{section.path}.{key}".removeprefix(".")
            below = [other.title for other in sections() if other.path.removesuffix("[]") == path]
            return ", ".join(f"[`{title}`](#{_anchor(title)})" for title in below)
        case {"items": item}:
            words = f"{wanted(field)}; each {wanted(resolved(item))}"
        case {"additionalProperties": value}:
            words = f"{wanted(field)} of text to {wanted(value)}"
        case _:
            words = wanted(field)
    return f"{unit(key)}: {words}" if unit(key) else words


def _default(field: Schema) -> str:
    value = field.get("default")
    return _NOTHING if value is None else f"`{json.dumps(value)}`"


def _meaning(field: Schema) -> str:
    return _AT_ZERO.sub("", field.get("description", "")).strip()


def _at_zero(field: Schema) -> str:
    if told := _AT_ZERO.search(field.get("description", "")):
        return told[1]
    least = max(field.get(bound, 0) for bound in ("minimum", "minItems", "minLength"))
    refused = least > 0 or "exclusiveMinimum" in field or not re.search(field.get("pattern", ""), "")
    return "refused" if refused else _NOTHING


def _anchor(title: str) -> str:
    """The fragment that Markdown viewers give a heading."""
    return re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")
