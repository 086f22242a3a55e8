"""What the engines showed is printed at the end of the run, as Markdown for docs/results/real-engines.md."""

from collections.abc import Callable

import pytest

_noted = pytest.StashKey[list[str]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_noted] = []


@pytest.fixture(scope="session")
def note(pytestconfig: pytest.Config) -> Callable[[str], None]:
    """Adds a line to what is printed."""
    return pytestconfig.stash[_noted].append


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if lines := config.stash[_noted]:
        terminalreporter.section("what the engines showed")
        terminalreporter.write_line("\n".join(lines))
