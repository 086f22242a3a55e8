"""Bad policies, each with what is said of it: the comment at its top holds the lines, one per problem."""

from pathlib import Path

import pytest

from tests.unit.policy import golden
from trimtab.policy import PolicyError, parse_policy

FILES = sorted((Path(__file__).parent / "data").glob("*.yaml"))

JARGON = ("Input should", "Extra inputs", "Value error", "validation error", "discriminator", "tuple", "None")


def problems(text: str, name: str) -> list[str]:
    with pytest.raises(PolicyError) as raised:
        parse_policy(text, name)
    return [str(problem) for problem in raised.value.problems]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_says_what_is_wrong_and_where(path: Path) -> None:
    mark = f"# {path.name}:"
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    body = "".join(line for line in lines if not line.startswith(mark))
    header = [f"# {line}\n" for line in problems(body, path.name)]
    shifted = [f"# {line}\n" for line in problems("".join(header) + body, path.name)]
    golden.check(path, "".join(shifted) + body)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_speaks_plainly(path: Path) -> None:
    for line in problems(path.read_text(encoding="utf-8"), path.name):
        assert line.isprintable()
        assert not [word for word in JARGON if word in line]
