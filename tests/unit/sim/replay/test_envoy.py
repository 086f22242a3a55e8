"""Envoy's balancers, held against what Envoy 1.40 was measured to do."""

from collections import Counter
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from random import Random

import pytest

from trimtab.sim.replay.envoy import LeastRequest, RoundRobin, Schedule, Uniform
from trimtab.sim.replay.hosts import Balancer, Endpoint, Gateway, Host
from trimtab.weights.integers import jittered


def hosts(*weights: int) -> list[Host]:
    return [Host(Endpoint(number), weight) for number, weight in enumerate(weights)]


def shares(balancer: Balancer, picks: int, count: int = 3) -> list[float]:
    counts = Counter(balancer.pick(0.0).number for _ in range(picks))
    return [counts[number] / picks for number in range(count)]


def closed_loop(
    make: Callable[[Sequence[Host], Random], Balancer], weights: Sequence[int], seconds: Sequence[float], clients: int
) -> list[float]:
    """Shares of the hosts when so many clients each have one request at a time, and each host its own duration."""
    known = hosts(*weights)
    balancer = make(known, Random(1))
    ends: list[tuple[float, int, Host | None]] = [(0.001 * client, client, None) for client in range(clients)]
    counts: Counter[int] = Counter()
    for number in range(clients, 20_000):
        now, _, done = heappop(ends)
        if done is not None:
            done.active -= 1
        host = balancer.pick(now)
        host.active += 1
        counts[host.number] += 1
        heappush(ends, (now + seconds[host.number], number, host))
    return [counts[number] / counts.total() for number in range(len(weights))]


def biased(bias: float) -> Callable[[Sequence[Host], Random], Balancer]:
    return lambda known, rng: LeastRequest(known, rng, bias=bias)


def test_round_robin_follows_unequal_weights_to_the_letter() -> None:
    assert shares(RoundRobin(hosts(1, 2, 7), Random(1)), 10_000) == pytest.approx([0.1, 0.2, 0.7], abs=0.001)


def test_round_robin_with_equal_weights_goes_round() -> None:
    balancer = RoundRobin(hosts(5, 5, 5), Random(1))
    picked = [balancer.pick(0.0).number for _ in range(9)]
    assert picked[:3] == picked[3:6] == picked[6:]
    assert sorted(picked[:3]) == [0, 1, 2]


def test_random_does_not_look_at_weights() -> None:
    assert shares(Uniform(hosts(1, 2, 7), Random(1)), 10_000) == pytest.approx([1 / 3] * 3, abs=0.02)


@pytest.mark.parametrize(
    ("weights", "bias", "slow", "measured"),
    [
        ((1, 2, 7), 1.0, 2, (0.33, 0.51, 0.17)),
        ((1, 2, 7), 1.0, 0, (0.04, 0.32, 0.65)),
        ((1, 2, 7), 0.5, 2, (0.24, 0.41, 0.36)),
        ((1, 2, 7), 2.0, 2, (0.40, 0.54, 0.07)),
        ((1, 2, 7), 0.0, 2, (0.10, 0.20, 0.70)),
        ((1, 1, 1), 1.0, 2, (0.44, 0.44, 0.12)),
    ],
)
def test_least_request_is_as_measured_when_one_host_is_slow(
    weights: tuple[int, ...], bias: float, slow: int, measured: tuple[float, ...]
) -> None:
    """50 connections; the slow host takes 100 ms, the others some 3 ms."""
    seconds = [0.1 if number == slow else 0.003 for number in range(3)]
    assert closed_loop(biased(bias), weights, seconds, clients=50) == pytest.approx(measured, abs=0.05)


def test_bias_0_leaves_the_weights_as_they_are() -> None:
    assert closed_loop(biased(0.0), (1, 2, 7), (0.1, 0.01, 0.01), clients=50) == pytest.approx(
        [0.1, 0.2, 0.7], abs=0.01
    )


def test_a_schedule_after_many_picks_is_the_one_that_made_them() -> None:
    known = hosts(3, 5, 9)
    picked = Schedule(known, lambda host: host.weight)
    for _ in range(1234):
        picked.pick()
    begun = Schedule(known, lambda host: host.weight, picks=1234)
    assert [begun.pick().number for _ in range(50)] == [picked.pick().number for _ in range(50)]


def test_a_host_that_takes_no_work_is_not_picked() -> None:
    known = hosts(1, 2, 7)
    gateway = Gateway(known, [RoundRobin(known, Random(1))], Random(1))
    gateway.assign([(1, True), (2, True), (7, False)])
    assert shares(gateway.workers[0], 3000) == pytest.approx([1 / 3, 2 / 3, 0.0], abs=0.01)


def test_a_retry_goes_to_another_host_where_there_is_one() -> None:
    known = hosts(1, 1, 98)
    gateway = Gateway(known, [RoundRobin(known, Random(1))], Random(1))
    assert all(gateway.choose(0.0, (2,)).number != 2 for _ in range(20))
    assert gateway.choose(0.0, (0, 1, 2)).number in (0, 1, 2)


def test_pushes_of_weights_that_differ_a_little_keep_the_shares() -> None:
    known = hosts(1, 2, 7)
    gateway = Gateway(known, [RoundRobin(known, Random(1))], Random(1))
    counts: Counter[int] = Counter()
    random = Random(2)
    for _ in range(3000):
        gateway.assign([(round(weight * random.uniform(0.9, 1.1)), True) for weight in (1000, 2000, 7000)])
        counts.update(gateway.choose(0.0, ()).number for _ in range(3))
    assert [counts[number] / 9000 for number in range(3)] == pytest.approx([0.1, 0.2, 0.7], abs=0.02)


def test_with_the_jitter_each_push_of_the_same_weights_is_a_draw_by_them() -> None:
    """Two pushes in turn, as where a strategy goes to and fro: without it Envoy's first pick would be the same each
    time.
    """
    rng, host = Random(1), hosts(1, 1)
    for seed in range(8):
        plain, drawn = 0, 0
        for number in range(1000):
            weights = [6000, 4000] if number % 2 else [5900, 4100]
            for pushed in (weights, jittered(weights, rng)):
                for one, weight in zip(host, pushed, strict=True):
                    one.weight = weight
                first = Schedule(host, lambda one: one.weight, 1_000_003 * (seed + 1)).pick() is host[0]
                plain, drawn = (plain + first, drawn) if pushed is weights else (plain, drawn + first)
        assert plain in (0, 500, 1000)
        assert abs(drawn - 595) < 3 * (1000 * 0.595 * 0.405) ** 0.5
