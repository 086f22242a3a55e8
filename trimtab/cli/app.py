"""The command line's root, and what all commands share."""

import asyncio
import importlib.metadata
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Annotated, Any

import typer
import uvloop
from rich.console import Console

app = typer.Typer(
    name="trimtab",
    help="An Envoy control plane for LLM inference: weights from what engines answer.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(f"trimtab {importlib.metadata.version('trimtab')}\n")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """An Envoy control plane for LLM inference: weights from what engines answer."""


PolicyOption = Annotated[Path, typer.Option("--policy", "-p", help="The policy file.", metavar="POLICY.yaml")]


def wide_console() -> Console:
    """Standard output, wide enough for our tables when it is no terminal."""
    console = Console()
    return console if console.is_terminal else Console(width=120)


def run(main: Coroutine[Any, Any, None]) -> None:
    """Run a command to its end on an event loop of its own."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main)
