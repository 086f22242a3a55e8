"""What a balancer knows of the endpoints."""

from collections import deque
from collections.abc import Container, Sequence
from random import Random
from typing import Protocol

# An endpoint keeps so many of its latest answers, by which it estimates its own latency for those who probe it.
_ANSWERS = 128


class Endpoint:
    """What is true of an endpoint whoever sends to it."""

    __slots__ = ("answers", "in_flight", "number")

    def __init__(self, number: int) -> None:
        self.number = number
        self.in_flight = 0  # of all gateways
        self.answers: deque[tuple[int, float]] = deque(maxlen=_ANSWERS)  # in flight at the start, TTFT [s]


class Host:
    """An endpoint as one gateway sees it."""

    __slots__ = ("active", "endpoint", "number", "takes_work", "weight")

    def __init__(self, endpoint: Endpoint, weight: int) -> None:
        self.endpoint = endpoint
        self.number = endpoint.number
        self.weight = weight
        self.takes_work = True
        self.active = 0  # attempts of this gateway that are in flight


class Balancer(Protocol):
    """Picks a host for each attempt."""

    def update(self) -> None:
        """The weights, or who takes work, have changed."""

    def pick(self, now: float) -> Host:
        """The host of the next attempt."""

    def token_seen(self, now: float, host: Host, ttft_s: float) -> None:
        """An attempt of this gateway showed its first token."""


# As configured in front of engines, beside the predicate that refuses hosts that were tried.
_SELECTION_ATTEMPTS = 201


class Gateway:
    """One cluster of an Envoy, or one picker: its own counts of what is in flight, and a balancer for each worker."""

    def __init__(self, hosts: Sequence[Host], workers: Sequence[Balancer], rng: Random) -> None:
        self.hosts = hosts
        self.workers = workers
        self._rng = rng

    def choose(self, now: float, tried: Container[int]) -> Host:
        """A host for an attempt of a request that has `tried` these, by number; another one if chance allows."""
        worker = self.workers[0] if len(self.workers) == 1 else self._rng.choice(self.workers)
        for _ in range(_SELECTION_ATTEMPTS):
            host = worker.pick(now)
            if host.number not in tried:
                break
        return host

    def assign(self, weights: Sequence[tuple[int, bool]]) -> None:
        """Put weights in force, one for each host: the weight, and whether the host takes new work."""
        for host, (weight, takes_work) in zip(self.hosts, weights, strict=True):
            host.weight, host.takes_work = weight, takes_work
        for worker in self.workers:
            worker.update()

    def token_seen(self, now: float, host: Host, ttft_s: float) -> None:
        """An attempt on `host` showed its first token."""
        for worker in self.workers:
            worker.token_seen(now, host, ttft_s)
