"""Child processes that never outlive their parent."""

import ctypes
import signal

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


def die_with_parent() -> None:
    """For `preexec_fn`: the kernel ends the child when the parent ends, even when the parent is killed."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
