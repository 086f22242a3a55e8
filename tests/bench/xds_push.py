"""The cost of a weight push at 10, 100 and 1,000 endpoints: `python -m tests.bench.xds_push [--clients N] [--json]`.

The clients run in a process of their own, half of them in state of the world, half in delta; they read and
acknowledge. CPU time is that of the server's process with all its threads.
"""

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Iterable
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass

from tests.xds import resources as make
from tests.xds.clients import DeltaClient, StateOfTheWorldClient
from tests.xds.server import Tally, XdsServer, joined
from xds_server.ads.snapshot import TypeUrl
from xds_server.config.endpoints import EndpointWeight, build_assignment

ENDPOINTS = (10, 100, 1_000)
PUSHES = 50


@dataclass(frozen=True)
class Cost:
    """What one push costs."""

    endpoints: int
    clients: int
    size_bytes: int  # on the wire, to one client
    build_us: float  # wall time to build and serialise the assignment
    push_us: float  # CPU of the server for all clients, acknowledgements included
    push_us_per_client: float
    acknowledged_ms: float  # wall time from the change to the last client's acknowledgement


class Acknowledged(Tally):
    """Tells when every client has acknowledged the newest weights."""

    def __init__(self, clients: int) -> None:
        super().__init__()
        self.all_have = asyncio.Event()
        self._clients = clients

    def expect(self) -> None:
        self.all_have.clear()
        self.acks.clear()

    def acked(self, node: str, type_url: str, version: str, seconds: float) -> None:
        super().acked(node, type_url, version, seconds)
        if self.acks.total() == self._clients:
            self.all_have.set()


def weights(endpoints: int, number: int) -> bytes:
    return build_assignment(
        "a",
        [
            EndpointWeight(f"10.0.{index // 250}.{index % 250}", 8000, 100 + (index + number) % 50)
            for index in range(endpoints)
        ],
    )


async def measure(clients: int, sizes: Iterable[int] = ENDPOINTS) -> list[Cost]:
    """The costs at each number of endpoints, with so many clients connected."""
    acknowledged = Acknowledged(clients)
    server = XdsServer(tally=acknowledged)
    server.cache.publish(make.world({"a": {8000: 1}}))
    await server.start()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.bench.xds_push", "--visit", str(server.port), "--clients", str(clients)
    )
    try:
        await asyncio.wait_for(acknowledged.all_have.wait(), 60)
        return [await _cost(server, acknowledged, clients, endpoints) for endpoints in sizes]
    finally:
        process.kill()
        await process.wait()
        await server.stop()


async def _cost(server: XdsServer, acknowledged: Acknowledged, clients: int, endpoints: int) -> Cost:
    began = time.perf_counter()
    bodies = [weights(endpoints, number) for number in range(PUSHES)]
    built = time.perf_counter() - began
    server.tally.pushes.clear()
    began, cpu_before = time.perf_counter(), time.process_time()
    for body in bodies:
        acknowledged.expect()
        server.cache.assign("a", body)
        await asyncio.wait_for(acknowledged.all_have.wait(), 60)
    took, cpu = time.perf_counter() - began, time.process_time() - cpu_before
    sizes = [size for _, _, _, size in server.tally.pushes]
    return Cost(
        endpoints=endpoints,
        clients=clients,
        size_bytes=round(sum(sizes) / len(sizes)),
        build_us=built / PUSHES * 1e6,
        push_us=cpu / PUSHES * 1e6,
        push_us_per_client=cpu / PUSHES / clients * 1e6,
        acknowledged_ms=took / PUSHES * 1e3,
    )


async def visit(port: int, clients: int) -> None:
    """Be the clients."""
    async with AsyncExitStack() as stack:
        for number in range(clients):
            client = (StateOfTheWorldClient, DeltaClient)[number % 2](f"n{number}")
            client.subscribe(TypeUrl.EDS, "a")
            await stack.enter_async_context(joined(port, client))
        await asyncio.Event().wait()


def table(costs: list[Cost]) -> str:
    lines = ["endpoints  clients   bytes  build µs  push µs  push µs per client  acknowledged ms"]
    lines += [
        f"{cost.endpoints:9}{cost.clients:9}{cost.size_bytes:8}{cost.build_us:10.0f}{cost.push_us:9.0f}"
        f"{cost.push_us_per_client:20.0f}{cost.acknowledged_ms:17.2f}"
        for cost in costs
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.xds_push", description=__doc__)
    parser.add_argument("--clients", type=int, action="append", help="how many at a time (1, 10 and 100)")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--visit", type=int, metavar="PORT", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.visit:
        asyncio.run(visit(arguments.visit, arguments.clients[0]))
        return
    costs = [cost for clients in arguments.clients or (1, 10, 100) for cost in asyncio.run(measure(clients))]
    print(json.dumps([asdict(cost) for cost in costs], indent=2) if arguments.json else table(costs))


if __name__ == "__main__":
    main()
