"""How fast a replay runs: 100,000 requests on fleet8 with `predicted_ttft`, on one core.

python -m tests.bench.replay
"""

import time

from trimtab.sim.replay.arms import make_arm
from trimtab.sim.replay.fleet import load_fleet
from trimtab.sim.replay.simulation import Conditions, Simulation
from trimtab.sim.replay.workload import generate

_REQUESTS = 100_000
_STRATEGIES = ("least_request", "health", "predicted_ttft")


def main() -> None:
    fleet = load_fleet("fleet8")
    assert fleet.workload is not None
    trace = generate(fleet.workload.model_copy(update={"requests": _REQUESTS, "rate_per_s": 30.0}), seed=1)
    for strategy in _STRATEGIES:
        began = time.process_time()
        replay = Simulation(trace, fleet, make_arm(strategy, fleet), 1, Conditions()).run()
        spent = time.process_time() - began
        print(
            f"{strategy:16} {spent:6.1f} s for {_REQUESTS:,} requests in {replay.ended_s:,.0f} simulated seconds: "
            f"{_REQUESTS / spent:9,.0f} requests/s, {replay.ended_s / spent:7,.0f} times as fast as real time"
        )


if __name__ == "__main__":
    main()
