"""What the pools learned, and the clusters that Envoy was told of, kept over a restart."""

import json
import logging
from pathlib import Path
from typing import Any, NamedTuple

from xds_server.kept_file import KeptFile

log = logging.getLogger(__name__)

_FORMAT = 1


class Kept(NamedTuple):
    """What a state file has."""

    pools: dict[str, Any]  # memory by pool name
    clusters: object = None  # what `RetiredClusters.remember` gave; None: nothing


class StateFile:
    """Reads once, writes whole files. One that cannot be read or written is said and done without."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = KeptFile(path, "state file")

    def read(self) -> Kept:
        """What was written last; nothing if there is none."""
        try:
            content = json.loads(self._path.read_text())
        except FileNotFoundError:
            return Kept({})
        except (OSError, ValueError, RecursionError) as error:
            log.warning("state file %s is not used: %s", self._path, error)
            return Kept({})
        if (
            not isinstance(content, dict)
            or content.get("format") != _FORMAT
            or not isinstance(content.get("pools"), dict)
        ):
            log.warning("state file %s is not used: it is not of this version", self._path)
            return Kept({})
        pools = {name: memory for name, memory in content["pools"].items() if isinstance(memory, dict)}
        return Kept(pools, content.get("clusters"))

    def write(self, kept: Kept) -> None:
        """Replace the file."""
        self._file.write(json.dumps({"format": _FORMAT, **kept._asdict()}).encode())
