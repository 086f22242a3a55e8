"""What the pure heart costs: observations per second on one core, and the time of a step by the size of a pool.

Here an observation goes all the way: put in order, joined to its attempt, judged, told to weighting, learned from by
the strategy, and weights are computed ten times a second. What the windows alone take in is measured in
tests.bench.windows.

python -m tests.bench.heart
"""

import gc
import time
from random import Random

from trimtab.observation.kinds import (
    AttemptEnded,
    AttemptStarted,
    FirstToken,
    LoadReported,
    Observation,
    Outcome,
    Signals,
    SignalsRead,
)
from trimtab.policy.model import Endpoint, Pool
from trimtab.pool import EndpointSpec, PoolController

_FLUSH_S = 0.05  # the access log comes in batches of so long
_RATE = 10_000  # attempts per second, in the time of the observations


def _pool(endpoints: int) -> tuple[PoolController, list[str]]:
    addresses = [f"10.0.{i // 250}.{i % 250}:8000" for i in range(endpoints)]
    policy = Pool(name="chat", endpoints=tuple(Endpoint(address=address) for address in addresses))
    controller = PoolController(policy, Random(1))
    controller.set_endpoints(0.0, [EndpointSpec(address, address) for address in addresses])
    return controller, addresses


def _attempts(addresses: list[str], seconds: float) -> list[list[Observation]]:
    """Streams of half a second, in the order and the batches in which they arrive."""
    random = Random(2)
    arrivals: list[tuple[float, Observation]] = []
    for i in range(int(seconds * _RATE)):
        at, address, request = i / _RATE, random.choice(addresses), f"4f1d0c5a-{i:08x}"
        end = at + random.uniform(0.2, 0.8)
        arrivals.append((at + _FLUSH_S, AttemptStarted(at, "chat", address, request, 2000, True)))
        arrivals.append((at + 0.1, FirstToken(at + 0.1, "chat", address, request)))
        answer = AttemptEnded(end, "chat", address, request, at, 200, Outcome.COMPLETE, True, 0.1, 2000, 9000)
        arrivals.append((end + _FLUSH_S, answer))
    batches: dict[int, list[Observation]] = {}
    for arrived_at, observation in arrivals:
        batches.setdefault(int(arrived_at / _FLUSH_S), []).append(observation)
    return [batches[index] for index in sorted(batches)]


def observations_per_second(endpoints: int) -> float:
    """How many observations one core takes in, a step every 100 ms included."""
    controller, addresses = _pool(endpoints)
    batches = _attempts(addresses, 3.0)
    count = sum(len(batch) for batch in batches)
    gc.collect()
    gc.freeze()  # what is to come is in memory here already; the collector would look at it again and again
    begun = time.process_time()
    for index, batch in enumerate(batches):
        now = (index + 1) * _FLUSH_S
        controller.observe(now, batch)
        if index % 2:
            controller.step(now)
    spent = time.process_time() - begun
    gc.unfreeze()
    return count / spent


def step_ms(endpoints: int) -> float:
    """CPU time of one step, with readings and load reports of every endpoint since the last one."""
    controller, addresses = _pool(endpoints)
    spent = 0.0
    for tick in range(20):
        now = tick * 0.25
        batch: list[Observation] = []
        for address in addresses:
            batch.append(SignalsRead(now, "chat", address, Signals(waiting=tick % 7, kv_usage=0.3)))
        batch.append(LoadReported(now, "chat", "envoy", dict.fromkeys(addresses[::2], 3)))
        begun = time.process_time()
        controller.observe(now, batch)
        controller.step(now)
        spent += time.process_time() - begun
    return spent / 20 * 1000


def main() -> None:
    for endpoints in (3, 30, 300):
        print(f"{endpoints:5} endpoints: {observations_per_second(endpoints):10,.0f} observations a second on one core")
    for endpoints in (10, 100, 1000):
        print(f"{endpoints:5} endpoints: {step_ms(endpoints):10.2f} ms per step, with readings and reports")


if __name__ == "__main__":
    main()
