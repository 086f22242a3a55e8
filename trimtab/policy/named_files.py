"""The files on this machine that a policy names: lists of endpoints, tokens, passwords, certificates."""

from collections.abc import Iterator, Mapping
from pathlib import Path as File

from pydantic import BaseModel

from trimtab.policy.document import Document
from trimtab.policy.load import decode_text, read_policy
from trimtab.policy.model import Policy
from trimtab.policy.problem import Path, Problem
from trimtab.policy.types import NamedFile


def unreadable_files(policy: Policy, path: str | File) -> list[Problem]:
    """A warning, with its place in the policy at `path`, for each file that it names and that cannot be read now.

    None is an error: what needs such a file is tried again and again, so that it may come later. Raises PolicyError if
    the policy has become unreadable.
    """
    found = [(place, why) for place, file in _files(policy, ()) if (why := why_unreadable(file))]
    if not found:
        return []
    document = Document(decode_text(read_policy(path), str(path)), str(path))
    return [
        document.problem(place, f"warning: the file cannot be read now: {why}; put it there, or fix the path")
        for place, why in found
    ]


def _files(value: object, place: Path) -> Iterator[tuple[Path, str]]:
    match value:
        case NamedFile():
            yield place, value
        case BaseModel():
            for name, field in value:
                yield from _files(field, (*place, name))
        case Mapping():
            for key, item in value.items():
                yield from _files(item, (*place, key))
        case tuple():
            for number, item in enumerate(value):
                yield from _files(item, (*place, number))


def why_unreadable(file: str) -> str:
    """Why a file cannot be read by this process, or "" if it can."""
    try:
        File(file).open("rb").close()
    except OSError as error:
        return (error.strerror or str(error)).lower()
    return ""
