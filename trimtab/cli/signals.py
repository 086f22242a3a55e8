"""`trimtab signals`: reads the engines once or again and again, as the control plane would, and shows what it got."""

import asyncio
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

from rich.console import Console, Group
from rich.live import Live

from trimtab.cli import signal_rows
from trimtab.health.state import ProbeView
from trimtab.observation.kinds import Observation, SignalsRead
from trimtab.policy import load_policy
from trimtab.policy.model import Policy, Pool
from trimtab.pool import EndpointDecision, EndpointSpec, PoolController
from trimtab.process.stopping import stop_signal, unless_stopped
from xds_server.probes.pace import probe_pause_s
from xds_server.readers import Readers
from xds_server.signals import Scraper

_READINGS = 2  # rates need two
_REFRESH_S = 1.0
_PATIENCE_S = 6.0  # for names that resolve slowly, on top of what the readings themselves may take


async def signals(policy_path: Path, *, as_json: bool, watch: bool, console: Console) -> None:
    """Show the signals of every endpoint of a policy; with `watch`, until SIGINT or SIGTERM.

    Raises PolicyError.
    """
    policy = load_policy(policy_path)
    with stop_signal() as stop:
        async with _Reader(policy) as reader:
            if not watch:
                await unless_stopped(stop, reader.wait_complete())
                _show(reader, console, as_json=as_json)
            elif as_json:
                while not stop.is_set():
                    await unless_stopped(stop, asyncio.sleep(_REFRESH_S))
                    _show(reader, console, as_json=True)
            else:
                with Live(console=console, auto_refresh=False, screen=console.is_terminal) as live:
                    while not stop.is_set():
                        live.update(reader.tables(), refresh=True)
                        await unless_stopped(stop, asyncio.sleep(_REFRESH_S))


def _show(reader: "_Reader", console: Console, *, as_json: bool) -> None:
    if as_json:
        sys.stdout.write(json.dumps(reader.as_json()) + "\n")
        sys.stdout.flush()
    else:
        console.print(reader.tables())


class _Reader:
    """Discovery and sources of signals, with the same profiles behind them as in the control plane."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._pools = {pool.name: PoolController(pool, random.Random()) for pool in policy.pools}
        self._endpoints: dict[str, Sequence[EndpointSpec]] = {}
        self._read: Counter[tuple[str, str]] = Counter()
        self._news = asyncio.Event()
        self._asked: set[tuple[str, str]] = set()
        self._readers = Readers(self._observe, self._take_endpoints, self._decision_of, self._heard, probe_spread=0)

    async def __aenter__(self) -> Self:
        await self._readers.__aenter__()
        self._readers.put_in_force(self._policy)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._readers.__aexit__(*exc)

    async def wait_complete(self) -> None:
        """Wait until every source has been asked for all it has, or should have been."""
        patience_s = _PATIENCE_S + max(
            (_READINGS * pool.signals.scrape_interval_ms + pool.signals.scrape_timeout_ms) / 1000
            + pool.probe.interval_s
            for pool in self._policy.pools
        )
        with suppress(TimeoutError):
            async with asyncio.timeout(patience_s):
                while not self._complete():
                    self._news.clear()
                    await self._news.wait()

    def tables(self) -> Group:
        """All pools, for people."""
        now = time.time()
        shown = []
        for pool in self._policy.pools:
            why = _why_not_read(pool)
            shown += [
                signal_rows.table(pool.name, endpoint.view, now, why, _probe(pool, endpoint))
                for endpoint in self._endpoints_of(pool, now)
            ]
            if missing := self._missing(pool):
                shown.append(signal_rows.missing(pool.name, missing))
        return Group(*shown)

    def as_json(self) -> dict[str, Any]:
        """All pools, for programs."""
        now = time.time()
        return {
            "at": now,
            "pools": {
                pool.name: {
                    "unresolved": list(self._readers.discovery.unresolved(pool.name)),
                    "discovery": self._why_not_found(pool),
                    "endpoints": [
                        signal_rows.as_json(endpoint.view, now, _why_not_read(pool), _probe(pool, endpoint))
                        for endpoint in self._endpoints_of(pool, now)
                    ],
                }
                for pool in self._policy.pools
            },
        }

    def _complete(self) -> bool:
        for pool in self._policy.pools:
            if pool.name not in self._endpoints:
                return False
            if Scraper.reads(pool) and any(
                self._read[pool.name, endpoint.address] < _READINGS for endpoint in self._endpoints[pool.name]
            ):
                return False
            queries = pool.signals.prometheus.texts(pool.engine) if pool.signals.prometheus else ()
            if self._endpoints[pool.name] and any((pool.name, signal) not in self._asked for signal in queries):
                return False
            if pool.probe.interval_s and any(
                endpoint.probe.at is None and not probe_pause_s(endpoint, time.time(), pool.probe.interval_s)
                for endpoint in self._endpoints_of(pool, time.time())
            ):
                return False
        return True

    def _endpoints_of(self, pool: Pool, now: float) -> Sequence[EndpointDecision]:
        return self._pools[pool.name].step(now).endpoints

    def _decision_of(self, name: str, address: str) -> EndpointDecision | None:
        """None until it was read: whether it is idle is not known before."""
        pool = next(each for each in self._policy.pools if each.name == name)
        if Scraper.reads(pool) and not self._read[name, address]:
            return None
        return next((each for each in self._endpoints_of(pool, time.time()) if each.id.address == address), None)

    def _missing(self, pool: Pool) -> dict[str, str]:
        """What is not among the endpoints, and why."""
        missing = dict.fromkeys(self._readers.discovery.unresolved(pool.name), "its name does not resolve")
        if why := self._why_not_found(pool):
            missing["those of discovery"] = why
        return missing

    def _why_not_found(self, pool: Pool) -> str | None:
        """Why the source of a pool has told nothing; None if it has, or if the policy lists the endpoints."""
        source = self._readers.discovery.statuses().get(pool.name)
        if source is None or source.answered_at is not None:
            return None
        return source.why or "it has not answered yet"

    def _take_endpoints(self, name: str, endpoints: Sequence[EndpointSpec]) -> None:
        self._endpoints[name] = endpoints
        pool = next(each for each in self._policy.pools if each.name == name)
        self._pools[name].set_endpoints(time.time(), endpoints)
        self._readers.update(pool, endpoints)
        self._news.set()

    def _observe(self, observations: Sequence[Observation]) -> None:
        now = time.time()
        for observation in observations:
            self._pools[observation.pool].observe(now, [observation])
            if isinstance(observation, SignalsRead):
                self._read[observation.pool, observation.address] += 1
        self._news.set()

    def _heard(self, pool: str, signal: str, error: str) -> None:
        self._asked.add((pool, signal))
        self._news.set()


def _probe(pool: Pool, endpoint: EndpointDecision) -> ProbeView | None:
    return endpoint.probe if pool.probe.interval_s else None


def _why_not_read(pool: Pool) -> str:
    if Scraper.reads(pool):
        return ""
    return f"{pool.engine} shows no metrics" if pool.signals.scrape else "signals.scrape is false"
