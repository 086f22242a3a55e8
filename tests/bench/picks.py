"""How well a real Envoy follows pushed weights, at many pushes a request and at many requests a push:
`python -m tests.bench.picks [--workers N] [--requests N] [--json]`.

A push makes each worker of Envoy begin its schedule anew, always at the same place. Where pushes are more frequent
than requests, each request is so the first of a schedule, which for the same weights is always the same. The
candidates are policies of balancing and ways to write the weights that might cure it.

Only the order of pushes and requests matters, so nothing is timed: a push is awaited until Envoy has acknowledged it.
Requests come at random moments, 10 pushes a second being assumed. Each candidate is measured in several clusters, for
the place where a schedule begins is drawn once for each cluster and worker.
"""

import argparse
import asyncio
import json
import random
import tempfile
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from math import sqrt
from pathlib import Path
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tests.harness import EnvoyProcess, free_port
from tests.xds.server import Tally, XdsServer
from xds_server.ads.snapshot import TypeUrl
from xds_server.config.endpoints import EndpointWeight, build_assignment

SEEDS = 3  # clusters of each candidate
WORKERS = (1, 4)
REQUESTS = 100  # of each cluster in each cell
PUSHES_PER_S = 10
RATES_PER_S = (0.5, 2.5, 25, 250)
SHARE = 0.6
_MARKED_Z = 3
_CONNECTIONS = 32  # the kernel spreads them over the workers
_IN_FORCE_S = 0.003  # workers have new weights a moment after Envoy has acknowledged them
_ENDPOINTS = 1_000
_COSTED_PUSHES = 40
_TABLE_WIDTH = 220

Json = dict[str, Any]
Targets = Iterator[float]  # the share of the first host, push after push


@dataclass(frozen=True)
class Candidate:
    """A policy of balancing, and how the weights are written for it."""

    name: str
    policy: Json  # fields of Envoy's cluster
    jitter: float = 0.0  # each weight is multiplied by up to 1 ± this, anew for each push
    scale: int = 10_000  # the sum of the weights

    def weights(self, shares: Collection[float], rng: random.Random) -> list[int]:
        return [
            max(1, round(self.scale * share * rng.uniform(1 - self.jitter, 1 + self.jitter)))
            if self.jitter
            else round(self.scale * share)
            for share in shares
        ]


def _maglev(table_size: int) -> Json:
    return {"lb_policy": "MAGLEV", "maglev_lb_config": {"table_size": table_size}}


_ROUND_ROBIN: Json = {"lb_policy": "ROUND_ROBIN"}
_LEAST_REQUEST: Json = {
    "lb_policy": "LEAST_REQUEST",
    "least_request_lb_config": {"active_request_bias": {"default_value": 1.0, "runtime_key": "unused"}},
}
_FINE = 1_000_000

CANDIDATES = (
    Candidate("round_robin", _ROUND_ROBIN),
    Candidate("jitter 0.5 %", _ROUND_ROBIN, 0.005),
    Candidate("jitter 2 %, fine", _ROUND_ROBIN, 0.02, _FINE),  # what is pushed
    Candidate("least_request, 2 %, fine", _LEAST_REQUEST, 0.02, _FINE),
    Candidate("maglev 1009", _maglev(1009)),
    Candidate("maglev 65537", _maglev(65537)),
)
_COSTED: Mapping[str, Json] = {
    "round_robin": _ROUND_ROBIN,
    "least_request": _LEAST_REQUEST,
    "maglev 1009": _maglev(1009),
    "maglev 10007": _maglev(10007),
    "maglev 65537": _maglev(65537),
}


def _fixed(rng: random.Random) -> Targets:
    while True:
        yield SHARE


def _alternating(rng: random.Random) -> Targets:
    while True:
        yield SHARE - 0.01
        yield SHARE


def _moving(rng: random.Random) -> Targets:
    share = SHARE
    while True:
        share = min(max(share + rng.uniform(-0.02, 0.02), 0.5), 0.7)
        yield share


_FIXED = "fixed"
MODES: Mapping[str, Callable[[random.Random], Targets]] = {
    _FIXED: _fixed,  # and never pushed again
    "fixed, pushed again": _fixed,
    "alternating": _alternating,
    "moving": _moving,
}


@dataclass
class Tried:
    """The picks of one cluster in one cell."""

    picked: int = 0  # the first host
    shares: list[float] = field(default_factory=list)  # what it should have had, one for each request

    @property
    def achieved(self) -> float:
        return self.picked / len(self.shares)

    @property
    def expected(self) -> float:
        return sum(self.shares) / len(self.shares)

    @property
    def z(self) -> float:
        """How far off, in standard deviations of a weighted draw."""
        sigma = sqrt(sum(share * (1 - share) for share in self.shares))
        return (self.picked - sum(self.shares)) / sigma


@dataclass(frozen=True)
class Cell:
    """What one candidate made of one mode at one rate."""

    workers: int
    mode: str
    rate_per_s: float
    candidate: str
    requests: int
    expected: float
    achieved: float
    z: float
    achieved_each: list[float]  # by cluster
    z_each: list[float]

    @property
    def worst_z(self) -> float:
        return max(self.z_each, key=abs)

    @property
    def is_off(self) -> bool:
        return max(abs(self.z), abs(self.worst_z)) > _MARKED_Z


class _Acknowledged(Tally):
    """Tells when Envoy has acknowledged assignments, or refused them."""

    def __init__(self) -> None:
        super().__init__()
        self.has = asyncio.Event()

    def acked(self, node: str, type_url: str, version: str, seconds: float) -> None:
        if type_url == TypeUrl.EDS:
            self.has.set()

    def nacked(self, node: str, type_url: str, version: str, reason: str) -> None:
        super().nacked(node, type_url, version, reason)
        self.has.set()


class _Fleet:
    """An Envoy with clusters, and what pushes to it."""

    def __init__(self, server: XdsServer, acknowledged: _Acknowledged, envoy: EnvoyProcess) -> None:
        self.envoy = envoy
        self._server = server
        self._acknowledged = acknowledged

    async def push(self, assignments: Mapping[str, bytes]) -> None:
        """Push in one response, and wait until Envoy has acknowledged. It is not told what has not changed."""
        self._acknowledged.has.clear()
        changed = [name for name, body in assignments.items() if self._server.cache.assign(name, body)]
        if changed:
            await asyncio.wait_for(self._acknowledged.has.wait(), 10)
        if self._acknowledged.refusals:
            raise RuntimeError(f"Envoy refuses: {self._acknowledged.refusals[0]}")


@asynccontextmanager
async def _fleet(
    clusters: Mapping[str, Json], assignments: Mapping[str, bytes], listeners: Sequence[Json], workers: int
) -> AsyncIterator[_Fleet]:
    """Starts Envoy with these clusters, which have these assignments at first."""
    acknowledged = _Acknowledged()
    server = XdsServer(tally=acknowledged)
    server.cache.publish({TypeUrl.EDS: assignments})
    await server.start()
    try:
        with tempfile.TemporaryDirectory() as directory:
            admin = f"unix:{directory}/admin.sock"
            bootstrap = json.dumps(_bootstrap(admin, server.port, clusters, listeners))
            envoy = EnvoyProcess(bootstrap, admin, Path(directory), concurrency=workers)
            try:
                await envoy.start()
                yield _Fleet(server, acknowledged, envoy)
            finally:
                await envoy.stop()
    finally:
        await server.stop()


def _bootstrap(admin: str, xds_port: int, clusters: Mapping[str, Json], listeners: Sequence[Json]) -> Json:
    xds = {"endpoint": {"address": _address(xds_port)}}
    options = {
        "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
        "explicit_http_config": {"http2_protocol_options": {}},
    }
    grpc = {"envoy_grpc": {"cluster_name": "xds"}}
    return {
        "node": {"id": "picks", "cluster": "picks"},
        "admin": {"address": {"pipe": {"path": admin.removeprefix("unix:")}}},
        "dynamic_resources": {
            "ads_config": {"api_type": "DELTA_GRPC", "transport_api_version": "V3", "grpc_services": [grpc]}
        },
        "static_resources": {
            "listeners": listeners,
            "clusters": [
                {
                    "name": "xds",
                    "type": "STATIC",
                    "typed_extension_protocol_options": {
                        "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": options
                    },
                    "load_assignment": {"cluster_name": "xds", "endpoints": [{"lb_endpoints": [xds]}]},
                },
                *(
                    {
                        "name": name,
                        "type": "EDS",
                        "eds_cluster_config": {"eds_config": {"ads": {}, "resource_api_version": "V3"}},
                        "common_lb_config": {"update_merge_window": "0s", "healthy_panic_threshold": {"value": 0}},
                        **policy,
                    }
                    for name, policy in clusters.items()
                ),
            ],
        },
    }


def _address(port: int) -> Json:
    return {"socket_address": {"address": "127.0.0.1", "port_value": port}}


def _listener(name: str, port: int, routes: Sequence[Json], headers: Sequence[Json] = ()) -> Json:
    extensions = "type.googleapis.com/envoy.extensions.filters"
    router = f"{extensions}.http.router.v3.Router"
    manager = {
        "@type": f"{extensions}.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": name,
        "route_config": {
            "virtual_hosts": [{"name": name, "domains": ["*"], "routes": routes, "response_headers_to_add": headers}]
        },
        "http_filters": [{"name": "envoy.filters.http.router", "typed_config": {"@type": router}}],
    }
    network_filter = {"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}
    return {"name": name, "address": _address(port), "filter_chains": [{"filters": [network_filter]}]}


def _host(name: str, port: int) -> Json:
    """A host of every cluster, which is a listener of the same Envoy that tells its name."""
    header = {"header": {"key": "x-host", "value": name}}
    return _listener(name, port, [{"match": {"prefix": "/"}, "direct_response": {"status": 200}}], [header])


class _Connection:
    """One connection to Envoy, kept for many requests."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def to(cls, port: int) -> "_Connection":
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def ask(self, cluster: str) -> str:
        """The name of the host that answers."""
        self._writer.write(f"GET /{cluster}/ HTTP/1.1\r\nhost: picks\r\n\r\n".encode())
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode()
        for line in head.splitlines():
            name, _, value = line.partition(": ")
            if name == "x-host":
                return value
        raise RuntimeError(f"no host has answered: {head}")

    def close(self) -> None:
        self._writer.close()


class _Bench:
    """The clusters of all candidates, pushed and asked together."""

    def __init__(self, hosts: Sequence[int], rng: random.Random) -> None:
        self.clusters = {
            f"c{number}-{seed}": candidate for number, candidate in enumerate(CANDIDATES) for seed in range(SEEDS)
        }
        self._hosts = hosts
        self._rng = rng

    def assignments(self, share: float) -> dict[str, bytes]:
        """The weights of every cluster for that share of the first host."""
        return {
            name: build_assignment(
                name,
                [
                    EndpointWeight("127.0.0.1", port, weight)
                    for port, weight in zip(self._hosts, candidate.weights((share, 1 - share), self._rng), strict=True)
                ],
            )
            for name, candidate in self.clusters.items()
        }

    async def cell(
        self, fleet: _Fleet, connections: Sequence[_Connection], mode: str, rate_per_s: float, requests: int
    ) -> Mapping[str, Tried]:
        """Push and ask in one mode and at one rate."""
        targets, share = MODES[mode](self._rng), SHARE
        await fleet.push(self.assignments(share))
        tried = {name: Tried() for name in self.clusters}
        now = 0.0  # in intervals between pushes
        for _ in range(requests):
            before, now = now, now + self._rng.expovariate(rate_per_s / PUSHES_PER_S)
            for _ in range(int(now) - int(before)):
                share = next(targets)
                if mode != _FIXED:
                    await fleet.push(self.assignments(share))
            if int(now) > int(before):
                await asyncio.sleep(_IN_FORCE_S)
            drawn = self._rng.sample(connections, len(self.clusters))
            answers = await asyncio.gather(
                *(connection.ask(name) for connection, name in zip(drawn, self.clusters, strict=True))
            )
            for one, host in zip(tried.values(), answers, strict=True):
                one.picked += host == "first"
                one.shares.append(share)
        return tried


async def measure(workers: int, requests: int) -> list[Cell]:
    """Every candidate in every mode at every rate, in an Envoy with so many workers."""
    first, second, port = (free_port() for _ in range(3))
    bench = _Bench((first, second), random.Random(workers))
    routes = [{"match": {"prefix": f"/{name}/"}, "route": {"cluster": name}} for name in bench.clusters]
    listeners = [_host("first", first), _host("second", second), _listener("entry", port, routes)]
    policies = {name: candidate.policy for name, candidate in bench.clusters.items()}
    cells: list[Cell] = []
    async with _fleet(policies, bench.assignments(SHARE), listeners, workers) as fleet:
        connections = [await _Connection.to(port) for _ in range(_CONNECTIONS)]
        try:
            for mode in MODES:
                for rate_per_s in RATES_PER_S:
                    tried = await bench.cell(fleet, connections, mode, rate_per_s, requests)
                    cells += _cells(workers, mode, rate_per_s, bench, tried)
        finally:
            for connection in connections:
                connection.close()
    return cells


def _cells(workers: int, mode: str, rate_per_s: float, bench: _Bench, tried: Mapping[str, Tried]) -> Iterator[Cell]:
    for candidate in CANDIDATES:
        each = [tried[name] for name, its_candidate in bench.clusters.items() if its_candidate is candidate]
        whole = Tried(sum(one.picked for one in each), [share for one in each for share in one.shares])
        yield Cell(
            workers=workers,
            mode=mode,
            rate_per_s=rate_per_s,
            candidate=candidate.name,
            requests=len(whole.shares),
            expected=whole.expected,
            achieved=whole.achieved,
            z=whole.z,
            achieved_each=[one.achieved for one in each],
            z_each=[one.z for one in each],
        )


@dataclass(frozen=True)
class Cost:
    """The CPU time of Envoy that a push to a large cluster takes."""

    workers: int
    policy: str
    main_us: float  # of the main thread
    all_us: float  # of all threads


async def cost(workers: int) -> list[Cost]:
    """What a push of new weights for every one of many endpoints costs an Envoy with so many workers."""
    rng = random.Random(0)

    def assignment(name: str) -> bytes:
        return build_assignment(
            name,
            [
                EndpointWeight(f"10.0.{number // 250}.{number % 250}", 8000, rng.randint(900, 1100))
                for number in range(_ENDPOINTS)
            ],
        )

    spent = {name: [0, 0] for name in _COSTED}
    async with _fleet(_COSTED, {name: assignment(name) for name in _COSTED}, [], workers) as fleet:
        for number in range(_COSTED_PUSHES + 1):
            for name, sums in spent.items():
                body = assignment(name)
                before = _cpu_ns(fleet.envoy.pid)
                await fleet.push({name: body})
                await asyncio.sleep(0.01)  # workers, and what the main thread has put off
                after = _cpu_ns(fleet.envoy.pid)
                if number:  # the first is for warming up
                    for place in range(2):
                        sums[place] += after[place] - before[place]
    return [Cost(workers, name, *(total / _COSTED_PUSHES / 1e3 for total in sums)) for name, sums in spent.items()]


def _cpu_ns(pid: int) -> tuple[int, int]:
    """CPU time so far: of the main thread, and of all."""
    each = {
        thread.name: int((thread / "schedstat").read_text().split()[0])
        for thread in Path(f"/proc/{pid}/task").iterdir()
    }
    return each[str(pid)], sum(each.values())


def _show(console: Console, cells: Sequence[Cell], costs: Sequence[Cost]) -> None:
    for workers in dict.fromkeys(cell.workers for cell in cells):
        ours = [cell for cell in cells if cell.workers == workers]
        table = Table(
            title=f"share of the first host, z of all and of the worst of {SEEDS} clusters: "
            f"Envoy with {workers} worker{'s' * (workers > 1)}",
            title_justify="left",
            box=SIMPLE,
            pad_edge=False,
        )
        table.add_column("mode", no_wrap=True)
        for heading in ("requests/s", "pushes/request", "asked for"):
            table.add_column(heading, justify="right")
        for candidate in CANDIDATES:
            table.add_column(candidate.name, justify="right")
        for mode in MODES:
            for rate_per_s in RATES_PER_S:
                row = [cell for cell in ours if (cell.mode, cell.rate_per_s) == (mode, rate_per_s)]
                table.add_row(
                    mode,
                    f"{rate_per_s:g}",
                    "0" if mode == _FIXED else f"{PUSHES_PER_S / rate_per_s:g}",
                    f"{row[0].expected:.3f}",
                    *(_text(cell) for cell in row),
                )
        console.print(table)
    off = {
        candidate.name: sum(cell.is_off for cell in cells if cell.candidate == candidate.name)
        for candidate in CANDIDATES
    }
    console.print(
        f"beyond {_MARKED_Z} standard deviations of a weighted draw, of {len(cells) // len(CANDIDATES)} cells: "
        + ", ".join(f"{name} {number}" for name, number in off.items()),
        highlight=False,
    )
    table = Table(
        title=f"CPU of Envoy for a push of {_ENDPOINTS:,} weights", title_justify="left", box=SIMPLE, pad_edge=False
    )
    table.add_column("policy")
    for heading in ("workers", "main thread, µs", "by round_robin's", "all threads, µs", "by round_robin's"):
        table.add_column(heading, justify="right")
    for one in costs:
        base = next(other for other in costs if (other.workers, other.policy) == (one.workers, "round_robin"))
        table.add_row(
            one.policy,
            str(one.workers),
            f"{one.main_us:,.0f}",
            f"{one.main_us / base.main_us:.2f}",
            f"{one.all_us:,.0f}",
            f"{one.all_us / base.all_us:.2f}",
        )
    console.print(table)


def _text(cell: Cell) -> Text:
    mark = "!" if cell.is_off else " "
    return Text(f"{cell.achieved:.3f} {cell.z:+5.1f} {cell.worst_z:+5.1f}{mark}", style="bold red" * cell.is_off)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.picks", description=__doc__)
    parser.add_argument("--workers", type=int, action="append", help="of Envoy (1 and 4)")
    parser.add_argument("--requests", type=int, default=REQUESTS, help=f"of each cluster in each cell ({REQUESTS})")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    cells: list[Cell] = []
    costs: list[Cost] = []
    for workers in arguments.workers or WORKERS:
        cells += asyncio.run(measure(workers, arguments.requests))
        costs += asyncio.run(cost(workers))
    if arguments.json:
        made = {"cells": [asdict(cell) for cell in cells], "costs": [asdict(one) for one in costs]}
        print(json.dumps(made, indent=2))
    else:
        # Wider than most terminals; a row that is folded cannot be read.
        _show(Console(width=_TABLE_WIDTH), cells, costs)


if __name__ == "__main__":
    main()
