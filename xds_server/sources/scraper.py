"""Reads each engine's own metrics page at a steady pace."""

import asyncio
import logging
import random
import socket
import time
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass

import aiohttp

from trimtab.fleet.observation import Signals, SignalsRead
from trimtab.policy.model import Pool
from trimtab.pool import EndpointSpec
from xds_server.sources.page import MAX_PAGE_BYTES, read_page

logger = logging.getLogger(__name__)

_HEADERS = {
    "Accept": "text/plain; version=0.0.4",
    # The engine and the control plane are close to each other and short of CPU: compression would cost
    # both.
    "Accept-Encoding": "identity",
    "User-Agent": "trimtab",
}


def new_session() -> aiohttp.ClientSession:
    """A session fit for scraping: endpoints never wait for each other's connections, and share no cookies."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, socket_factory=_slow_socket),
        cookie_jar=aiohttp.DummyCookieJar(),
        headers=_HEADERS,
    )


# aiohttp parses all that a read brings before anyone else has a turn, and a flood of interim answers (1xx), of which
# any number may come before a page, costs most: without a bound it was seen to hold up the event loop for a second.
_RECEIVE_BUFFER = 16 * 2**10


def _slow_socket(address: aiohttp.AddrInfoType) -> socket.socket:
    family, kind, protocol, *_ = address
    made = socket.socket(family, kind, protocol)
    made.setblocking(False)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER)
    return made


class ScrapeError(Exception):
    """A page was not read; the message is one line."""


@dataclass(frozen=True, slots=True)
class _Target:
    pool: str
    address: str
    engine: str
    path: str
    interval_s: float
    timeout_s: float


class Scraper:
    """One task per endpoint, each with its own pace and deadline; a black-holed endpoint delays no other.

    `on_read` gets every reading, the failed ones too (`Signals()` with `error`), and none of an endpoint
    after it was taken out. `now` stamps the readings, in Unix seconds. Everything runs on the event loop
    of the caller.
    """

    def __init__(
        self,
        on_read: Callable[[Sequence[SignalsRead]], None],
        session: aiohttp.ClientSession,
        *,
        now: Callable[[], float] = time.time,
        rng: random.Random | None = None,
    ) -> None:
        self._on_read = on_read
        self._session = session
        self._now = now
        self._rng = rng or random.Random()
        self._endpoints: dict[str, tuple[EndpointSpec, ...]] = {}
        self._tasks: dict[_Target, asyncio.Task[None]] = {}

    def update(self, pool: Pool, endpoints: Sequence[EndpointSpec]) -> None:
        """Scrape these endpoints of `pool` from now on. One that stays as it was keeps its pace."""
        self._endpoints[pool.name] = tuple(endpoints)
        self._aim(pool.name, _targets(pool, endpoints))

    def reconfigure(self, pools: Iterable[Pool]) -> None:
        """Take the sources of a new policy for the known endpoints; those of a pool that is gone are left."""
        kept = {pool.name: pool for pool in pools}
        for name in self._endpoints.keys() - kept.keys():
            del self._endpoints[name]
            self._aim(name, set())
        for name, endpoints in self._endpoints.items():
            self._aim(name, _targets(kept[name], endpoints))

    async def close(self) -> None:
        """Stop all scraping and wait until it has stopped. The session stays open: it is the caller's."""
        tasks = list(self._tasks.values())
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _aim(self, pool: str, wanted: Set[_Target]) -> None:
        for target in [t for t in self._tasks if t.pool == pool and t not in wanted]:
            self._tasks.pop(target).cancel()
        for target in wanted - self._tasks.keys():
            self._tasks[target] = asyncio.create_task(self._run(target), name=f"scrape {target.address}")

    async def _run(self, target: _Target) -> None:
        loop = asyncio.get_running_loop()
        # Spread over the interval, so that a fleet is not read in one burst.
        due = loop.time() + self._rng.uniform(0, target.interval_s)
        failing = False
        while True:
            await asyncio.sleep(due - loop.time())
            reading = await self._read(target)
            if bool(reading.error) != failing:
                failing = not failing
                if failing:
                    logger.warning("pool %s: no signals from %s: %s", target.pool, target.address, reading.error)
                else:
                    logger.info("pool %s: signals from %s again", target.pool, target.address)
            try:
                self._on_read((reading,))
            except Exception:
                logger.exception("a reading of %s was not taken in", target.address)
            # A beat that was missed (a stopped process) is not made up for.
            due = max(due + target.interval_s, loop.time())

    async def _read(self, target: _Target) -> SignalsRead:
        signals, error = Signals(), ""
        try:
            # aiohttp's own timers can swallow a cancellation that comes at the same moment.
            async with asyncio.timeout(target.timeout_s):
                page = await self._fetch(target)
            signals = read_page(target.engine, page)
            if signals == Signals():
                error = f"{target.path} is no metrics page of {target.engine}"
        except TimeoutError:
            error = f"no whole answer within {target.timeout_s:g} s"
        except (aiohttp.ClientError, OSError, ScrapeError) as cause:
            error = " ".join(str(cause).split())[:200] or type(cause).__name__
        return SignalsRead(at=self._now(), pool=target.pool, address=target.address, signals=signals, error=error)

    async def _fetch(self, target: _Target) -> bytes:
        async with self._session.get(
            f"http://{target.address}{target.path}",
            allow_redirects=False,
            timeout=aiohttp.ClientTimeout(total=None),
        ) as response:
            if response.status != 200:
                raise ScrapeError(f"HTTP {response.status} from {target.path}")
            page = bytearray()
            async for chunk in response.content.iter_any():
                page += chunk
                if len(page) > MAX_PAGE_BYTES:
                    response.close()
                    raise ScrapeError(f"{target.path} is above {MAX_PAGE_BYTES} bytes")
            return bytes(page)


def _targets(pool: Pool, endpoints: Iterable[EndpointSpec]) -> set[_Target]:
    source = pool.signals
    if not source.scrape:
        return set()
    return {
        _Target(
            pool=pool.name,
            address=endpoint.address,
            engine=pool.engine,
            path=source.scrape_path,
            interval_s=source.scrape_interval_ms / 1000,
            timeout_s=source.scrape_timeout_ms / 1000,
        )
        for endpoint in endpoints
    }
