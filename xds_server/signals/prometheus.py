"""Asks Prometheus servers about the endpoints of pools, at a steady pace and beside the event loop."""

import asyncio
import contextlib
import logging
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field

from trimtab.observation.kinds import PrometheusSample
from trimtab.policy.model import Pool
from trimtab.policy.prometheus import Prometheus
from trimtab.pool import EndpointSpec
from xds_server.access import unforeseen
from xds_server.signals.prometheus_join import join
from xds_server.signals.prometheus_query import Answer, Asker, QueryFailed
from xds_server.signals.reader import PoolReader
from xds_server.signals.troubles import Troubles

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Question:
    """One query of one pool."""

    pool: str
    signal: str
    query: str
    rules: tuple[tuple[str, str], ...]
    server: Prometheus = field(hash=False)

    def __str__(self) -> str:
        return f"ask {self.pool} {self.signal}"


class PrometheusSource(PoolReader[_Question]):
    """One task and at most one thread for each query: one that hangs delays no other, nor the event loop.

    `on_read` gets what each answer says of each endpoint, and failures too. `on_query` hears of every query by pool
    and signal, and what went wrong ("" for nothing). `now` is Unix seconds. All but the asking itself runs on the
    event loop of the caller. A thread that still waits at the end ends by itself, and what it finds is dropped.
    """

    def __init__(
        self,
        on_read: Callable[[Sequence[PrometheusSample]], None],
        on_query: Callable[[str, str, str], None] = lambda pool, signal, error: None,
        *,
        now: Callable[[], float] = time.time,
        rng: random.Random | None = None,
    ) -> None:
        super().__init__()
        self._on_read = on_read
        self._on_query = on_query
        self._now = now
        self._rng = rng or random.Random()
        self._troubles: dict[tuple[str, str], Troubles] = {}  # by pool and URL

    def _jobs(self, pool: Pool, endpoints: Sequence[EndpointSpec]) -> Set[_Question]:
        return _questions(pool)

    async def close(self) -> None:
        await super().close()
        for troubles in self._troubles.values():
            troubles.close()

    def _aim(self, pool: str, wanted: Set[_Question]) -> None:
        super()._aim(pool, wanted)
        asked = {(question.pool, question.server.url) for question in wanted}
        for gone in [key for key in self._troubles if key[0] == pool and key not in asked]:
            self._troubles.pop(gone).close()
        for key in asked - self._troubles.keys():
            self._troubles[key] = Troubles(*key)

    def _dropped(self, question: _Question) -> None:
        self._troubles_of(question).forget(question.signal)

    def _troubles_of(self, question: _Question) -> Troubles:
        return self._troubles[question.pool, question.server.url]

    async def _run(self, question: _Question) -> None:
        loop = asyncio.get_running_loop()
        interval_s, timeout_s = question.server.interval_ms / 1000, question.server.timeout_ms / 1000
        asker = Asker(question.server, question.query, dict(question.rules))
        asking: asyncio.Future[Answer | Exception] | None = None
        # Spread over the first second, so that a server is not asked everything in one burst.
        due = loop.time() + self._rng.uniform(0, min(1.0, interval_s))
        try:
            while True:
                await asyncio.sleep(due - loop.time())
                # A question that was given up may still be under way: it is not asked a second time meanwhile.
                if asking is None or asking.done():
                    asking = _in_thread(asker.ask, f"ask {question.signal}")
                await asyncio.wait({asking}, timeout=timeout_s)
                self._notify(question, asking)
                due = max(due + interval_s, loop.time())
        finally:
            if asking is None or asking.done():
                asker.close()

    def _notify(self, question: _Question, asking: asyncio.Future[Answer | Exception]) -> None:
        timeout_s = question.server.timeout_ms / 1000
        found = asking.result() if asking.done() else QueryFailed(f"no whole answer within {timeout_s:g} s")
        try:
            if isinstance(found, Answer):
                self._on_query(question.pool, question.signal, "")
                self._on_read(self._joined(question, found))
            else:
                self._on_query(question.pool, question.signal, str(found))
                self._on_read(self._failed(question, found))
        except Exception:
            logger.exception("pool %s: what Prometheus said of %s was not taken in", question.pool, question.signal)

    def _joined(self, question: _Question, answer: Answer) -> Sequence[PrometheusSample]:
        endpoints, now = self._endpoints[question.pool], self._now()
        joined = join(answer, endpoints, dict(question.rules))
        reasons = {one.error for one in joined.values()}
        self._troubles_of(question).note("", "")
        self._troubles_of(question).note(question.signal, "" if "" in reasons or not reasons else min(reasons))
        return [
            PrometheusSample(now, question.pool, address, question.signal, one.value, now - one.age_s, one.error)
            for address, one in joined.items()
        ]

    def _failed(self, question: _Question, error: Exception) -> Sequence[PrometheusSample]:
        now = self._now()
        if isinstance(error, QueryFailed):
            why = str(error)
            self._troubles_of(question).note("" if error.server else question.signal, why)
        else:
            why = unforeseen(error)
            self._troubles_of(question).note(question.signal, why, error)
        return [
            PrometheusSample(now, question.pool, endpoint.address, question.signal, None, error=why, answered=False)
            for endpoint in self._endpoints[question.pool]
        ]


def _questions(pool: Pool) -> set[_Question]:
    server = pool.signals.prometheus
    if server is None:
        return set()
    joins: Mapping[str, Mapping[str, str]] = server.joins()
    return {
        _Question(pool.name, signal, query, tuple(joins.get(signal, server.join).items()), server)
        for signal, query in server.texts(pool.engine).items()
    }


def _in_thread(ask: Callable[[], Answer], name: str) -> asyncio.Future[Answer | Exception]:
    """Ask in a thread that ends with the process, whatever it waits for; a failure is a result too."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Answer | Exception] = loop.create_future()

    def settle(found: Answer | Exception) -> None:
        if not future.done():
            future.set_result(found)

    def run() -> None:
        found: Answer | Exception
        try:
            found = ask()
        except Exception as error:  # noqa: BLE001 - it is told where the result is awaited
            found = error
        with contextlib.suppress(RuntimeError):  # the loop may have ended meanwhile
            loop.call_soon_threadsafe(settle, found)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future
