"""Files that hold what a test expects. UPDATE_GOLDEN=1 in the environment writes them anew: read the diff."""

import os
from pathlib import Path


def check(path: Path, text: str) -> None:
    """Hold the content of `path` against `text`."""
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == text
