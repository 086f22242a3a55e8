"""Errors that end the program with a message for people."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class UserError(Exception):
    """Something that the user can fix; the message says what and how."""


class PartFailedError(Exception):
    """A part of the system did not do its work; the message says which, and what it said."""


def ensure_folder(option: str, file: Path) -> None:
    """Raises UserError if a file that an option names cannot be written: its folder is missing, or it is one itself."""
    folder = file.absolute().parent
    if not folder.is_dir():
        raise UserError(f"{option} {file}: the folder {folder} does not exist")
    if file.is_dir():
        raise UserError(f"{option} {file}: it is a folder: name a file in it")


@contextmanager
def told_if_unwritable(option: str, file: Path) -> Iterator[None]:
    """Raises UserError if the file that an option names turns out not to be writable."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{option} {file}: {error.strerror}") from None
