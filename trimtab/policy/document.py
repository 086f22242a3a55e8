"""YAML text as plain values that know their places in the text."""

import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.reader import ReaderError

from trimtab.policy.problem import Path, PolicyError, Problem, dotted
from trimtab.policy.words import quoted, shortened

_MAX_DEPTH = 32
_MAX_REPEATED = 100_000
"""Values that aliases may add to those written: far above a real policy, far below what would be felt."""

_MAX_NUMBER = 2.0**63

_TAG = "tag:yaml.org,2002:"
_MERGE = f"{_TAG}merge"
_PARSED = {_TAG + name for name in ("null", "bool", "int", "float")}
_TEXT = {_TAG + name for name in ("str", "timestamp", "value")}  # a date is text in YAML 1.2

_COLLECTIONS: Sequence[tuple[type[Node], str]] = ((SequenceNode, "a list"), (MappingNode, "a mapping"))

_SYNTAX = (
    (r"character '\\t'", "a tab cannot indent YAML: use spaces"),
    (r"character '(.)' that cannot start", "text cannot begin with {0} in YAML: put it in quotes"),
    (
        "mapping values are not allowed",
        'this ":" does not fit: fix the indentation, or quote text that has ": " in it',
    ),
    ("sequence entries are not allowed", 'this "-" does not fit: begin the list on a line of its own'),
    ("could not find expected ':'", 'a key without its ":"'),
    ("found unexpected (?:end of stream|document separator)", "the quote that opens here is never closed"),
    (r"expected ',' or '([\]}])'", 'a "," or "{0}" is missing for what line {line} opens'),
    ("expected the node content, but found '<stream end>'", "the file ends in the middle: is it whole?"),
    ("expected <block end>", "this line does not fit those above: fix the indentation"),
    (
        "undefined alias '([^']*)",
        "*{0} repeats what is marked with &{0}, and nothing is: quote it if it is text",
    ),
    ("expected alphabetic or numeric character", "text that begins with * or & must be in quotes"),
    ("found another document", "a second document begins here: a policy is one document"),
    (
        "unknown escape character '(.)'",
        "\\{0} is no escape in double quotes: use single quotes, or double the backslash",
    ),
    ("maximum depth", "nested too deeply"),
)
"""What the parser says of a mistake (a pattern), and what an operator is told instead."""

_AT_CONTEXT = "end of stream|document separator|could not find expected"
"""Mistakes that the parser notices far below the place to fix, which it calls the context."""


class _Entry(NamedTuple):
    value: Node
    key: Node | None  # None for an item of a list


class Document:
    """A YAML file. `data` is a dict with text keys and dict, list, str, int, float, bool or None below it.

    With a `place` the file is the list that belongs there in a policy, and `data` is a list.

    What can be left out (the second of two equal keys, a number that is none) is, and is noted in `problems`.
    Raises PolicyError for text that is not YAML at all, or not a mapping.
    """

    def __init__(self, text: str, source: str, place: Path = ()) -> None:
        self.source = source
        self.problems: list[Problem] = []
        self._entries: dict[Path, _Entry] = {}
        self._empty: list[Path] = []
        self._met: set[Node] = set()
        self._repeated = 0
        self._yaml = YAML(typ="safe", pure=True)
        self._yaml.max_depth = _MAX_DEPTH
        self._yaml.composer.warn_double_anchors = False
        root = self._compose(text)
        if place:
            kind: type[Node] = SequenceNode
            name, wanted = "it", "a list of endpoints (- address: 10.0.0.11:8000), or [] for none"
        else:
            kind = MappingNode
            name, wanted = "a policy", "a mapping (version: 1 and so on)"
        if root is None or root.tag == f"{_TAG}null":
            least = f"it must be {wanted}" if place else "a policy has at least version and pools"
            raise PolicyError([Problem(source, 1, 1, "", f"the file is empty: {least}")])
        if not isinstance(root, kind):
            what = next((word for of, word in _COLLECTIONS if isinstance(root, of)), "text")
            raise self._fatal(root, (), f"{name} {'must be' if place else 'is'} {wanted}, and this is {what}")
        self._entries[()] = _Entry(root, None)
        self.data: Any = self._value(root, place, None)

    def problem(self, path: Path, message: str, *, of_key: bool = False) -> Problem:
        """A problem of the value at `path`, or of its key; if the file has none, of what is around it."""
        found = path
        while found not in self._entries:
            found = found[:-1]
        value, key = self._entries[found]
        nothing_to_see = isinstance(value, ScalarNode) and not value.value
        return self._problem(key if key is not None and (of_key or nothing_to_see) else value, path, message)

    def without_value(self) -> Iterator[Problem]:
        """A problem for each value that is not there, where the file has its key; `null` and `~` are values."""
        for path in self._empty:
            yield self.problem(path, "has no value: write null, or leave the key out for the default")

    def has(self, path: Path) -> bool:
        """Whether the file has a value there."""
        return path in self._entries

    def spelling(self, path: Path) -> str:
        """The text of a single value, as it is in the file; shortened."""
        return shortened(str(self._entries[path].value.value))

    def _compose(self, text: str) -> Node | None:
        try:
            root: Node | None = self._yaml.compose(text)
            return root
        except MarkedYAMLError as error:
            said = (error.problem or error.context)[:120]
            context = error.context_mark or error.problem_mark
            mark = context if re.search(_AT_CONTEXT, said) else error.problem_mark or context
            message = _plain(said, context.line + 1)
            raise PolicyError([Problem(self.source, mark.line + 1, mark.column + 1, "", message)]) from None
        except ReaderError as error:
            before = text[: error.position]
            line, column = before.count("\n") + 1, error.position - before.rfind("\n")
            message = f"the character U+{error.character:04X} cannot be in a YAML file"
            raise PolicyError([Problem(self.source, line, column, "", message)]) from None

    def _value(self, node: Node, path: Path, key: Node | None) -> Any:
        self._entries[path] = _Entry(node, key)
        self._limit(node, path, len(path), int(node in self._met))
        self._met.add(node)
        match node:
            case MappingNode(tag="tag:yaml.org,2002:map"):
                pairs = self._pairs(node, path, 0)
                return {name: self._value(value, (*path, name), key) for name, (key, value) in pairs.items()}
            case SequenceNode(tag="tag:yaml.org,2002:seq"):
                return [self._value(item, (*path, index), None) for index, item in enumerate(node.value)]
            case ScalarNode() if node.tag in _TEXT:
                return self._text(node, path)
            case ScalarNode(tag="tag:yaml.org,2002:null", value=""):
                self._empty.append(path)
                return None
            case ScalarNode() if node.tag in _PARSED:
                return self._parsed(node, path)
            case _:
                tag = shortened(str(node.tag).replace(_TAG, "!!"))
                self._note(node, path, f"{tag} has no meaning here: remove it")
                return None

    def _pairs(self, node: MappingNode, path: Path, depth: int) -> dict[str, tuple[Node, Node]]:
        """The entries of a mapping by key: its own, then what `<<` adds, of equals the first."""
        own: dict[str, tuple[Node, Node]] = {}
        added: dict[str, tuple[Node, Node]] = {}
        for key, value in node.value:
            if key.tag == _MERGE:
                for base in value.value if isinstance(value, SequenceNode) else (value,):
                    if isinstance(base, MappingNode):
                        self._limit(base, path, depth, len(base.value))
                        added = self._pairs(base, path, depth + 1) | added
                    else:
                        self._note(base, path, "<< adds the entries of a mapping, as in <<: *name")
                continue
            name = self._key(key, path)
            if name is None:
                continue
            first, _ = own.setdefault(name, (key, value))
            if first is not key:
                line = first.start_mark.line + 1
                self._note(key, (*path, name), f"the key is already in line {line}; remove one of them")
        return own | {name: pair for name, pair in added.items() if name not in own}

    def _key(self, node: Node, path: Path) -> str | None:
        if isinstance(node, ScalarNode) and node.tag in _TEXT:
            return self._text(node, path)
        key = f"the key {quoted(node.value)}" if isinstance(node, ScalarNode) else "a key"
        self._note(node, path, f"{key} must be text: put it in quotes")
        return None

    def _text(self, node: ScalarNode, path: Path) -> str | None:
        text = str(node.value)
        if text.isascii() or not any("\ud800" <= char <= "\udfff" for char in text):
            return text
        self._note(node, path, "half of a surrogate pair is no character: write the character itself")
        return None

    def _parsed(self, node: ScalarNode, path: Path) -> bool | int | float | None:
        try:
            value: bool | int | float | None = self._yaml.constructor.construct_object(node)
        except (ValueError, KeyError, IndexError):
            value = float("nan")
        if value is None or abs(value) <= _MAX_NUMBER:
            return value
        self._note(node, path, f"{quoted(node.value)} is not a number that can be used here")
        return None

    def _limit(self, node: Node, path: Path, depth: int, repeated: int) -> None:
        self._repeated += repeated
        if depth > _MAX_DEPTH or self._repeated > _MAX_REPEATED:
            raise self._fatal(node, path[:4], "its aliases repeat themselves, or repeat too much")

    def _note(self, node: Node, path: Path, message: str) -> None:
        self.problems.append(self._problem(node, path, message))

    def _fatal(self, node: Node, path: Path, message: str) -> PolicyError:
        return PolicyError([self._problem(node, path, message)])

    def _problem(self, node: Node, path: Path, message: str) -> Problem:
        mark = node.start_mark
        return Problem(self.source, mark.line + 1, mark.column + 1, dotted(path), message)


def _plain(said: str, opened: int) -> str:
    for pattern, words in _SYNTAX:
        if found := re.search(pattern, said):
            return words.format(*found.groups(), line=opened)
    return f"not YAML: {said}"
