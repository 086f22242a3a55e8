"""The `trimtab` command: the only place that wires the parts together."""

import logging
import sys

from rich.console import Console
from rich.logging import RichHandler

from trimtab.cli import commands, lab_commands
from trimtab.cli.app import app
from trimtab.policy import PolicyError
from trimtab.process.child import forbid_fork_handlers
from trimtab.process.envoy_binary import EnvoyNotFoundError
from trimtab.process.errors import PartFailedError, UserError
from trimtab.sim.trace import TraceError

__all__ = ["app", "commands", "lab_commands", "main"]  # importing the commands registers them


def main() -> None:
    """Run the command line. A user's mistake is a line or more and exit code 2; a failure of a part is exit code 1."""
    forbid_fork_handlers()
    _log_to_stderr()
    try:
        app()
    except (UserError, PolicyError, TraceError, EnvoyNotFoundError) as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(2)
    except PartFailedError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(1)


def _log_to_stderr() -> None:
    """For people at a terminal; elsewhere one dated line for each record."""
    if sys.stderr.isatty():
        console = Console(stderr=True)
        handler = RichHandler(console=console, show_path=False, omit_repeated_times=False, log_time_format="[%X]")
        logging.basicConfig(level=logging.INFO, format="%(message)s", handlers=[handler])
    else:
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
