"""From a change at an engine to the new weight in force in real Envoy: `python -m tests.bench.loop [--json]`.

The engines and the clients are this process, Trimtab and each Envoy a process of their own. A change begins when the
engine shows it for the first time, and ends when an Envoy's admin page shows another weight; with several Envoys the
slowest counts. Changes come at random moments, so that all phases of the loop are met.
"""

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field
from math import inf
from pathlib import Path
from statistics import quantiles
from typing import Any, Literal

import aiohttp
from aiohttp import web
from rich.console import Console
from rich.progress import track
from rich.table import Table

from tests.harness import Body, EnvoyProcess, FakeEngine, Reset, Step, error, free_port, tokens
from tests.system.stack import Trimtab
from trimtab.lab.local_stack import on_free_ports
from trimtab.policy import load_policy
from xds_server.config.bootstrap import render_bootstrap

_CHAT = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "hello"}]}
_POLL_S = 0.002
_PATIENCE_S = 20.0


class Engine(FakeEngine):
    """One engine, well until its `fault` says how it answers."""

    def __init__(self) -> None:
        super().__init__(self._answer_to)
        self.fault: Step | None = None
        self.waiting = 0
        self.met_at = 0.0  # Unix seconds: when the first answer since `change` was sent

    def change(self, fault: Step | None) -> None:
        self.fault, self.met_at = fault, 0.0

    def _answer_to(self, request: web.Request, body: bytes) -> Step:
        if request.path == "/metrics":
            return Body(body=f"vllm:num_requests_waiting {self.waiting}\n".encode(), headers={})
        if request.path != "/v1/chat/completions":
            return Body()
        self.met_at = self.met_at or time.time()
        return self.fault or tokens(2)


@dataclass(frozen=True)
class EndpointHealth:
    """An endpoint as an Envoy has it."""

    weight: int
    is_out: bool


@dataclass(frozen=True)
class Case:
    """One way in which an engine changes."""

    source: str
    what: str
    goal_ms: float
    before: Step | None  # how the engine answers until the change
    after: Step | None
    effect: Literal["out", "less", "more"]  # taken out, or another weight
    waiting: int = 0  # what its page says then

    def is_done(self, before: EndpointHealth, now: EndpointHealth) -> bool:
        # A weight still moves by some percent while earlier errors are forgotten.
        match self.effect:
            case "out":
                return now.is_out
            case "less":
                return now.weight < 0.9 * before.weight
            case "more":
                return now.weight > 1.1 * before.weight


CASES = (
    Case("scrape", "30 requests wait", 350, None, None, "less", waiting=30),
    Case("reject", "503, it is full", 250, None, error(503, "The server is overloaded: too many requests"), "out"),
    Case("access log", "the connection is reset", 250, None, Reset(), "out"),
    # The other way round an ever longer wait would lower the weight before the token comes.
    Case("watch", "first token at once, after 0.2 s", 250, tokens(2, first_s=0.2), tokens(2), "more"),
)

_POOL = {
    "name": "m",
    "scoring": {"strategy": "health", "ttft_threshold_ms": 200, "ttft_alpha": 1},
    # An endpoint is back soon, so that the next change need not wait, but never before it was seen to be out.
    "weighting": {
        "cool_down_min_s": 1.5,
        "cool_down_max_s": 1.5,
        "cool_down_growth": 1,
        "slow_start_points_per_s": 1e4,
        "breaker_failures": 1,
        "breaker_open_s": 1.5,
    },
    "retries": {"back_off_base_ms": 1, "back_off_max_ms": 2},
}


@dataclass
class Edge:
    """One Envoy, and what it has in force for the endpoint under test."""

    envoy: EnvoyProcess
    address: str
    session: aiohttp.ClientSession = field(init=False)
    updates: int = -1
    health: EndpointHealth = EndpointHealth(0, True)
    seen_at: float = 0.0  # Unix seconds: when the last change was seen

    async def watch(self) -> None:
        """Ask again and again; the long page only when there was an update."""
        async with self.envoy.session() as self.session:
            while True:
                await self._look()
                await asyncio.sleep(_POLL_S)

    async def _look(self) -> None:
        async with self.session.get("/stats?filter=^cluster\\.m\\.update_success$") as answer:
            updates = int((await answer.text()).rpartition(":")[2] or 0)
        now = time.time()
        if updates != self.updates:
            async with self.session.get("/clusters?format=json") as answer:
                page = await answer.json(content_type=None)
            health = _health_of(page, self.address)
            self.updates = updates
            if health and health != self.health:
                self.health, self.seen_at = health, now


def _health_of(page: Mapping[str, Any], address: str) -> EndpointHealth | None:
    for cluster in page["cluster_statuses"]:
        for host in cluster.get("host_statuses", []) if cluster["name"] == "m" else []:
            place = host["address"]["socket_address"]
            if f"{place['address']}:{place['port_value']}" == address:
                return EndpointHealth(host["weight"], host["health_status"].get("eds_health_status") == "DRAINING")
    return None


@dataclass(frozen=True)
class Figures:
    """How long the changes of one kind took."""

    source: str
    what: str
    endpoints: int
    envoys: int
    changes: int
    p50_ms: float
    p90_ms: float
    p99_ms: float
    max_ms: float
    goal_ms: float


class Bench:
    """A pool of `endpoints`, the first of which is under test, behind so many Envoys."""

    def __init__(self, folder: Path, endpoints: int, envoys: int, scrape: bool) -> None:
        self._folder = folder
        self._engines = [Engine() for _ in range(endpoints)]
        self._envoys = envoys
        self._scrape = scrape
        self._rng = random.Random(1)
        self._stack = AsyncExitStack()
        self._watches: list[asyncio.Task[None]] = []
        self.edges: list[Edge] = []
        self.trimtab: Trimtab

    @property
    def engine(self) -> Engine:
        return self._engines[0]

    async def __aenter__(self) -> "Bench":
        async with AsyncExitStack() as stack:
            for engine in self._engines:
                await engine.start()
                stack.push_async_callback(engine.stop)
            self.trimtab = Trimtab(self._folder, "serve", self._policy())
            stack.push_async_callback(self.trimtab.stop)
            await self.trimtab.start()
            policy = load_policy(self.trimtab.policy_file)
            for number in range(self._envoys):
                admin, own = f"127.0.0.1:{free_port()}", self._folder / f"edge-{number}"
                own.mkdir()
                bootstrap = render_bootstrap(policy, node_id=f"edge-{number}", admin=admin)
                edge = Edge(EnvoyProcess(bootstrap, admin, own), self.engine.address)
                stack.push_async_callback(edge.envoy.stop)
                await edge.envoy.start()
                self.edges.append(edge)
            await self.trimtab.wait_serving()
            self._client = await stack.enter_async_context(aiohttp.ClientSession())
            # What Envoy serves before it is connected to the ext_proc workers is not seen.
            while not await self.trimtab.metric("trimtab_ttft_seconds_count"):
                await self._ask()
            self._watches = [asyncio.create_task(edge.watch()) for edge in self.edges]
            for watch in self._watches:
                stack.callback(watch.cancel)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._stack.aclose()

    def _policy(self) -> dict[str, Any]:
        # A quarter of the work or more, however large the pool is.
        capacities = [max(1.0, len(self._engines) / 3), *(1.0 for _ in self._engines[1:])]
        endpoints = [
            {"address": engine.address, "capacity": capacity}
            for engine, capacity in zip(self._engines, capacities, strict=True)
        ]
        signals = {"scrape": self._scrape, "scrape_interval_ms": 100, "scrape_timeout_ms": 80}
        return {**on_free_ports(), "pools": [{**_POOL, "endpoints": endpoints, "signals": signals}]}

    async def measure(self, case: Case, changes: int) -> Figures:
        console = Console(stderr=True)
        took_ms = [1e3 * await self._change(case) for _ in track(range(changes), case.source, console=console)]
        found = quantiles(took_ms, n=100, method="inclusive")
        return Figures(
            source=case.source,
            what=case.what,
            endpoints=len(self._engines),
            envoys=self._envoys,
            changes=changes,
            p50_ms=found[49],
            p90_ms=found[89],
            p99_ms=found[98],
            max_ms=max(took_ms),
            goal_ms=case.goal_ms,
        )

    async def _change(self, case: Case) -> float:
        """Seconds that one change took."""
        self.engine.waiting = 0
        before = await self._settled(None)
        if case.before is not None:
            before = await self._settled(case.before, below=0.9 * before.weight)
        await asyncio.sleep(self._rng.uniform(0, 0.2))
        self.engine.change(case.after)
        if case.waiting:
            self.engine.waiting, self.engine.met_at = case.waiting, time.time()
        await self._until(lambda: self.engine.met_at > 0, ask=not case.waiting)
        await self._until(lambda: all(case.is_done(before, edge.health) for edge in self.edges), ask=False)
        return max(edge.seen_at for edge in self.edges) - self.engine.met_at

    async def _settled(self, fault: Step | None, below: float = inf) -> EndpointHealth:
        """Wait until all Envoys have the endpoint in, with a weight that stays."""
        self.engine.change(fault)
        while True:
            await self._until(lambda: self.engine.met_at > 0, ask=True)
            before = [edge.health for edge in self.edges]
            await asyncio.sleep(0.3)
            after = [edge.health for edge in self.edges]
            if before == after and len(set(after)) == 1 and not after[0].is_out and after[0].weight < below:
                return after[0]
            self.engine.met_at = 0.0

    async def _until(self, condition: Callable[[], bool], *, ask: bool) -> None:
        """Wait for `condition`, and meanwhile `ask` for answers, one after another."""
        async with asyncio.timeout(_PATIENCE_S):
            while not condition():
                for watch in self._watches:
                    if watch.done():
                        watch.result()
                if ask:
                    await self._ask()
                else:
                    await asyncio.sleep(_POLL_S)

    async def _ask(self) -> None:
        async with self._client.post(f"{self.trimtab.url}/v1/chat/completions", json=_CHAT) as answer:
            await answer.read()


async def run(changes: int, sizes: Sequence[tuple[int, int]], sources: Sequence[str]) -> list[Figures]:
    found = []
    for endpoints, envoys in sizes:
        # To read a hundred pages ten times a second takes a core; nobody asks for that.
        scrape = endpoints <= 10
        with tempfile.TemporaryDirectory(prefix="trimtab-bench-") as folder:
            async with Bench(Path(folder), endpoints, envoys, scrape) as bench:
                for case in CASES:
                    if case.source in sources and (scrape or case.source != "scrape"):
                        found.append(await bench.measure(case, changes))
    return found


def table(figures: Sequence[Figures]) -> Table:
    shown = Table(title="From a change at the engine to its weight in Envoy, ms", title_justify="left")
    shown.add_column("source")
    for heading in ("endpoints", "Envoys", "changes", "P50", "P90", "P99", "max", "goal"):
        shown.add_column(heading, justify="right")
    for row in figures:
        times = (row.p50_ms, row.p90_ms, row.p99_ms, row.max_ms, row.goal_ms)
        counts = (row.endpoints, row.envoys, row.changes)
        shown.add_row(row.source, *map(str, counts), *(f"{ms:.0f}" for ms in times))
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.loop", description=__doc__)
    parser.add_argument("--changes", type=int, default=60, help="of each kind")
    parser.add_argument("--source", action="append", choices=[case.source for case in CASES], help="all of them")
    parser.add_argument("--size", action="append", nargs=2, type=int, metavar=("ENDPOINTS", "ENVOYS"), help="3 1")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    sizes = arguments.size or [(3, 1)]
    figures = asyncio.run(run(arguments.changes, sizes, arguments.source or [case.source for case in CASES]))
    if arguments.json:
        sys.stdout.write(json.dumps([asdict(row) for row in figures], indent=2) + "\n")
    else:
        Console().print(table(figures))


if __name__ == "__main__":
    main()
