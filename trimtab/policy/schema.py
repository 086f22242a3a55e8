"""The policy as a JSON Schema, and ways through it."""

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from trimtab.policy.model import Policy
from trimtab.policy.problem import Path
from trimtab.policy.words import listed, shown

Schema = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Section:
    """One kind of mapping in a policy: `path` is such as `pools[].weighting`, "" for the top."""

    path: str
    schema: Schema

    @property
    def strategy(self) -> str:
        """The strategy whose `scoring` it is; empty for any other section."""
        return _strategy(self.schema)

    @property
    def title(self) -> str:
        """What people call it."""
        return f"{self.path} (strategy: {self.strategy})" if self.strategy else self.path or "top level"


def json_schema() -> Schema:
    """The JSON Schema (draft 2020-12) of a policy file.

    It accepts what `load_policy` accepts, but for checks between fields and the insides of text (addresses,
    regular expressions), which it cannot express.
    """
    return copy.deepcopy(_schema())


@cache
def _schema() -> Schema:
    return Policy.model_json_schema()


@cache
def sections() -> tuple[Section, ...]:
    """Every section of a policy, in the order of the file."""
    return tuple(_below("", _schema()))


def _below(path: str, schema: Schema) -> Iterator[Section]:
    schema = resolved(schema)
    match schema:
        case {"properties": fields}:
            yield Section(path, schema)
            for key, field in fields.items():
                yield from _below(f"{path}.{key}".removeprefix("."), field)
        case {"oneOf": members}:
            for member in members:
                yield from _below(path, member)
        case {"items": item}:
            yield from _below(f"{path}[]", item)


def at(loc: Path) -> tuple[Path, Schema]:
    """Where an error's `loc` is in the policy, and what belongs there.

    pydantic puts the tag of a union's member into `loc`; it is no part of the policy.
    """
    path: Path = ()
    schema = resolved(_schema())
    for part in loc:
        if "oneOf" in schema:
            schema = next((member for member in map(resolved, schema["oneOf"]) if _strategy(member) == part), {})
            continue
        path = (*path, part)
        schema = resolved(_child(schema, part))
    return path, schema


def wanted(schema: Schema) -> str:
    """What a schema asks for, in words."""
    match schema:
        case {"const": value}:
            return shown(value)
        case {"enum": values}:
            return listed(values)
        case {"type": "integer"}:
            return f"a whole number{_range(schema)}"
        case {"type": "number"}:
            return f"a number{_range(schema)}"
        case {"type": "boolean"}:
            return "true or false"
        case {"type": "string", "examples": [example, *_]}:
            return f"text such as {example}"
        case {"type": "string"}:
            return "text" if not schema.get("minLength") else "text of at least one character"
        case {"type": "array"}:
            return "a list" if not schema.get("minItems") else "a list with at least one entry"
        case _:
            return "a mapping"


def strategies(schema: Schema) -> list[str]:
    """The strategies that a `scoring` section may name; none for any other schema."""
    return [_strategy(resolved(member)) for member in schema.get("oneOf", ())]


def resolved(schema: Schema) -> Schema:
    """A schema with its reference followed and "or null" taken off."""
    if "$ref" in schema:
        return {**_schema()["$defs"][schema["$ref"].rpartition("/")[2]], **schema}
    match schema:
        case {"anyOf": [one, {"type": "null"}]}:
            return {**resolved(one), **schema}
    return schema


def _child(schema: Schema, part: str | int) -> Schema:
    found = schema.get("items") if isinstance(part, int) else schema.get("properties", {}).get(part)
    return found or schema.get("additionalProperties") or {}


def _strategy(section: Schema) -> str:
    return str(section["properties"].get("strategy", {}).get("const", ""))


def _range(schema: Schema) -> str:
    least, above = schema.get("minimum"), schema.get("exclusiveMinimum")
    most, below = schema.get("maximum"), schema.get("exclusiveMaximum")
    if least is not None and most is not None:
        return f" of {least:g} to {most:g}"
    words = [
        f"{word} {bound:g}"
        for word, bound in (("of at least", least), ("above", above), ("of at most", most), ("below", below))
        if bound is not None
    ]
    return " " + " and ".join(words) if words else ""
