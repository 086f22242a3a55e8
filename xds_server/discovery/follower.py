"""Follows one source, and keeps the last good answer while there is none better."""

import asyncio
import logging
import random
import time
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass

from xds_server.access import AccessError, unforeseen
from xds_server.discovery.source import Answer, Source, SourceError, one_line

logger = logging.getLogger(__name__)

_FIRST_RETRY_S = 0.5
# A step takes 60 us for each endpoint: with a slip that lists a whole network, no step would ever end.
_MOST_ENDPOINTS = 10_000


@dataclass(frozen=True, slots=True)
class SourceStatus:
    """How a pool's source does. Times are Unix seconds."""

    kind: str  # file, dns, http or kubernetes
    listed: int  # endpoints in use
    answered_at: float | None  # when it last gave a good answer
    stale_since: float | None  # since when what is in use is not what the source says now; None: it is
    why: str  # of that, one line
    errors: int  # failures so far


class Follower:
    """Asks a source without end, and tells `on_news` when `endpoints` may have changed.

    `endpoints` is None until the source was tried once. A source that fails is asked again with exponential
    back-off and jitter. An answer without endpoints, after one with some, is believed when the source still says
    so `confirm_empty_s` later; it is asked anew for that. `known` are endpoints that count until the first good
    answer.
    """

    def __init__(
        self,
        pool: str,
        kind: str,
        source: Source,
        on_news: Callable[[], None],
        *,
        known: Answer = (),
        confirm_empty_s: float,
        rng: random.Random,
    ) -> None:
        self.endpoints: Answer | None = None
        self._pool = pool
        self._kind = kind
        self._source = source
        self._on_news = on_news
        self._known = known
        self._confirm_empty_s = confirm_empty_s
        self._rng = rng
        self._errors = 0
        self._answered_at: float | None = None
        self._stale_since: float | None = None
        self._why = ""
        self._empty_since: float | None = None  # on the loop's clock
        self.task = asyncio.create_task(self._run(), name=f"discovery of pool {pool}")

    @property
    def status(self) -> SourceStatus:
        return SourceStatus(
            self._kind,
            len(self.endpoints or ()),
            self._answered_at,
            self._stale_since,
            self._why,
            self._errors,
        )

    async def _run(self) -> None:
        failures = 0
        while True:
            try:
                async with asyncio.timeout(None) as patience, aclosing(self._source.answers()) as answers:
                    async for answer in answers:
                        _end_if_cancelled()
                        if len(answer) > _MOST_ENDPOINTS:
                            raise SourceError(
                                f"it lists {len(answer):,} endpoints, and {_MOST_ENDPOINTS:,} is the most"
                            )
                        failures = 0
                        self._take(answer)
                        patience.reschedule(self._ask_anew_at())
                why, fault = "it stopped answering", None
            except (SourceError, AccessError, OSError) as error:
                if patience.expired():
                    continue
                why, fault = one_line(error), None
            except Exception as error:  # noqa: BLE001 - it is logged below, once
                why, fault = unforeseen(error), error
            _end_if_cancelled()
            failures += 1
            self._fail(why, fault)
            pause = min(_FIRST_RETRY_S * 2 ** min(failures - 1, 16), self._source.longest_retry_s)
            await asyncio.sleep(pause * self._rng.uniform(0.8, 1.2))

    def _take(self, answer: Answer) -> None:
        self._answered_at = time.time()
        in_use = self._in_use
        if answer or not in_use or self._is_confirmed():
            self._empty_since = None
            self._recover(answer, in_use)
            self._put_in_use(answer)
        else:
            self._empty_since = self._empty_since or asyncio.get_running_loop().time()
            self._doubt(f"it lists no endpoints: the last {len(in_use)} are kept unless it says so again")
            self._put_in_use(in_use)

    def _fail(self, why: str, fault: Exception | None) -> None:
        self._errors += 1
        kept = f"; the last {len(self._in_use)} endpoints are kept" if self._in_use else ""
        self._doubt(f"{why}{kept}", fault)
        self._put_in_use(self._in_use)

    @property
    def _in_use(self) -> Answer:
        return self._known if self.endpoints is None else self.endpoints

    def _put_in_use(self, answer: Answer) -> None:
        if answer != self.endpoints:
            self.endpoints = answer
            self._on_news()

    def _is_confirmed(self) -> bool:
        loop = asyncio.get_running_loop()
        return self._empty_since is not None and loop.time() >= self._empty_since + self._confirm_empty_s

    def _ask_anew_at(self) -> float | None:
        return None if self._empty_since is None else self._empty_since + self._confirm_empty_s

    def _doubt(self, why: str, fault: Exception | None = None) -> None:
        if self._stale_since is None:
            self._stale_since = time.time()
        if why != self._why:
            self._why = why
            logger.warning("pool %s: discovery by %s: %s", self._pool, self._kind, why, exc_info=fault)

    def _recover(self, answer: Answer, in_use: Answer) -> None:
        if self._stale_since is not None:
            if in_use and not answer:
                news = f"it still lists no endpoints: the last {len(in_use)} are taken out"
            else:
                news = f"it is good again: {len(answer)} endpoints"
            logger.info("pool %s: discovery by %s: %s", self._pool, self._kind, news)
        self._stale_since, self._why = None, ""


def _end_if_cancelled() -> None:
    """Raise a cancellation that was swallowed on the way: asyncio.wait_for, which libraries use, does so in 3.11."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
