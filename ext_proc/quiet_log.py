"""Logging of faults that may come thousands of times a second."""

import logging
from collections.abc import Callable

_QUIET_S = 60.0


class QuietLog:
    """Logs the exception that is being handled, at most one a minute. `clock` is in seconds."""

    def __init__(self, log: logging.Logger, clock: Callable[[], float]) -> None:
        self._log = log
        self._clock = clock
        self._said_at = float("-inf")

    def exception(self, message: str, *args: object) -> None:
        """As `Logger.exception`, if the last one was long enough ago."""
        now = self._clock()
        if now - self._said_at >= _QUIET_S:
            self._said_at = now
            self._log.exception(message, *args)
