"""A small replay under test."""

from collections.abc import Sequence
from typing import Any

from trimtab.sim.replay.arms import Arm, make_arm
from trimtab.sim.replay.fleet import Engines, FleetFile, SimulatedFleet, make_fleet
from trimtab.sim.replay.simulation import Conditions, Replay, Simulation
from trimtab.sim.trace import Request


def fleet(*engines: dict[str, Any]) -> SimulatedFleet:
    """A fleet of these engines; without a kind it is an a100."""
    described = tuple(Engines.model_validate({"kind": "a100", **engine}) for engine in engines)
    return make_fleet("test", FleetFile(version=1, engines=described))


def steady(count: int, every_s: float, prompt: int = 1000, output: int = 50) -> list[Request]:
    """Requests all alike, at equal distances."""
    return [Request(number * every_s, prompt, output) for number in range(count)]


def run(
    trace: Sequence[Request], on: SimulatedFleet, arm: Arm | str = "round_robin", seed: int = 1, **conditions: Any
) -> Replay:
    made = make_arm(arm, on) if isinstance(arm, str) else arm
    return Simulation(trace, on, made, seed, Conditions(**conditions)).run()
