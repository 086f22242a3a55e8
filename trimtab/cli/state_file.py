"""What the pools learned, kept over a restart."""

import errno
import hashlib
import json
import logging
import os
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)

_FORMAT = 1


def default_state_path(policy_path: Path) -> Path:
    """A file of its own for each policy path, under $STATE_DIRECTORY (systemd), $XDG_STATE_HOME or ~/.local/state."""
    base = os.environ.get("STATE_DIRECTORY") or os.environ.get("XDG_STATE_HOME")
    root = Path(base) if base else Path.home() / ".local" / "state"
    name = hashlib.sha256(str(policy_path.resolve()).encode()).hexdigest()[:16]
    return root / "trimtab" / f"{name}.json"


class StateFile:
    """Reads once, writes whole files by atomic rename. One that cannot be read or written is said and done without."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._part = path.with_name(f"{path.name}.{os.getpid()}.part")
        self._failing = False

    def try_writing(self) -> None:
        """Make the folder, and see whether a file can be written there. Raises OSError."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        if self._path.is_dir():
            raise IsADirectoryError(errno.EISDIR, "it is a folder", str(self._path))
        self._part.touch()
        self._part.unlink()

    def read(self) -> dict[str, Any]:
        """Memory by pool name; empty if there is none."""
        try:
            content = json.loads(self._path.read_text())
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, RecursionError) as error:
            log.warning("state file %s is not used: %s", self._path, error)
            return {}
        if (
            not isinstance(content, dict)
            or content.get("format") != _FORMAT
            or not isinstance(content.get("pools"), dict)
        ):
            log.warning("state file %s is not used: it is not of this version", self._path)
            return {}
        return {name: memory for name, memory in content["pools"].items() if isinstance(memory, dict)}

    def write(self, pools: dict[str, Any]) -> None:
        """Replace the file."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._part.write_text(json.dumps({"format": _FORMAT, "pools": pools}))
            self._part.replace(self._path)
        except OSError as error:
            if not self._failing:
                log.warning("state file %s cannot be written: %s", self._path, error)
            self._failing = True
        else:
            self._failing = False
