"""A list of endpoints in a file of its own."""

import json
from collections.abc import Sequence
from dataclasses import replace

from pydantic import TypeAdapter, ValidationError

from trimtab.policy.document import Document
from trimtab.policy.load import decode_text, problems_of, read_policy
from trimtab.policy.model import Endpoint, Policy, used_twice
from trimtab.policy.named_files import why_unreadable
from trimtab.policy.problem import PolicyError, Problem, dotted

_LIST = TypeAdapter(tuple[Endpoint, ...])
_PLACE = ("pools", 0, "endpoints")
"""Where such a list is in a policy, which says what belongs into it."""


def decode_endpoints(content: bytes, source: str) -> tuple[Endpoint, ...]:
    """Validate what would stand under `endpoints` in a policy; it may be an empty list.

    Raises PolicyError with every problem of the content; `source` is the name that messages give it.
    """
    document = Document(decode_text(content, source), source, _PLACE)
    try:
        endpoints = _LIST.validate_json(json.dumps(document.data), strict=True)
    except ValidationError as error:
        raise PolicyError(_placed(problems_of(document, error, _PLACE))) from None
    problems = problems_of(document, place=_PLACE)
    problems += [document.problem((*_PLACE, *flaw.at[0]), flaw.message) for flaw in used_twice(endpoints)]
    if problems:
        raise PolicyError(_placed(problems))
    return endpoints


def check_lists(policy: Policy) -> None:
    """Validate the files with endpoints that a policy names, those that can be read now.

    Raises PolicyError with the problems of all of them.
    """
    problems: list[Problem] = []
    for pool in policy.pools:
        if pool.discovery is not None and (named := pool.discovery.file) and not why_unreadable(named.path):
            try:
                decode_endpoints(read_policy(named.path), named.path)
            except PolicyError as error:
                problems += error.problems
    if problems:
        raise PolicyError(problems)


def _placed(problems: Sequence[Problem]) -> Sequence[Problem]:
    """The problems as of the file itself."""
    return [
        replace(problem, where=problem.where.removeprefix(dotted(_PLACE)).removeprefix(".")) for problem in problems
    ]
