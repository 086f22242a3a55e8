"""What is wrong with the questions of a pool, in as few lines of the log as tell it."""

import asyncio
import logging
from collections import defaultdict

logger = logging.getLogger(__name__)

_GATHER_S = 1.5  # all signals are asked for within a second


class Troubles:
    """Logs that signals of a pool, or its whole server, are not known, why, and that they are again.

    Each trouble is said once, and what begins or ends within a moment is one line: a server that has only just started
    knows nothing of any signal. Lives on one event loop.
    """

    def __init__(self, pool: str, url: str) -> None:
        self._pool = pool
        self._url = url
        self._now: dict[str, tuple[str, Exception | None]] = {}  # by signal, "" is the server
        self._said: set[str] = set()
        self._timer: asyncio.TimerHandle | None = None

    def note(self, signal: str, why: str, fault: Exception | None = None) -> None:
        """What is wrong with a signal, or with "" the server, now; `why` is "" for nothing."""
        if why:
            self._now[signal] = (why, fault)
        else:
            self._now.pop(signal, None)
        if self._timer is None and self._now.keys() != self._said:
            self._timer = asyncio.get_running_loop().call_later(_GATHER_S, self._say)

    def forget(self, signal: str) -> None:
        """It is asked for no longer."""
        self._now.pop(signal, None)
        self._said.discard(signal)

    def close(self) -> None:
        """Say nothing any more."""
        if self._timer is not None:
            self._timer.cancel()

    def _say(self) -> None:
        self._timer = None
        begun: dict[tuple[bool, str], list[str]] = defaultdict(list)
        for signal in sorted(self._now.keys() - self._said):
            begun[signal == "", self._now[signal][0]].append(signal)
        for (_, why), signals in begun.items():
            fault = self._now[signals[0]][1]
            logger.warning("pool %s: no %s: %s", self._pool, self._shown(signals), why, exc_info=fault)
        ended = self._said - self._now.keys()
        for signals in (sorted(ended & {""}), sorted(ended - {""})):
            if signals:
                logger.info("pool %s: %s again", self._pool, self._shown(signals))
        self._said = set(self._now)

    def _shown(self, signals: list[str]) -> str:
        return f"{', '.join(signals)} from Prometheus" if signals[0] else f"answer of Prometheus at {self._url}"
