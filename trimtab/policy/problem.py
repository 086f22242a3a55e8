"""What is wrong with a policy file, for people."""

from collections.abc import Iterable
from dataclasses import dataclass

from trimtab.policy.words import quoted

Path = tuple[str | int, ...]
"""The way from the top of a policy to a value: keys and list indices."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with a file, and how it is fixed.

    `line` and `column` begin at 1. `where` is the place as a path in the policy, such as
    `pools[0].endpoints[1].capacity`; it is empty for the file as a whole.
    """

    source: str
    line: int
    column: int
    where: str
    message: str

    def __str__(self) -> str:
        where = f"{self.where}: " if self.where else ""
        return _on_one_line(f"{self.source}:{self.line}:{self.column}: {where}{self.message}")


class PolicyError(ValueError):
    """A policy file that cannot be used, with all its problems in the order of the file."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


def dotted(path: Path) -> str:
    """A path as it is written: `pools[0].labels["gpu type"]`."""
    parts = []
    for part in path:
        if isinstance(part, int):
            parts.append(f"[{part}]")
        elif part.isidentifier() and len(part) < 64:
            parts.append(f".{part}")
        else:
            parts.append(f"[{quoted(part)}]")
    return "".join(parts).removeprefix(".")


def _on_one_line(text: str) -> str:
    """`text` with line breaks and control characters (a terminal would obey them) shown as escapes."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)
