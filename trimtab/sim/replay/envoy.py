"""How one worker thread of Envoy 1.40 picks hosts.

Where all weights are equal Envoy does not look at them: round robin goes round, least request takes the better of
two drawn at random. Else both follow a schedule in which each host is due again 1/weight later; least request divides
a weight by the requests in flight at the moment when the host is put back. Every push of endpoints makes a new
schedule. Each worker begins it at a point of its own, which is the same one whenever the weights are the same.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from heapq import heapify, heapreplace
from random import Random

from trimtab.sim.replay.hosts import Host

_Weigh = Callable[[Host], float]


class Schedule:
    """Earliest deadline first, as if `picks` picks had been made before."""

    def __init__(self, hosts: Sequence[Host], weigh: _Weigh, picks: int = 0) -> None:
        weights = [weigh(host) for host in hosts]
        total = sum(weights)
        whole = [int(picks * weight / total) for weight in weights]
        self._weigh = weigh
        self._entries = [
            ((count + 1) / weight, order, host)
            for order, (host, weight, count) in enumerate(zip(hosts, weights, whole, strict=True))
        ]
        heapify(self._entries)
        self._order = len(hosts)
        for _ in range(picks - sum(whole)):
            self.pick()

    def pick(self) -> Host:
        """The host that is due first."""
        deadline, _, host = self._entries[0]
        heapreplace(self._entries, (deadline + 1.0 / self._weigh(host), self._order, host))
        self._order += 1
        return host


class _EnvoyBalancer(ABC):
    def __init__(self, hosts: Sequence[Host], rng: Random) -> None:
        self._all = hosts
        self._rng = rng
        self._seed = rng.getrandbits(32)
        self._hosts: list[Host] = []
        self._schedule: Schedule | None = None
        self.update()

    def update(self) -> None:
        # Should none take work, Envoy would answer 503; weighting never lets that happen.
        self._hosts = [host for host in self._all if host.takes_work]
        first = self._hosts[0].weight
        equal = all(host.weight == first for host in self._hosts)
        self._schedule = None if equal else Schedule(self._hosts, self._weigh, self._seed)

    def pick(self, now: float) -> Host:
        return self._pick_unweighted() if self._schedule is None else self._schedule.pick()

    def token_seen(self, now: float, host: Host, ttft_s: float) -> None:
        return  # it looks at nothing but requests in flight

    @abstractmethod
    def _weigh(self, host: Host) -> float: ...

    @abstractmethod
    def _pick_unweighted(self) -> Host: ...


class RoundRobin(_EnvoyBalancer):
    """ROUND_ROBIN."""

    def _weigh(self, host: Host) -> float:
        return host.weight

    def _pick_unweighted(self) -> Host:
        self._seed += 1
        return self._hosts[self._seed % len(self._hosts)]


class LeastRequest(_EnvoyBalancer):
    """LEAST_REQUEST with `active_request_bias`; `choice_count` is Envoy's own, two."""

    def __init__(self, hosts: Sequence[Host], rng: Random, *, bias: float = 1.0) -> None:
        self._bias = bias
        super().__init__(hosts, rng)

    def _weigh(self, host: Host) -> float:
        if self._bias == 1.0:
            return host.weight / (host.active + 1)
        return float(host.weight / (host.active + 1) ** self._bias)

    def _pick_unweighted(self) -> Host:
        # The same host may be drawn twice.
        drawn = [self._rng.choice(self._hosts) for _ in range(2)]
        return min(drawn, key=_active)


class Uniform(_EnvoyBalancer):
    """RANDOM, which does not look at weights at all."""

    def update(self) -> None:
        self._hosts = [host for host in self._all if host.takes_work]

    def _weigh(self, host: Host) -> float:
        return 1.0

    def _pick_unweighted(self) -> Host:
        return self._rng.choice(self._hosts)


def _active(host: Host) -> int:
    return host.active
