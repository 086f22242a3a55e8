"""The balancers that look at every request by itself."""

from collections import Counter
from random import Random

from trimtab.sim.replay.hosts import Endpoint, Host
from trimtab.sim.replay.pickers import PeakEwma, PowerOfTwo, Prequal


def hosts(count: int) -> list[Host]:
    return [Host(Endpoint(number), 1) for number in range(count)]


def test_power_of_two_avoids_the_busiest() -> None:
    known = hosts(4)
    known[0].active = 5
    balancer = PowerOfTwo(known, Random(1))
    assert Counter(balancer.pick(0.0).number for _ in range(1000))[0] == 0


def test_peak_ewma_jumps_up_and_comes_down_slowly() -> None:
    known = hosts(2)
    balancer = PeakEwma(known, Random(1))
    for _ in range(20):
        balancer.token_seen(0.0, known[0], 0.1)
        balancer.token_seen(0.0, known[1], 0.1)
    balancer.token_seen(1.0, known[0], 5.0)
    assert {balancer.pick(1.1).number for _ in range(20)} == {1}
    known[1].active = 100
    assert {balancer.pick(30.0).number for _ in range(20)} == {0}


def test_peak_ewma_waits_for_the_first_answer_of_a_new_host() -> None:
    known = hosts(2)
    balancer = PeakEwma(known, Random(1))
    balancer.token_seen(0.0, known[0], 0.5)
    assert balancer.pick(0.1).number == 1
    known[1].active = 1
    assert balancer.pick(0.1).number == 0


def test_prequal_takes_the_fastest_cold_host_and_leaves_hot_ones() -> None:
    known = hosts(4)
    for host, latency in zip(known, (0.5, 0.1, 0.3, 0.05), strict=True):
        host.endpoint.answers.extend([(0, latency)] * 10)
    known[3].endpoint.in_flight = 50  # the fastest is hot
    balancer = Prequal(known, Random(1), hot=0.7)
    picked = Counter(balancer.pick(0.01 * number).number for number in range(2000))
    assert picked[1] > picked[2] > picked[0]
    assert picked[1] > picked[3]


def test_prequal_forgets_old_probes() -> None:
    known = hosts(8)
    balancer = Prequal(known, Random(1))
    picked = Counter(balancer.pick(10.0 * number).number for number in range(800))
    assert min(picked.values()) > 50


def test_a_single_host_serves() -> None:
    for kind in (PowerOfTwo, PeakEwma, Prequal):
        balancer = kind(hosts(1), Random(1))
        assert {balancer.pick(0.1 * number).number for number in range(50)} == {0}
