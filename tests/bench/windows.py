"""What is kept of an endpoint: observations per second on one core, and memory when all windows are full.

python -m tests.bench.windows [--endpoints 1000]
"""

import argparse
import gc
import time
import tracemalloc
from collections.abc import Callable, Iterator
from random import Random

from trimtab.endpoint.engine_rates import RateWindow
from trimtab.endpoint.latency import LatencyEstimators
from trimtab.observation.kinds import (
    AttemptEnded,
    AttemptStarted,
    FirstToken,
    LoadReported,
    Observation,
    Outcome,
    Signals,
    SignalsRead,
    StreamRead,
)
from trimtab.policy.model import Pool
from trimtab.pool import EndpointSpec, PoolController
from trimtab.sim.kinds import KINDS
from trimtab.sim.metrics import MetricsPage
from xds_server.signals import PageNames, page_names, read_page

_MEMORY_S = 600.0
_COUNT = 200_000
_PER_S = 100  # of each kind, on one endpoint: all windows are full, and the burst filter has its yardstick


def _kinds(latency: LatencyEstimators, rates: RateWindow, random: Random) -> dict[str, Callable[[float], None]]:
    ttfts = [random.lognormvariate(-2, 0.8) for _ in range(4096)]
    gaps = [random.gauss(0.02, 0.002) for _ in range(4096)]
    parts = [tuple(gaps[at : at + 100]) for at in range(0, 4000, 100)]
    return {
        "a prompt": lambda at: latency.sent(at, int(at * 7919) % 9000),
        "a first token": lambda at: latency.token_seen(at, ttfts[int(at * _PER_S) % 4096]),
        "a reading of the counters": lambda at: _read(latency, rates, at, Signals(generated_tokens=at * 400)),
        "a part of a stream, of 100 tokens": lambda at: latency.decoded(at, parts[int(at * _PER_S) % 40]),
    }


def _read(latency: LatencyEstimators, rates: RateWindow, at: float, signals: Signals) -> None:
    rates.add(at, signals)
    latency.counted(at, rates.tokens_per_s_held)


def _full() -> tuple[LatencyEstimators, RateWindow]:
    latency, rates = LatencyEstimators(_MEMORY_S), RateWindow()
    for observe in _kinds(latency, rates, Random(2)).values():
        for number in range(70 * _PER_S):
            observe(1e9 + number / _PER_S)
    latency.decoding(1e9 + 70, 8)
    return latency, rates


def per_s(kind: str) -> float:
    """How many observations of a kind one core takes in."""
    observe = _kinds(LatencyEstimators(_MEMORY_S), RateWindow(), Random(1))[kind]
    count = _COUNT // 100 if "100 tokens" in kind else _COUNT
    begun = time.process_time()
    for number in range(count):
        observe(1e9 + number / _PER_S)
    return count / (time.process_time() - begun)


def mixed_per_s() -> float:
    """The observations of an attempt, in turn: its prompt, its first token, one gap of its stream, and a reading."""
    latency, rates, random = LatencyEstimators(_MEMORY_S), RateWindow(), Random(1)
    ttfts = [random.lognormvariate(-2, 0.8) for _ in range(4096)]
    gap, signals = (0.02,), Signals(generated_tokens=1e6, preemptions=3.0)
    begun = time.process_time()
    for number in range(_COUNT // 4):
        at = 1e9 + number / _PER_S
        latency.sent(at, number % 9000)
        latency.token_seen(at, ttfts[number % 4096])
        latency.decoded(at, gap)
        _read(latency, rates, at, signals)
    return _COUNT / (time.process_time() - begun)


class _Engine:
    """What is seen of one busy endpoint whose engine is a vLLM, second by second."""

    def __init__(self, address: str, names: PageNames, random: Random) -> None:
        self._address = address
        self._names = names
        self._random = random
        self._page = MetricsPage("m", KINDS["a100"], 0.0)
        self._number = 0

    def attempts(self, second: float, count: int, stream: int) -> Iterator[Observation]:
        """Streams that start in a second; of the first, `stream` gaps between tokens are read."""
        for number in range(count):
            at, ttft_s, request = second + number / count, self._random.lognormvariate(-2, 0.8), f"r{self._number}"
            self._number += 1
            self._page.observe("vllm:time_to_first_token_seconds", ttft_s)
            self._page.observe("vllm:inter_token_latency_seconds", self._random.gauss(0.02, 0.002), 100)
            self._page.add("vllm:generation_tokens_total", 101)
            self._page.add("vllm:prompt_tokens_total", 500)
            size = self._random.randrange(9000)
            yield AttemptStarted(at, "chat", self._address, request, size, True)
            yield FirstToken(at + ttft_s, "chat", self._address, request)
            if not number:
                gaps = tuple(self._random.gauss(0.02, 0.002) for _ in range(stream))
                yield StreamRead(at + ttft_s + 0.1, "chat", self._address, request, gaps, True, None)
            yield AttemptEnded(
                at + ttft_s + 0.2, "chat", self._address, request, at, 200, Outcome.COMPLETE, True, ttft_s, size, 9000
            )

    def answers(self, second: float, count: int) -> Iterator[Observation]:
        """unary answers that are asked for in a second."""
        for number in range(count):
            at, took_s, request = second + number / count, self._random.uniform(0.5, 4), f"r{self._number}"
            self._number += 1
            yield AttemptStarted(at, "chat", self._address, request, 500, False)
            yield AttemptEnded(
                at + took_s, "chat", self._address, request, at, 200, Outcome.COMPLETE, False, took_s, 500, 9000
            )

    def reading(self, at: float) -> SignalsRead:
        """As the scraper reads it."""
        page = read_page(self._names, self._page.render())
        return SignalsRead(at, "chat", self._address, page.signals, origins=page.origins, unknown=page.unknown)


def _busy(policy: Pool) -> PoolController:
    """A pool of which everything is known that windows can hold, and no attempt any more.

    Ten minutes of unary answers; a minute of streams that fills each third of the quantiles, with a page with
    two histograms a second and load reports, and a rush that gives the burst filter its yardstick; then quiet, until
    the attempts are forgotten.
    """
    addresses = [endpoint.address for endpoint in policy.endpoints]
    names, begun = page_names(policy), 1e9
    engines = [_Engine(address, names, Random(number)) for number, address in enumerate(addresses)]
    controller = PoolController(policy, Random(1))
    controller.set_endpoints(begun - 600, [EndpointSpec(address, address) for address in addresses])
    for second in range(-600, 0, 5):
        now = begun + second
        controller.observe(now + 5, [seen for engine in engines for seen in engine.answers(now, 3)])
        controller.step(now + 5)
    for second in range(72):
        now, busy = begun + second, second < 60
        for engine in engines:
            seen = list(engine.attempts(now, 100 if second == 59 else 8, 200)) if busy else []
            controller.observe(now + 0.99, [*seen, engine.reading(now + 0.99)])
        for quarter in range(4):
            controller.observe(now + 0.99, [LoadReported(now + quarter / 4, "chat", "envoy", {})])
        controller.step(now + 0.99)
    return controller


def memory_bytes(endpoints: int) -> float:
    """Memory of all that is kept of an endpoint when all windows are full: its profile, strategy and weighting."""
    addresses = [f"10.0.{number // 250}.{number % 250}:8000" for number in range(endpoints)]
    policy = Pool.model_validate(
        {"name": "chat", "engine": "vllm", "endpoints": [{"address": address} for address in addresses]}
    )
    _busy(policy.model_copy(update={"endpoints": policy.endpoints[:1]}))  # fills what is there once
    gc.collect()
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    controller = _busy(policy)
    gc.collect()
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    del controller
    return (after - before) / endpoints


def view_us() -> float:
    """CPU time of asking for everything when nothing that was computed before still holds, µs."""
    latency, _ = _full()
    begun = time.process_time()
    for number in range(1000):
        now = 1e9 + 70 + number % 2  # a second later, or a second back: no value is kept over that
        for ask in (latency.ttft_recent_s, latency.ttft_p99_s, latency.inter_token_s, latency.inter_token_p99_s):
            ask(now)
        for ask in (
            latency.tokens_per_s,
            latency.tokens_per_s_best,
            latency.prompt_bytes_mean,
            latency.prompt_bytes_std,
        ):
            ask(now)
    return (time.process_time() - begun) * 1000


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.windows", description=__doc__)
    parser.add_argument("--endpoints", type=int, default=20, help="whose memory is measured")
    arguments, _ = parser.parse_known_args()
    for kind in _kinds(LatencyEstimators(_MEMORY_S), RateWindow(), Random(1)):
        print(f"{kind:35} {per_s(kind):10,.0f} a second on one core")
    print(f"{'all of an attempt, in turn':35} {mixed_per_s():10,.0f} a second on one core")
    print(f"{'asking for all of it':35} {view_us():10.1f} µs")
    print(f"{'memory of an endpoint, all full':35} {memory_bytes(arguments.endpoints):10,.0f} bytes")


if __name__ == "__main__":
    main()
