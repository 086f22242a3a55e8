"""Globs over model names, as Envoy's string matchers."""

import fnmatch
import re

from envoy_data_plane.envoy.type.matcher.v3 import RegexMatcher, StringMatcher

_SPECIAL = frozenset("*?[")
_PIECE = re.compile(r"\*+|\[!?\]?[^]]*\]|.", re.DOTALL)
_NEVER = r"[^\x00-\x{10FFFF}]"


def is_literal(glob: str) -> bool:
    """Whether `glob` names exactly one model."""
    return not _SPECIAL & set(glob)


def string_matcher(glob: str) -> StringMatcher:
    """The cheapest matcher that accepts what `fnmatch.fnmatchcase` accepts."""
    if is_literal(glob):
        return StringMatcher(exact=glob)
    if glob.endswith("*") and len(glob) > 1 and is_literal(glob[:-1]):
        return StringMatcher(prefix=glob[:-1])
    return StringMatcher(safe_regex=RegexMatcher(regex=glob_to_re2(glob)))


def glob_to_re2(glob: str) -> str:
    """An RE2 expression that matches, whole, what `fnmatch.fnmatchcase` accepts."""
    return "(?s)" + "".join(".*" if piece[0] == "*" else _without_star(piece) for piece in _PIECE.findall(glob))


def _without_star(piece: str) -> str:
    # Translated piece by piece because fnmatch joins stars with atomic groups, which RE2 does not have.
    pattern = fnmatch.translate(piece).removeprefix("(?s:").rpartition(")")[0]
    if pattern == "(?!)":
        return _NEVER  # RE2 has no lookahead either
    return pattern.replace("[:", r"[\:")  # RE2 would take `[:alpha:]` inside brackets for a named class
