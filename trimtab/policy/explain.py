"""What a validation found, as problems of a file in an operator's words."""

import re
from collections.abc import Iterator
from difflib import SequenceMatcher, get_close_matches
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from trimtab.policy.document import Document
from trimtab.policy.problem import Path, Problem
from trimtab.policy.schema import Schema, at, sections, strategies, wanted
from trimtab.policy.words import quoted, shown, unit, without_unit
from trimtab.strict import FlawedError

_NUMBER = re.compile(r"[-+]?[0-9_]*\.?[0-9_]+(?:e[-+]?[0-9]+)?", re.IGNORECASE)
_LIKE = 0.7
_WORD_BREAK = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|[-\s]")


def explain(error: ValidationError, document: Document, place: Path = ()) -> Iterator[Problem]:
    """All that `error` says of `document`, which is at `place` in a policy.

    What belongs at a place is read from the JSON Schema.
    """
    found = error.errors(include_url=False)
    for details in found:
        details["loc"] = (*place, *details["loc"])
    meant = {place for details in found if details["type"] == "extra_forbidden" for place in _meant(details["loc"])}
    for details in found:
        path, schema = at(details["loc"])
        # A required key that is misspelt is one mistake, not two.
        if details["type"] != "missing" or path not in meant:
            yield from _problems(details, path, schema, document)


def _problems(details: ErrorDetails, path: Path, schema: Schema, document: Document) -> Iterator[Problem]:
    value = details["input"]
    match details["type"]:
        case "missing":
            yield document.problem(path, f"missing; it must be {wanted(schema)}")
        case "extra_forbidden":
            _, section = at(details["loc"][:-1])
            yield document.problem(path, _unknown_key(str(path[-1]), section), of_key=True)
        case "value_error":
            yield from _flaws(details, path, document)
        case "union_tag_invalid" | "union_tag_not_found" if isinstance(value, dict):
            where, known = (*path, "strategy"), {"enum": strategies(schema), "type": "string"}
            misfit = _misfit(value["strategy"], where, known, document)
            lost = isinstance(value["strategy"], str) and not misfit.endswith("?")
            yield document.problem(
                where, misfit + ("; docs/concepts/strategies/index.md says what each is for" if lost else "")
            )
        case "too_short" if value:
            # pydantic does not count the items that it refused; these have been reported.
            return
        case "too_long":
            limit = details["ctx"]
            yield document.problem(
                path, f"must be at most {limit['max_length']} items, and has {limit['actual_length']}"
            )
        case _:
            yield document.problem(path, _misfit(value, path, schema, document))


def _flaws(details: ErrorDetails, path: Path, document: Document) -> Iterator[Problem]:
    error = details["ctx"]["error"]
    if not isinstance(error, FlawedError):
        yield document.problem(path, str(error))
        return
    for flaw in error.flaws:
        places: list[Path] = [(*path, *place) for place in flaw.at]
        yield document.problem(next(filter(document.has, places), places[0]), flaw.message)


def _misfit(value: Any, path: Path, schema: Schema, document: Document) -> str:
    """Why a value does not fit, and what would."""
    must_be = f"must be {wanted(schema)}"
    choices = [choice for choice in schema.get("enum", ()) if isinstance(choice, str)]
    match schema.get("type"), value:
        case "object", None:
            return f"is empty: it {must_be}, or be left out"
        case "object", dict():
            return "is empty: it must have at least one entry"
        case _, None:
            return f"has no value: it {must_be}"
        case (("integer" | "number"), str()) if _NUMBER.fullmatch(value):
            return f"{must_be}, and {quoted(value)} is text: take the quotes off"
        case "string", (bool() | int() | float()) if not choices:
            return f'{must_be}: put it in quotes, as in "{document.spelling(path)}"'
        case "array", (str() | bool() | int() | float()):
            return f"{must_be}: write [{document.spelling(path)}]"
        case "array", dict() if value:
            return f'{must_be}: put "- " before its first key'
        case "object", (str() | int() | float()) if _has_one_place_for(value, schema):
            return f"{must_be}: write {{{schema['required'][0]}: {document.spelling(path)}}}"
        case _, str() if value in strategies(schema):
            return f"{must_be}: write {{strategy: {value}}}"
        case _, str() if len(choices) > 1 and (near := get_close_matches(value, choices, n=1)):
            return f"{must_be}, not {quoted(value)}; did you mean {quoted(near[0])}?"
        case _:
            return f"{must_be}, not {shown(value)}"


def _has_one_place_for(value: object, section: Schema) -> bool:
    """Whether a mapping needs one key only, and it may be what the value was meant for."""
    required = section.get("required", ())
    is_text = isinstance(value, str)
    return len(required) == 1 and not (is_text and section["properties"][required[0]].get("type") == "number")


def _meant(location: tuple[str | int, ...]) -> Iterator[Path]:
    """The place that an unknown key was probably meant to be, if it is like one."""
    path, section = at(location[:-1])
    _, best, likeness = _nearest(str(location[-1]), section)
    if likeness >= _LIKE:
        yield (*path, best)


def _nearest(key: str, section: Schema) -> tuple[str, str, float]:
    """A key in our way of writing, the key of `section` that is most like it, and how like (0 to 1)."""
    meant = _WORD_BREAK.sub("_", key).lower()
    best = max(section["properties"], key=lambda name: _likeness(meant, name))
    return meant, best, _likeness(meant, best)


def _unknown_key(key: str, section: Schema) -> str:
    """What a key that `section` does not have was probably meant to be."""
    meant, best, likeness = _nearest(key, section)
    homes = [home for home in sections() if key in home.schema["properties"]]
    if likeness < 1 and homes:
        strategy = next((here.strategy for here in sections() if here.schema == section), "")
        if strategy and (others := [f"strategy: {home.strategy}" for home in homes if home.strategy]):
            where = " or ".join(others)
            return f"unknown key of strategy: {strategy}; it goes with {where}: choose that strategy, or remove it"
        titles = dict.fromkeys(home.path if key == "strategy" else home.title for home in homes)
        return f"unknown key here: it belongs to {' or '.join(titles)}; move it there, or remove it"
    if likeness < _LIKE:
        return f"unknown key; the keys here are {', '.join(section['properties'])}"
    measure = f", in {unit(best)}" if unit(best) != unit(meant) else ""
    return f"unknown key; did you mean {quoted(best)}{measure}?"


def _likeness(one: str, other: str) -> float:
    """0..1; two names that differ in nothing but their unit are alike."""
    return 1.0 if without_unit(one) == without_unit(other) else SequenceMatcher(None, one, other).ratio()
