"""What the pools learned, kept over a restart."""

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from xds_server.kept_file import KeptFile

log = logging.getLogger(__name__)

_FORMAT = 1


class StateFile:
    """Reads once, writes whole files. One that cannot be read or written is said and done without."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = KeptFile(path, "state file")

    def read(self) -> dict[str, Any]:
        """The memory of each pool by its name, as it was written last; nothing if there is none."""
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

    def write(self, pools: Mapping[str, Any]) -> None:
        """Replace the file."""
        self._file.write(json.dumps({"format": _FORMAT, "pools": pools}).encode())
