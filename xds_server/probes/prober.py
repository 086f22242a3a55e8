"""Asks idle endpoints for one token, beside all traffic, to see that they generate."""

import asyncio
import json
import logging
import random
import ssl
import time
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from fnmatch import fnmatchcase
from types import TracebackType
from typing import Any, Protocol

import aiohttp

from trimtab.observation.kinds import Probed, ProbeResult
from trimtab.policy.engines import engine_tables
from trimtab.policy.model import Pool, ScrapeTls
from trimtab.pool import EndpointDecision, EndpointSpec
from xds_server.access import Access, AccessError, read_body, why_failed
from xds_server.probes.pace import probe_pause_s
from xds_server.signals.model_card import MODELS_PATH
from xds_server.signals.reader import PoolReader
from xds_server.signals.scraper import certificate_host

logger = logging.getLogger(__name__)

PROBE_HEADER = "x-trimtab-probe"

_HEADERS = {PROBE_HEADER: "1", "Accept": "text/event-stream"}
_PATHS = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}
_PROMPT = "Hi"
_WILDCARDS = frozenset("*?[")
# An engine that goes on after the one token that it was asked for is left.
_MAX_ANSWER_BYTES = 64 * 2**10
_MAX_LIST_BYTES = 2**20
_JITTER = 0.1


class Answer(Protocol):
    """Reads the answer of one probe as it comes."""

    result: ProbeResult | None  # None: not decided yet
    reason: str
    token_seen: bool  # a token was seen; what follows may still be an error
    model: str  # that it names; empty if none

    def feed(self, chunk: bytes) -> None:
        """Take the next piece of the body."""

    def finish(self) -> ProbeResult:
        """The result when no more is read."""


ReadAnswer = Callable[[int, Mapping[str, str], float], Answer]  # of a status, headers in lower case, Unix time


@dataclass(frozen=True, slots=True)
class _Target:
    pool: str
    address: str
    base_url: str
    host: str | None  # whose certificate is expected; None without TLS
    api: str
    model: str | None  # None: what the engine lists
    serves: tuple[str, ...]  # the pool's globs
    token_file: str | None
    tls: ScrapeTls | None
    interval_s: float
    deadline_s: float

    def __str__(self) -> str:
        return f"probe {self.address}"


class _Budget:
    """So many probes of a pool at a time, and so many in a second."""

    def __init__(self, max_concurrent: int, max_per_s: float) -> None:
        self.numbers = (max_concurrent, max_per_s)
        self._places = asyncio.Semaphore(max_concurrent)
        self._pause_s = 1 / max_per_s
        self._next_at = 0.0  # of the event loop's clock

    async def __aenter__(self) -> None:
        await self._places.acquire()
        now = asyncio.get_running_loop().time()
        at = max(now, self._next_at)
        self._next_at = at + self._pause_s
        try:
            await asyncio.sleep(at - now)
        except asyncio.CancelledError:
            self._places.release()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._places.release()


class _Undecided(Exception):
    """The probe was not answered for a reason that is not the engine's; the message is one line."""


class Prober(PoolReader[_Target]):
    """One task per endpoint. Which of them are to be probed follows from their latest decisions: `decision_of` gives
    that of a pool and an address.

    `on_probed` gets what each probe found, and nothing of an endpoint after it was taken out. Probes go straight to
    the engines. `spread` is the part of an interval over which the first ones are strewn. Everything runs on the
    event loop of the caller.
    """

    def __init__(
        self,
        on_probed: Callable[[Sequence[Probed]], None],
        session: aiohttp.ClientSession,
        read_answer: ReadAnswer,
        decision_of: Callable[[str, str], EndpointDecision | None],
        *,
        spread: float = 1.0,
    ) -> None:
        super().__init__()
        self.read_answer = read_answer
        self._on_probed = on_probed
        self._session = session
        self._decision_of = decision_of
        self._spread = spread
        self._access = Access()
        self._budgets: dict[str, _Budget] = {}
        self._rng = random.Random()

    def _jobs(self, pool: Pool, endpoints: Sequence[EndpointSpec]) -> Set[_Target]:
        numbers = (pool.probe.max_concurrent, pool.probe.max_per_s)
        budget = self._budgets.get(pool.name)
        if budget is None or budget.numbers != numbers:
            self._budgets[pool.name] = _Budget(*numbers)
        return _targets(pool, endpoints)

    async def _run(self, target: _Target) -> None:
        await asyncio.sleep(self._rng.uniform(0, self._spread * target.interval_s))
        undecided = ""
        while True:
            pause_s = self._pause_s(target)
            if not pause_s:
                async with self._budgets[target.pool]:
                    # It may have got work while this waited.
                    pause_s = self._pause_s(target)
                    if not pause_s:
                        probed = await self._probe(target)
                        undecided = _log_undecided(target, probed, undecided)
                        self._notify(probed)
                        # The next decision, which takes it into account, says when there is to be another.
                        pause_s = 0.25 * target.interval_s
            await asyncio.sleep(pause_s * self._rng.uniform(1 - _JITTER, 1 + _JITTER))

    def _pause_s(self, target: _Target) -> float:
        return probe_pause_s(self._decision_of(target.pool, target.address), time.time(), target.interval_s)

    def _notify(self, probed: Probed) -> None:
        try:
            self._on_probed((probed,))
        except Exception:
            logger.exception("a probe of %s was not taken in", probed.address)

    async def _probe(self, target: _Target) -> Probed:
        started_at = time.time()
        ttft_s = None
        try:
            listed = await self._list_models(target) if target.model is None else ()
            asked = target.model or _first_served(listed, target.serves)
            if not asked:
                what = f"none of {', '.join(listed)[:100]} is a model of the pool" if listed else "it lists no model"
                result, reason = ProbeResult.WRONG, what
            else:
                started_at = time.time()
                result, reason, ttft_s, model = await self._generate(target, asked)
                if result is ProbeResult.TOKEN and model not in ("", asked):
                    result, reason = await self._check_alias(target, asked, model, listed)
        except _Undecided as cause:
            result, reason = ProbeResult.UNDECIDED, str(cause)
        except TimeoutError:
            result, reason = ProbeResult.SILENT, f"{MODELS_PATH} took longer than {target.deadline_s:g} s"
        except (aiohttp.ClientSSLError, AccessError) as cause:
            result, reason = ProbeResult.UNDECIDED, why_failed(cause)
        except (aiohttp.ClientError, OSError) as cause:
            result, reason = ProbeResult.SILENT, why_failed(cause)
        return Probed(
            time.time(),
            target.pool,
            target.address,
            started_at,
            result,
            ttft_s if result is ProbeResult.TOKEN else None,
            reason,
        )

    async def _generate(self, target: _Target, model: str) -> tuple[ProbeResult, str, float | None, str]:
        """Ask for a token: the result with its reason, after how long the token came, and the model that answered."""
        loop = asyncio.get_running_loop()
        started, ttft_s, status, size = loop.time(), None, 0, 0
        answer: Answer | None = None
        try:
            # aiohttp's own timers can swallow a cancellation that comes at the same moment.
            async with asyncio.timeout(target.deadline_s):
                async with self._session.post(
                    target.base_url + _PATHS[target.api], json=_body(target.api, model), **self._options(target)
                ) as response:
                    status = response.status
                    headers = {name.lower(): value for name, value in response.headers.items()}
                    answer = self.read_answer(status, headers, time.time())
                    async for chunk in response.content.iter_any():
                        answer.feed(chunk)
                        if answer.token_seen and ttft_s is None:
                            ttft_s = loop.time() - started
                        size += len(chunk)
                        if answer.result is not None or size > _MAX_ANSWER_BYTES:
                            break
        except TimeoutError:
            if answer is None or not answer.token_seen:
                header = f"HTTP {status}, but " if status else ""
                return ProbeResult.SILENT, f"{header}no token within {target.deadline_s:g} s", None, ""
        except (aiohttp.ClientPayloadError, ConnectionError) as cause:
            if answer is None or not answer.token_seen:
                return ProbeResult.SILENT, why_failed(cause), None, ""
        result = answer.finish()
        return result, f"{answer.reason}{_fix(status, target)}", ttft_s, answer.model

    async def _list_models(self, target: _Target) -> tuple[str, ...]:
        async with (
            asyncio.timeout(target.deadline_s),
            self._session.get(target.base_url + MODELS_PATH, **self._options(target)) as response,
        ):
            if response.status != 200:
                raise _Undecided(f"HTTP {response.status} from {MODELS_PATH}: name the model in probe.model")
            body = await read_body(response, _MAX_LIST_BYTES)
        try:
            return tuple(str(model["id"]) for model in json.loads(body or b"")["data"])
        except (ValueError, KeyError, TypeError, RecursionError):
            raise _Undecided(f"{MODELS_PATH} is no list of models: name the model in probe.model") from None

    async def _check_alias(
        self, target: _Target, asked: str, answered: str, listed: tuple[str, ...]
    ) -> tuple[ProbeResult, str]:
        """An engine that has several names for a model may answer with another of them than was asked for."""
        try:
            names = listed or await self._list_models(target)
        except (_Undecided, TimeoutError, aiohttp.ClientError, OSError):
            names = ()
        if {asked, answered} <= set(names):
            return ProbeResult.TOKEN, ""
        return ProbeResult.WRONG, f"model {answered[:60]!r} answered, not {asked[:60]!r}"

    def _options(self, target: _Target) -> dict[str, Any]:
        tls: ssl.SSLContext | bool = True
        if target.tls:
            tls = self._access.tls(target.tls.ca_file, target.tls.skip_verify)
        return {
            "headers": {**_HEADERS, **self._access.headers(target.token_file)},
            "ssl": tls,
            "server_hostname": target.host,
            # A token is for this engine alone, and what answers elsewhere is another engine.
            "allow_redirects": False,
            "timeout": aiohttp.ClientTimeout(total=None),
        }


def _body(api: str, model: str) -> dict[str, Any]:
    prompt = {"messages": [{"role": "user", "content": _PROMPT}]} if api == "chat" else {"prompt": _PROMPT}
    return {"model": model, **prompt, "max_tokens": 1, "stream": True}


def _fix(status: int, target: _Target) -> str:
    if status not in (401, 403):
        return ""
    return "; is its token file right?" if target.token_file else "; it may want a probe.token_file"


def _first_served(models: Iterable[str], globs: Sequence[str]) -> str | None:
    return next((model for model in models if any(fnmatchcase(model, glob) for glob in globs)), None)


def _log_undecided(target: _Target, probed: Probed, before: str) -> str:
    """Say once that probes are of no use; all else is seen in the endpoint's state. Returns what was last said."""
    reason = probed.reason if probed.result is ProbeResult.UNDECIDED else ""
    if reason and reason != before:
        logger.warning("pool %s: probes of %s decide nothing: %s", target.pool, target.address, reason)
    return reason


def _targets(pool: Pool, endpoints: Iterable[EndpointSpec]) -> set[_Target]:
    probe, signals = pool.probe, pool.signals
    if not probe.interval_s:
        return set()
    # What opens the page of metrics opens the API where both have one port.
    same_port = not (signals.scrape_port or engine_tables()[pool.engine].port)
    tls = signals.scrape_tls if same_port else None
    scheme = "https" if tls else "http"
    return {
        _Target(
            pool=pool.name,
            address=endpoint.address,
            base_url=f"{scheme}://{endpoint.address}",
            host=certificate_host(endpoint) if tls else None,
            api=probe.api,
            model=probe.model or next((glob for glob in pool.models if not _WILDCARDS & set(glob)), None),
            serves=pool.models,
            token_file=probe.token_file or (signals.scrape_token_file if same_port else None),
            tls=tls,
            interval_s=probe.interval_s,
            deadline_s=probe.deadline_ms / 1000,
        )
        for endpoint in endpoints
    }
