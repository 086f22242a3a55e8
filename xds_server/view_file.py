"""The last full view of what a control plane serves, kept over a restart of the standby."""

import hashlib
import logging
from collections import defaultdict
from pathlib import Path

from envoy.service.discovery.v3.discovery_pb2 import DeltaDiscoveryResponse
from google.protobuf.message import DecodeError

from xds_server.ads.mirror import Resources
from xds_server.ads.snapshot import Snapshot
from xds_server.kept_file import KeptFile

log = logging.getLogger(__name__)

_FORMAT = "trimtab-view-1"


class ViewFile:
    """One line with the format and the SHA-256 of the rest, which is a serialised DeltaDiscoveryResponse."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = KeptFile(path, "the view in")

    def read(self) -> tuple[Resources, float] | None:
        """The view, and when it was written (Unix seconds); None if there is none, or if what is there is not whole."""
        try:
            head, _, body = self._path.read_bytes().partition(b"\n")
            written_at = self._path.stat().st_mtime
            if head.decode(errors="replace") != _head(body):
                raise ValueError("it is damaged, or of another version")
            message = DeltaDiscoveryResponse.FromString(body)
            resources: dict[str, dict[str, bytes]] = defaultdict(dict)
            for entry in message.resources:
                resources[entry.resource.type_url][entry.name] = entry.resource.value
        except FileNotFoundError:
            return None
        except (OSError, ValueError, DecodeError) as error:
            log.warning("the view in %s is not used: %s", self._path, error)
            return None
        return resources, written_at

    def write(self, snapshot: Snapshot) -> None:
        """Replace the file, and wait until it is on the disk."""
        message = DeltaDiscoveryResponse()
        for type_url, named in snapshot.types.items():
            for resource in named.values():
                entry = message.resources.add(name=resource.name)
                entry.resource.type_url, entry.resource.value = type_url, resource.body
        body: bytes = message.SerializeToString()
        self._file.write(_head(body).encode() + b"\n" + body, synced=True)


def _head(body: bytes) -> str:
    return f"{_FORMAT} {hashlib.sha256(body).hexdigest()}"
