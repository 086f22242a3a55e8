"""Child processes that never outlive their parent."""

import os
import sys

# Asks the kernel to end this process with its parent, and becomes the command. The parent may have ended before.
_LAUNCHER = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGTERM)
if os.getppid() != int(sys.argv[1]):
    sys.exit(1)
os.execv(sys.argv[2], sys.argv[2:])
"""


def tied(*command: str) -> tuple[str, ...]:
    """`command` (an absolute path and arguments) as a child that gets SIGTERM when this process ends, even if killed.

    A `preexec_fn` could do it too, but it runs Python in a fork of a process with threads.
    """
    return (sys.executable, "-ISc", _LAUNCHER, str(os.getpid()), *command)


def forbid_fork_handlers() -> None:
    """Keep gRPC's fork handlers out of the children of this process; to be called before gRPC is loaded.

    They are for a Python that goes on after a fork. Ours only start other programs, and the handlers have been seen
    to crash 3 of 200 of them before they could.
    """
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
