"""A list of endpoints in a file of its own."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from trimtab.policy.document import Document
from trimtab.policy.explain import explain
from trimtab.policy.load import decode_text, read_policy
from trimtab.policy.model import Endpoint, Policy, used_twice
from trimtab.policy.problem import PolicyError, Problem, dotted

_LIST = TypeAdapter(tuple[Endpoint, ...])
_PLACE = ("pools", 0, "endpoints")
"""Where such a list is in a policy, which says what belongs into it."""


def decode_endpoints(content: bytes, source: str) -> tuple[Endpoint, ...]:
    """Validate what would stand under `endpoints` in a policy; it may be an empty list.

    Raises PolicyError with every problem of the content; `source` is the name that messages give it.
    """
    document = Document(decode_text(content, source), source, _PLACE)
    problems = list(document.problems)
    endpoints: tuple[Endpoint, ...] = ()
    try:
        endpoints = _LIST.validate_json(json.dumps(document.data), strict=True)
    except ValidationError as error:
        problems += explain(error, document, _PLACE)
    for flaw in used_twice(endpoints):
        problems.append(document.problem((*_PLACE, *flaw.at[0]), flaw.message))
    if problems:
        raise PolicyError(sorted(_placed(problems), key=lambda problem: (problem.line, problem.column)))
    return endpoints


def check_lists(policy: Policy) -> None:
    """Validate the files with endpoints that a policy names, those that are on this machine.

    Raises PolicyError with the problems of all of them.
    """
    problems: list[Problem] = []
    for pool in policy.pools:
        if pool.discovery is not None and (named := pool.discovery.file) and Path(named.path).exists():
            try:
                decode_endpoints(read_policy(named.path), named.path)
            except PolicyError as error:
                problems += error.problems
    if problems:
        raise PolicyError(problems)


def _placed(problems: list[Problem]) -> Iterator[Problem]:
    for problem in problems:
        yield replace(problem, where=problem.where.removeprefix(dotted(_PLACE)).removeprefix("."))
