"""Balancers that look at every request by itself, for reference: none of them can be had from a stock Envoy.

Written after their public descriptions. Where these speak of latency, TTFT stands here: the whole duration of a
stream says how many tokens were asked for, and the headers come at once.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from math import exp
from random import Random
from statistics import median

from trimtab.sim.replay.hosts import Host


class PowerOfTwo:
    """Of two different hosts drawn at random, the one with fewer requests in flight."""

    def __init__(self, hosts: Sequence[Host], rng: Random) -> None:
        self._hosts = hosts
        self._rng = rng

    def update(self) -> None:
        pass

    def pick(self, now: float) -> Host:
        return min(_draw(self._hosts, 2, self._rng), key=lambda host: host.active)

    def token_seen(self, now: float, host: Host, ttft_s: float) -> None:
        pass


class PeakEwma:
    """Of two hosts, the one with the lower latency times (requests in flight + 1), as in Finagle.

    The latency is a mean that jumps up to every peak and decays over ten seconds. A host that never answered costs
    nothing while it is idle, and is shunned while its first request is out.
    """

    _DECAY_S = 10.0

    def __init__(self, hosts: Sequence[Host], rng: Random) -> None:
        self._hosts = hosts
        self._rng = rng
        self._cost_s = dict.fromkeys((host.number for host in hosts), 0.0)
        self._at = dict.fromkeys((host.number for host in hosts), 0.0)

    def update(self) -> None:
        pass

    def pick(self, now: float) -> Host:
        one, other = _draw(self._hosts, 2, self._rng)
        return one if self._load(now, one) < self._load(now, other) else other

    def token_seen(self, now: float, host: Host, ttft_s: float) -> None:
        self._decay(now, host.number, ttft_s)

    def _load(self, now: float, host: Host) -> float:
        cost = self._decay(now, host.number, 0.0)
        if cost == 0.0 and host.active:
            return 1e9 + host.active
        return cost * (host.active + 1)

    def _decay(self, now: float, number: int, seen_s: float) -> float:
        cost = self._cost_s[number]
        if seen_s > cost:
            cost = seen_s
        else:
            kept = exp(-(now - self._at[number]) / self._DECAY_S)
            cost = cost * kept + seen_s * (1.0 - kept)
        self._cost_s[number], self._at[number] = cost, now
        return cost


@dataclass(slots=True)
class _Probe:
    host: Host
    at: float
    in_flight: int
    latency_s: float


class Prequal:
    """Hot-cold lexicographic choice among probed hosts (Wydrowski et al., NSDI 2024).

    Each request sends a few probes whose answers serve the next ones. A host whose requests in flight are above the
    quantile `hot` of those lately seen is hot; of the cold ones the fastest is taken, and if all are hot, the one with
    the fewest in flight.
    """

    _PROBES = 3  # a request
    _POOL = 16
    _AGE_S = 1.0
    _REMEMBERED = 128

    def __init__(self, hosts: Sequence[Host], rng: Random, hot: float = 0.84) -> None:
        self._hosts = hosts
        self._rng = rng
        self._hot = hot
        self._pool: list[_Probe] = []
        self._seen: list[int] = []  # requests in flight, by the latest probes
        self._worst_next = False

    def update(self) -> None:
        pass

    def pick(self, now: float) -> Host:
        self._pool = [probe for probe in self._pool if probe.at >= now - self._AGE_S]
        chosen = self._choose()
        self._drop_one()
        for host in _draw(self._hosts, self._PROBES, self._rng):
            self._probe(now, host)
        return chosen

    def token_seen(self, now: float, host: Host, ttft_s: float) -> None:
        pass  # the endpoints keep their own latencies

    def _choose(self) -> Host:
        if len(self._pool) < 2:
            return self._rng.choice(self._hosts)
        limit = sorted(self._seen)[min(len(self._seen) - 1, int(self._hot * len(self._seen)))]
        cold = [probe for probe in self._pool if probe.in_flight <= limit]
        if cold:
            best = min(cold, key=lambda probe: probe.latency_s)
        else:
            best = min(self._pool, key=lambda probe: probe.in_flight)
        self._pool.remove(best)  # used once
        return best.host

    def _drop_one(self) -> None:
        """Old and bad probes must not be what is left: in turn, the oldest and the worst go."""
        if not self._pool:
            return
        if self._worst_next:
            worst = max(self._pool, key=lambda probe: (probe.in_flight, probe.latency_s))
        else:
            worst = self._pool[0]
        self._pool.remove(worst)
        self._worst_next = not self._worst_next

    def _probe(self, now: float, host: Host) -> None:
        in_flight = host.endpoint.in_flight
        self._seen = [*self._seen[-self._REMEMBERED + 1 :], in_flight]
        self._pool = [*self._pool[-self._POOL + 1 :], _Probe(host, now, in_flight, _latency(host))]


def _latency(host: Host) -> float:
    """What an endpoint says of its latency: the median of those answers that met about as much as there is now."""
    answers = sorted(host.endpoint.answers)
    if not answers:
        return 0.0
    middle = bisect_left(answers, (host.endpoint.in_flight, 0.0))
    near = answers[max(0, middle - 8) : middle + 8]
    return median(latency for _, latency in near)


def _draw(hosts: Sequence[Host], count: int, rng: Random) -> list[Host]:
    return rng.sample(hosts, min(count, len(hosts))) if len(hosts) > 1 else [hosts[0], hosts[0]]
