"""What it costs to read a hundred engines: `python -m tests.bench.scrape`.

Ratios are to prometheus_client's parser alone over the whole of the same page, a recorded one of vLLM.
"""

import asyncio
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from trimtab.observation.kinds import SignalsRead
from trimtab.policy.model import Pool
from trimtab.pool import EndpointSpec
from xds_server.signals import Scraper, new_session, page_names, read_page

PAGE = (Path(__file__).parents[1] / "unit" / "xds_server" / "data" / "vllm_metrics_loaded.txt").read_bytes()
ENGINES = 100


def _cpu_of(work: Callable[[], object], repeats: int) -> float:
    """CPU seconds of one call, the best of three rounds."""

    def once() -> float:
        began = time.thread_time()
        for _ in range(repeats):
            work()
        return (time.thread_time() - began) / repeats

    return min(once() for _ in range(3))


@contextmanager
def _engine() -> Iterator[int]:
    """Serves the page from a thread of its own, whose CPU time is not counted. Yields the port."""
    head = f"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {len(PAGE)}\r\n\r\n".encode()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.readline():
            while (await reader.readline()).strip():
                pass
            writer.write(head + PAGE)
            await writer.drain()

    loop = asyncio.new_event_loop()
    server = loop.run_until_complete(asyncio.start_server(answer, "127.0.0.1", 0, backlog=2 * ENGINES))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        server.close()
        loop.run_until_complete(asyncio.sleep(0.1))  # the client has left: connections end by themselves
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()


async def _scrape(port: int, rounds: int) -> float:
    """CPU seconds of one reading, the HTTP client included."""
    readings: list[SignalsRead] = []
    done = asyncio.Event()

    def take(batch: Sequence[SignalsRead]) -> None:
        readings.extend(batch)
        if len(readings) >= rounds * ENGINES:
            done.set()

    signals = {"scrape_interval_ms": 1000, "scrape_timeout_ms": 1000}
    async with new_session() as session:
        scraper = Scraper(take, session, rng=random.Random(0))
        began = time.thread_time()
        for number in range(ENGINES):
            pool = {"name": f"p{number}", "endpoints": [{"address": "unused:1"}], "signals": signals}
            scraper.update(Pool.model_validate(pool), [EndpointSpec(f"127.0.0.1:{port}", "engine")])
        await done.wait()
        took = time.thread_time() - began
        await scraper.close()
    failed = [reading.error for reading in readings if reading.error]
    if failed:
        raise RuntimeError(f"{len(failed)} of {len(readings)} readings failed: {failed[0]}")
    return took / len(readings)


def main() -> None:
    text = PAGE.decode()
    library = _cpu_of(lambda: list(text_string_to_metric_families(text)), 20)
    names = page_names(Pool.model_validate({"name": "p", "endpoints": [{"address": "unused:1"}]}))
    ours = _cpu_of(lambda: read_page(names, PAGE), 500)
    with _engine() as port:
        whole = asyncio.run(_scrape(port, rounds=5))
    print(f"a page of {len(PAGE)} bytes and {text.count(chr(10))} lines, CPU time per page")
    for what, seconds in (
        ("prometheus_client's parser", library),
        ("read_page", ours),
        ("scrape: HTTP and read_page", whole),
    ):
        print(f"{what:<28}{seconds * 1e3:8.3f} ms {seconds / library:8.3f}")
    print(f"{ENGINES} engines, once a second: {whole * ENGINES * 100:.1f} % of a core")


if __name__ == "__main__":
    main()
