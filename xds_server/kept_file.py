"""Files that a process keeps for its next start."""

import errno
import hashlib
import logging
import os
from pathlib import Path

from trimtab.policy import Policy, PolicyError, problem_at

log = logging.getLogger(__name__)


def default_state_path(policy_path: Path) -> Path:
    """A file of its own for each policy path, under $STATE_DIRECTORY (systemd), $XDG_STATE_HOME or ~/.local/state."""
    base = os.environ.get("STATE_DIRECTORY") or os.environ.get("XDG_STATE_HOME")
    root = Path(base) if base else Path.home() / ".local" / "state"
    name = hashlib.sha256(str(policy_path.resolve()).encode()).hexdigest()[:16]
    return root / "trimtab" / f"{name}.json"


def kept_path(policy: Policy, policy_path: Path, suffix: str = "") -> Path | None:
    """The policy's `state_file`, with `suffix` after its name; None if nothing is to be kept.

    Raises PolicyError if it cannot be written although the policy names it.
    """
    if policy.state_file is None:
        return None
    chosen = policy.state_file != "auto"
    path = policy_path.absolute().parent / policy.state_file if chosen else default_state_path(policy_path)
    path = path.parent / f"{path.name}{suffix}"
    try:
        _try_writing(path)
    except OSError as error:
        what = f"{path} cannot be written ({(error.strerror or str(error)).lower()})"
        if chosen:
            fix = "name a file that can, or write null to keep nothing"
            raise PolicyError([problem_at(policy_path, ("state_file",), f"{what}: {fix}")]) from None
        log.warning("state_file: auto: %s, so nothing is kept over a restart", what)
    return path


class KeptFile:
    """A file that is only ever replaced whole, by atomic rename. `what` is its name in the log."""

    def __init__(self, path: Path, what: str) -> None:
        self.path = path
        self._what = what
        self._failing = False

    def write(self, content: bytes, *, synced: bool = False) -> None:
        """Replace it; a `synced` one outlives a power cut. That it cannot be written is said once."""
        part = _part(self.path)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with part.open("wb") as file:
                file.write(content)
                if synced:
                    file.flush()
                    os.fsync(file.fileno())
            part.replace(self.path)
        except OSError as error:
            if not self._failing:
                log.warning("%s %s cannot be written: %s", self._what, self.path, error)
            self._failing = True
        else:
            self._failing = False


def _try_writing(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, "it is a folder", str(path))
    part = _part(path)
    part.touch()
    part.unlink()


def _part(path: Path) -> Path:
    return path.parent / f"{path.name}.{os.getpid()}.part"
