"""The arms of a replay: what spreads the requests over the endpoints."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, get_args

from pydantic import ValidationError

from trimtab.policy.model import Pool, Retries
from trimtab.scoring import ScoringPolicy
from trimtab.sim.replay.envoy import LeastRequest, RoundRobin, Uniform
from trimtab.sim.replay.fleet import SimulatedFleet
from trimtab.sim.replay.hosts import Balancer, Host
from trimtab.sim.replay.pickers import PeakEwma, PowerOfTwo, Prequal
from trimtab.sim.replay.simulated import NotSimulatedError, lost

POOL = "replay"
_MEAN_WEIGHT = 1000  # of static weights

BalancerFactory = Callable[[Sequence[Host], Random], Balancer]


@dataclass(frozen=True, slots=True)
class Arm:
    """One way of balancing. Without a pool the weights never change."""

    name: str
    balancer: BalancerFactory
    retries: Retries
    pool: Pool | None = None
    by_capacity: bool = False  # static weights, as declared
    lost: tuple[str, ...] = ()  # what of the policy is of no effect here


class UnknownStrategyError(ValueError):
    """A name that is no arm."""


# What the balancers can do by themselves.
_FIXED: Mapping[str, tuple[BalancerFactory, bool]] = {
    "round_robin": (RoundRobin, False),
    "random": (Uniform, False),
    "least_request": (LeastRequest, False),
    "capacity": (LeastRequest, True),
    "p2c": (PowerOfTwo, False),
    "peak_ewma": (PeakEwma, False),
    "prequal": (Prequal, False),
}


def strategies() -> list[str]:
    """The scoring strategies that there are, by name."""
    members = get_args(ScoringPolicy) or (ScoringPolicy,)
    return [get_args(member.model_fields["strategy"].annotation)[0] for member in members]


def known_names() -> list[str]:
    """All arms that `make_arm` knows by name."""
    return [*_FIXED, *strategies()]


def usable_names(fleet: SimulatedFleet, policy: Pool | None = None) -> list[str]:
    """Those that need no numbers but those of `policy`, and no signals but those that are simulated."""

    def is_usable(name: str) -> bool:
        try:
            make_arm(name, fleet, policy)
        except (UnknownStrategyError, NotSimulatedError):
            return False
        return True

    return [name for name in known_names() if is_usable(name)]


def make_arm(name: str, fleet: SimulatedFleet, policy: Pool | None = None) -> Arm:
    """The arm `name`: a balancer, or a strategy with its default numbers in front of `fleet`.

    `policy` gives all that is not the strategy's: interval, weighting, balancing, retries, signals; and the numbers of
    the strategy if it is the policy's own. Raises UnknownLawError or NotSimulatedError.
    """
    retries = policy.retries if policy is not None else Retries()
    if name in _FIXED:
        balancer, by_capacity = _FIXED[name]
        return Arm(name, balancer, retries, by_capacity=by_capacity)
    if name not in strategies():
        raise UnknownStrategyError(f"unknown strategy {name!r}; there are {', '.join(known_names())}")
    if policy is None:
        settings: dict[str, Any] = {"scoring": {"strategy": name}}
    else:
        settings = {field: getattr(policy, field) for field in _OF_POLICY}
        if policy.scoring.strategy != name:
            settings["scoring"] = {"strategy": name}
    return _weighted(name, fleet, settings)


def policy_arm(name: str, fleet: SimulatedFleet, policy: Pool) -> Arm:
    """An arm that does what `policy` says, in front of the endpoints of `fleet`. Raises NotSimulatedError."""
    return _weighted(name, fleet, {field: getattr(policy, field) for field in _OF_POLICY})


_OF_POLICY = (
    "scoring",
    "classes",
    "class_bytes_per_token",
    "interval_ms",
    "weighting",
    "balancing",
    "retries",
    "signals",
    "engine",
)


def _weighted(name: str, fleet: SimulatedFleet, settings: Mapping[str, Any]) -> Arm:
    endpoints = [
        {"address": endpoint.address, "capacity": endpoint.capacity, "labels": {"gpu": endpoint.kind.name}}
        for endpoint in fleet.endpoints
    ]
    try:
        pool = Pool.model_validate({"name": POOL, "endpoints": endpoints, **settings})
    except ValidationError as error:
        missing = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in missing["loc"])
        raise UnknownStrategyError(
            f"strategy {name!r} needs numbers of its own, in a policy: {where}: {missing['msg']}"
        ) from None
    return Arm(name, _as_configured(pool), pool.retries, pool, lost=lost(pool))


def _as_configured(pool: Pool) -> BalancerFactory:
    match pool.balancing.policy:
        case "round_robin":
            return RoundRobin
        case "least_request":
            bias = pool.request_bias
            return lambda hosts, rng: LeastRequest(hosts, rng, bias=bias)


def static_weight(arm: Arm, capacity: float | None) -> int:
    """The weight that an operator would write for an endpoint, 1 unless the arm goes by capacity."""
    return max(1, round(_MEAN_WEIGHT * (capacity or 1.0))) if arm.by_capacity else 1
