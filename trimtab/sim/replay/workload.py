"""Requests that were never recorded: lengths and arrivals drawn at random."""

from math import exp, inf
from random import Random

from trimtab.sim.replay.fleet import Lengths, Workload
from trimtab.sim.trace import Request


def generate(workload: Workload, seed: int) -> list[Request]:
    """The requests of `workload`; with `clients` all arrive at 0, for a closed loop sends each when its turn comes."""
    rng = Random(seed)
    at = 0.0
    requests = []
    for _ in range(workload.requests):
        if workload.rate_per_s is not None:
            at += _gap(rng, workload.rate_per_s, workload.cv)
        requests.append(Request(at, _draw(rng, workload.prompt), _draw(rng, workload.output)))
    return requests


def _gap(rng: Random, rate_per_s: float, cv: float) -> float:
    if cv == 0:
        return 1.0 / rate_per_s
    shape = 1.0 / cv**2
    return rng.gammavariate(shape, 1.0 / (rate_per_s * shape))


def _draw(rng: Random, lengths: Lengths) -> int:
    drawn = rng.lognormvariate(lengths.mu, lengths.sigma) if lengths.sigma else exp(lengths.mu)
    return round(min(max(drawn, lengths.least), lengths.most, inf))
