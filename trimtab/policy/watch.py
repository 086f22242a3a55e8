"""A policy file that may change under a running process."""

from pathlib import Path

from trimtab.policy.load import decode_policy, read_policy
from trimtab.policy.model import Policy
from trimtab.policy.problem import PolicyError, Problem


class PolicyFile:
    """Follows the content of a policy file.

    Times and inodes are not looked at: they mislead after a symlink swap, or a copy that keeps times. Nothing
    waits or runs by itself: the owner polls. A poll reads the file, and validates it if its content is new;
    that takes about half a millisecond per endpoint. Not thread-safe.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._current: Policy | None = None
        self._judged: bytes | tuple[Problem, ...] | None = None

    @property
    def current(self) -> Policy | None:
        """The last good policy, the one in force; None before the first."""
        return self._current

    def load(self) -> Policy:
        """Read the file now. Raises PolicyError, and leaves `current` as it was."""
        return self._judge(self._read())

    def poll(self) -> Policy | None:
        """The new policy if the content has changed since it was last judged, else None.

        Raises PolicyError if the new content is bad or the file cannot be read, once for each such content,
        and leaves `current` as it was. After a bad content a good one is returned, be it the one in force.
        """
        found = self._read()
        return None if found == self._judged else self._judge(found)

    def _read(self) -> bytes | tuple[Problem, ...]:
        """The content, or why there is none."""
        try:
            return read_policy(self.path)
        except PolicyError as error:
            return error.problems

    def _judge(self, found: bytes | tuple[Problem, ...]) -> Policy:
        self._judged = found
        if isinstance(found, tuple):
            raise PolicyError(found)
        self._current = decode_policy(found, str(self.path))
        return self._current
