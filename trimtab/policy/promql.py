"""Queries of a Prometheus server: read where they are written, long before a server is asked."""

import functools

import promql_parser

from trimtab.policy.words import quoted


@functools.cache
def selectors(query: str) -> tuple[str, ...]:
    """The vector selectors that a PromQL expression reads, each once, as expressions of their own.

    The expression gives one number for each of its series. Raises ValueError, with what is wrong, if it is no
    PromQL, gives anything else, or reads metrics of more than one name through a single selector.
    """
    try:
        expression = promql_parser.parse(query)
    except ValueError as error:
        raise ValueError(f"{quoted(query)} is no PromQL: {error}") from None
    try:
        # Only a function says what it is given; the line break ends a comment.
        promql_parser.parse(f"abs({query}\n)")
    except ValueError as error:
        what = str(error).rpartition(" got ")[2]
        raise ValueError(f"{quoted(query)} gives a {what}, and must give a number for each series") from None
    found: dict[str, None] = {}

    def note(node: promql_parser.Expr) -> bool:
        if isinstance(node, promql_parser.VectorSelector):
            if not _names_one_metric(node):
                raise ValueError(f"{quoted(query)}: {quoted(node.prettify())} must name one metric")
            found[node.prettify()] = None
        return True

    promql_parser.walk(expression, note)
    if not found:
        raise ValueError(f"{quoted(query)} reads no metric")
    return tuple(found)


def _names_one_metric(selector: promql_parser.VectorSelector) -> bool:
    return bool(selector.name) or any(
        matcher.name == "__name__" and matcher.op == promql_parser.MatchOp.Equal
        for matcher in selector.matchers.matchers
    )
