"""Reads each engine's own metrics page at a steady pace."""

import asyncio
import logging
import random
import socket
import time
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass, field

import aiohttp

from trimtab.observation.kinds import Signals, SignalsRead
from trimtab.policy.engines import engine_tables
from trimtab.policy.model import Pool, ScrapeTls, split_host_port
from trimtab.pool import EndpointSpec
from xds_server.access import Access, AccessError, read_body, unforeseen, why_failed
from xds_server.signals.model_card import MODELS_PATH, ModelCard, read_card
from xds_server.signals.names import PageNames, page_names
from xds_server.signals.page import MAX_PAGE_BYTES, read_page
from xds_server.signals.reader import PoolReader

logger = logging.getLogger(__name__)

_HEADERS = {
    "Accept": "text/plain; version=0.0.4",
    # The engine and the control plane are close to each other and short of CPU: compression would cost
    # both.
    "Accept-Encoding": "identity",
    "User-Agent": "trimtab",
}

# A model is changed by a restart, which takes an engine longer than this.
_CARD_PERIOD_S = 60.0


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
    url: str
    path: str
    models_url: str  # where the engine lists its models; empty if it is not asked
    host: str | None  # whose certificate is expected; None without TLS
    engine: str
    names: PageNames = field(hash=False)  # which would be hashed in full for each of a thousand endpoints
    token_file: str | None
    tls: ScrapeTls | None
    interval_s: float
    timeout_s: float

    def __str__(self) -> str:
        return f"scrape {self.address}"


class Scraper(PoolReader[_Target]):
    """One task per endpoint, each with its own pace and deadline; a black-holed endpoint delays no other.

    `on_read` gets every reading, the failed ones too (`Signals()` with `error`), and none of an endpoint
    after it was taken out. An engine that shows no metrics is not asked. `now` stamps the readings, in Unix
    seconds. Everything runs on the event loop of the caller.
    """

    def __init__(
        self,
        on_read: Callable[[Sequence[SignalsRead]], None],
        session: aiohttp.ClientSession,
        *,
        now: Callable[[], float] = time.time,
        rng: random.Random | None = None,
    ) -> None:
        super().__init__()
        self._on_read = on_read
        self._session = session
        self._access = Access()
        self._now = now
        self._rng = rng or random.Random()

    @staticmethod
    def reads(pool: Pool) -> bool:
        """Whether the endpoints of a pool have pages that are to be read."""
        return pool.signals.scrape and bool(page_names(pool).signals)

    def _jobs(self, pool: Pool, endpoints: Sequence[EndpointSpec]) -> Set[_Target]:
        return _targets(pool, endpoints)

    async def _run(self, target: _Target) -> None:
        loop = asyncio.get_running_loop()
        # Spread over the interval, so that a fleet is not read in one burst.
        due = loop.time() + self._rng.uniform(0, target.interval_s)
        failing = False
        card, card_due = ModelCard(), due
        while True:
            await asyncio.sleep(due - loop.time())
            fault: Exception | None = None
            try:
                reading = await self._read(target)
            except Exception as error:  # noqa: BLE001 - it is logged below, once
                reading, fault = self._failed(target, unforeseen(error)), error
            if target.models_url:
                reading = card.added_to(reading)
            if bool(reading.error) != failing:
                failing = not failing
                if failing:
                    logger.warning(
                        "pool %s: no signals from %s: %s", target.pool, target.address, reading.error, exc_info=fault
                    )
                else:
                    logger.info("pool %s: signals from %s again", target.pool, target.address)
            try:
                self._on_read((reading,))
            except Exception:
                logger.exception("a reading of %s was not taken in", target.address)
            if target.models_url and not reading.error and loop.time() >= card_due:
                card, card_due = await self._read_card(target, card), loop.time() + _CARD_PERIOD_S
            # A beat that was missed (a stopped process) is not made up for.
            due = max(due + target.interval_s, loop.time())

    async def _read(self, target: _Target) -> SignalsRead:
        page, error = await self._get(target, target.url, target.path)
        if error:
            return self._failed(target, error)
        read = read_page(target.names, page)
        if not read.origins:
            return self._failed(target, f"{target.path} has none of the metrics of {target.engine}")
        return SignalsRead(
            self._now(), target.pool, target.address, read.signals, origins=read.origins, unknown=read.unknown
        )

    async def _read_card(self, target: _Target, before: ModelCard) -> ModelCard:
        try:
            body, error = await self._get(target, target.models_url, MODELS_PATH)
            return ModelCard(why=error) if error else read_card(body)
        except Exception as fault:
            card = ModelCard(why=unforeseen(fault))
            if card != before:
                logger.exception("pool %s: %s of %s was not read", target.pool, MODELS_PATH, target.address)
            return card

    async def _get(self, target: _Target, url: str, path: str) -> tuple[bytes, str]:
        """A whole answer, and why there is none."""
        try:
            # aiohttp's own timers can swallow a cancellation that comes at the same moment.
            async with asyncio.timeout(target.timeout_s):
                return await self._fetch(target, url, path), ""
        except TimeoutError:
            return b"", f"no whole answer within {target.timeout_s:g} s"
        except (aiohttp.ClientError, OSError, ScrapeError, AccessError) as cause:
            return b"", why_failed(cause)

    def _failed(self, target: _Target, error: str) -> SignalsRead:
        return SignalsRead(self._now(), target.pool, target.address, Signals(), error)

    async def _fetch(self, target: _Target, url: str, path: str) -> bytes:
        async with self._session.get(
            url,
            headers=self._access.headers(target.token_file),
            ssl=self._access.tls(target.tls.ca_file, target.tls.skip_verify) if target.tls else True,
            server_hostname=target.host,
            # A token is for this engine alone, and a page that is elsewhere is another engine's.
            allow_redirects=False,
            timeout=aiohttp.ClientTimeout(total=None),
        ) as response:
            if response.status != 200:
                raise ScrapeError(f"HTTP {response.status} from {path}{_fix(response, target)}")
            page = await read_body(response, MAX_PAGE_BYTES)
            if page is None:
                raise ScrapeError(f"{path} is above {MAX_PAGE_BYTES} bytes")
            return page


def _fix(response: aiohttp.ClientResponse, target: _Target) -> str:
    if response.status in (401, 403):
        return ": is scrape_token_file right?" if target.token_file else ": it may want a scrape_token_file"
    if 300 <= response.status < 400:
        return f", which leads to {response.headers.get('Location', 'nowhere')}: redirects are not followed"
    return ""


def _targets(pool: Pool, endpoints: Iterable[EndpointSpec]) -> set[_Target]:
    if not Scraper.reads(pool):
        return set()
    source, names, table = pool.signals, page_names(pool), engine_tables()[pool.engine]
    path = source.scrape_path or table.path
    port = source.scrape_port or table.port
    scheme = "https" if source.scrape_tls else "http"
    # The token and TLS are for the place of the page alone.
    lists_models = table.lists_models and port is None
    return {
        _Target(
            pool=pool.name,
            address=endpoint.address,
            url=f"{scheme}://{_with_port(endpoint.address, port)}{path}",
            path=path,
            models_url=f"{scheme}://{endpoint.address}{MODELS_PATH}" if lists_models else "",
            host=certificate_host(endpoint) if source.scrape_tls else None,
            engine=pool.engine,
            names=names,
            token_file=source.scrape_token_file,
            tls=source.scrape_tls,
            interval_s=source.scrape_interval_ms / 1000,
            timeout_s=source.scrape_timeout_ms / 1000,
        )
        for endpoint in endpoints
    }


def certificate_host(endpoint: EndpointSpec) -> str:
    """As the policy names it, else its IP address."""
    try:
        return split_host_port(endpoint.name)[0]
    except ValueError:
        return split_host_port(endpoint.address)[0]


def _with_port(address: str, port: int | None) -> str:
    return f"{address.rpartition(':')[0]}:{port}" if port else address
