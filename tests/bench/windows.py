"""What the windows of an endpoint cost: observations per second on one core, and memory when all are full.

python -m tests.bench.windows
"""

import time
import tracemalloc
from collections.abc import Callable
from random import Random

from trimtab.fleet.observation import Signals
from trimtab.fleet.pace import Pace
from trimtab.fleet.rates import RateWindow

_MEMORY_S = 600.0
_COUNT = 200_000
_PER_S = 100  # of each kind, on one endpoint: all windows are full, and the burst filter has its yardstick


def _kinds(pace: Pace, rates: RateWindow, random: Random) -> dict[str, Callable[[float], None]]:
    ttfts = [random.lognormvariate(-2, 0.8) for _ in range(4096)]
    gaps = [random.gauss(0.02, 0.002) for _ in range(4096)]
    parts = [tuple(gaps[at : at + 100]) for at in range(0, 4000, 100)]
    return {
        "a prompt": lambda at: pace.sent(at, int(at * 7919) % 9000),
        "a first token": lambda at: pace.spoke(at, ttfts[int(at * _PER_S) % 4096]),
        "a reading of the counters": lambda at: _read(pace, rates, at, Signals(generated_tokens=at * 400)),
        "a part of a stream, of 100 tokens": lambda at: pace.decoded(at, parts[int(at * _PER_S) % 40]),
    }


def _read(pace: Pace, rates: RateWindow, at: float, signals: Signals) -> None:
    rates.add(at, signals)
    pace.counted(at, rates.tokens_per_s_held)


def _full() -> tuple[Pace, RateWindow]:
    pace, rates = Pace(_MEMORY_S), RateWindow()
    for observe in _kinds(pace, rates, Random(2)).values():
        for number in range(70 * _PER_S):
            observe(1e9 + number / _PER_S)
    pace.decoding(1e9 + 70, 8)
    return pace, rates


def per_s(kind: str) -> float:
    """How many observations of a kind one core takes in."""
    observe = _kinds(Pace(_MEMORY_S), RateWindow(), Random(1))[kind]
    count = _COUNT // 100 if "100 tokens" in kind else _COUNT
    begun = time.process_time()
    for number in range(count):
        observe(1e9 + number / _PER_S)
    return count / (time.process_time() - begun)


def mixed_per_s() -> float:
    """The observations of an attempt, in turn: its prompt, its first token, one gap of its stream, and a reading."""
    pace, rates, random = Pace(_MEMORY_S), RateWindow(), Random(1)
    ttfts = [random.lognormvariate(-2, 0.8) for _ in range(4096)]
    gap, signals = (0.02,), Signals(generated_tokens=1e6, preemptions=3.0)
    begun = time.process_time()
    for number in range(_COUNT // 4):
        at = 1e9 + number / _PER_S
        pace.sent(at, number % 9000)
        pace.spoke(at, ttfts[number % 4096])
        pace.decoded(at, gap)
        _read(pace, rates, at, signals)
    return _COUNT / (time.process_time() - begun)


def kib(endpoints: int = 20) -> float:
    """Memory of one endpoint's windows when all of them are full, KiB."""
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    filled = [_full() for _ in range(endpoints)]
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return (after - before) / len(filled) / 1024


def view_us() -> float:
    """CPU time of asking for everything when nothing that was computed before still holds, µs."""
    pace, _ = _full()
    begun = time.process_time()
    for number in range(1000):
        now = 1e9 + 70 + number % 2  # a second later, or a second back: no value is kept over that
        for ask in (pace.ttft_recent_s, pace.ttft_p99_s, pace.inter_token_s, pace.inter_token_p99_s):
            ask(now)
        for ask in (pace.tokens_per_s, pace.tokens_per_s_best, pace.prompt_bytes_mean, pace.prompt_bytes_std):
            ask(now)
    return (time.process_time() - begun) * 1000


def main() -> None:
    for kind in _kinds(Pace(_MEMORY_S), RateWindow(), Random(1)):
        print(f"{kind:35} {per_s(kind):10,.0f} a second on one core")
    print(f"{'all of an attempt, in turn':35} {mixed_per_s():10,.0f} a second on one core")
    print(f"{'asking for all of it':35} {view_us():10.1f} µs")
    print(f"{'memory of an endpoint, all full':35} {kib():10.1f} KiB")


if __name__ == "__main__":
    main()
