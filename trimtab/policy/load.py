"""From a policy file to a `Policy`."""

import json
from importlib.resources import files
from pathlib import Path

from pydantic import ValidationError

from trimtab.policy.document import Document
from trimtab.policy.explain import explain
from trimtab.policy.model import Policy
from trimtab.policy.problem import PolicyError, Problem

MAX_BYTES = 4 * 1024 * 1024
"""The largest policy file; one with ten thousand endpoints has a quarter of it."""


def load_policy(path: str | Path) -> Policy:
    """Read and validate a policy file.

    Raises PolicyError with every problem of the file; one that cannot be read is a problem too.
    """
    return decode_policy(read_policy(path), str(path))


def parse_policy(text: str, source: str) -> Policy:
    """Validate the text of a policy; `source` is the name that messages give it.

    Raises PolicyError with every problem of the text. Checks between the fields of a section are made once
    these are right one by one.
    """
    document = Document(text.removeprefix("\ufeff"), source)
    try:
        # As JSON, pydantic's strict mode takes exactly what the JSON Schema allows: "10000" is no port.
        policy = Policy.model_validate_json(json.dumps(document.data), strict=True)
    except ValidationError as error:
        raise PolicyError(problems_of(document, error)) from None
    if problems := problems_of(document):
        raise PolicyError(problems)
    return policy


def problems_of(
    document: Document, error: ValidationError | None = None, place: tuple[str | int, ...] = ()
) -> list[Problem]:
    """All that is wrong with a document that is at `place` in a policy, in its order; each thing is told once."""
    problems = list(document.problems)
    # A field that may be null takes what is not there for null.
    for found in (explain(error, document, place) if error else (), document.without_value()):
        told = {problem.where for problem in problems}
        problems += [problem for problem in found if problem.where not in told]
    # What is repeated through an alias is fixed once.
    distinct = {(problem.line, problem.column, problem.message): problem for problem in reversed(problems)}
    return sorted(distinct.values(), key=lambda problem: (problem.line, problem.column))


def problem_at(path: str | Path, where: tuple[str | int, ...], message: str) -> Problem:
    """A problem of a policy file that shows only in use, with the line of the value at `where`.

    Raises PolicyError if the file has become unreadable.
    """
    text = read_policy(path).decode(errors="replace")
    return Document(text.removeprefix("\ufeff"), str(path)).problem(where, message)


def read_policy(path: str | Path) -> bytes:
    """The content of a policy file. Raises PolicyError if it cannot be read or is too large."""
    try:
        with Path(path).open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a path with a NUL in it
        why = getattr(error, "strerror", None) or str(error)
        raise PolicyError([Problem(str(path), 1, 1, "", f"the file cannot be read: {why.lower()}")]) from None
    if len(content) > MAX_BYTES:
        raise PolicyError([Problem(str(path), 1, 1, "", f"the file is larger than {MAX_BYTES >> 20} MiB")])
    return content


def decode_policy(content: bytes, source: str) -> Policy:
    """Validate the content of a policy file. Raises PolicyError as `parse_policy` does."""
    return parse_policy(decode_text(content, source), source)


def decode_text(content: bytes, source: str) -> str:
    """The content as text, without a byte order mark. Raises PolicyError for what is not UTF-8."""
    try:
        return content.decode().removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        before = content[: error.start]
        line, column = before.count(b"\n") + 1, error.start - before.rfind(b"\n")
        message = f"byte 0x{content[error.start]:02x} is not UTF-8: save the file as UTF-8"
        raise PolicyError([Problem(source, line, column, "", message)]) from None


def example_policy() -> str:
    """The bundled example: a policy that serves, then every field with its default and its meaning."""
    return files("trimtab").joinpath("data/policy.example.yaml").read_text(encoding="utf-8")
