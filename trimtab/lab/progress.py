"""Long work under way, for those who watch no terminal: a log, a pipe, a job of CI."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console


@contextmanager
def told(name: str, about: str, console: Console) -> Iterator[None]:
    """A line on standard error when a part of the work begins, and one when it has ended.

    Not if `console`, where its progress would be shown, is a terminal.
    """
    if console.is_terminal:
        yield
        return
    began = time.monotonic()
    _say(f"{name}: {about}")
    yield
    _say(f"{name}: ended after {time.monotonic() - began:.0f} s")


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
