"""The `trimtab` command: the only place that wires the parts together."""

import logging
import os
import sys

from rich.console import Console
from rich.logging import RichHandler

from trimtab.cli.commands import app
from trimtab.cli.errors import PartFailedError, UserError
from trimtab.envoy_binary import EnvoyNotFoundError
from trimtab.policy import PolicyError
from trimtab.sim.trace import TraceError


def main() -> None:
    """Run the command line. A user's mistake is a line or more and exit code 2; a failure of a part is exit code 1."""
    # gRPC tells at its default level that it noticed a fork, of which there is one for each child.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    handler = RichHandler(
        console=Console(stderr=True), show_path=False, omit_repeated_times=False, log_time_format="[%X]"
    )
    logging.basicConfig(level=logging.INFO, format="%(message)s", handlers=[handler])
    try:
        app()
    except (UserError, PolicyError, TraceError, EnvoyNotFoundError) as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(2)
    except PartFailedError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(1)
