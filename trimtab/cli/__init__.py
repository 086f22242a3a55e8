"""The `trimtab` command: the only place that wires the parts together."""

import logging
import sys

from rich.console import Console
from rich.logging import RichHandler

from trimtab.cli.commands import app
from trimtab.cli.demo.arms import DemoError
from trimtab.cli.envoy_process import EnvoyFailedError
from trimtab.cli.listening import CannotListenError
from trimtab.envoy_binary import EnvoyNotFoundError
from trimtab.policy import PolicyError
from trimtab.sim.trace import TraceError


def main() -> None:
    """Run the command line. A user's mistake is one line and exit code 2; a failure of a part is exit code 1."""
    handler = RichHandler(
        console=Console(stderr=True), show_path=False, omit_repeated_times=False, log_time_format="[%X]"
    )
    logging.basicConfig(level=logging.INFO, format="%(message)s", handlers=[handler])
    try:
        app()
    except (PolicyError, TraceError, CannotListenError, EnvoyNotFoundError) as error:
        _say(error)
        sys.exit(2)
    except (EnvoyFailedError, DemoError) as error:
        _say(error)
        sys.exit(1)


def _say(error: Exception) -> None:
    sys.stderr.write(f"{error}\n")
