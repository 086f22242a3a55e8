"""How a pool's work is split with its fallbacks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.scene import A, B, C, Scene, failed, rejected
from trimtab.weights.failover import Failover, can_take, last_resort, takes_over, wants_exploration

PARTS = st.floats(0, 1)


def test_a_pool_that_is_in_keeps_its_work() -> None:
    assert Failover().split(0.0, 1.0, [1.0], tries=False, rise_per_s=0.15) == (1.0, 0.0)


def test_the_first_that_can_takes_over_and_each_passes_on_what_it_cannot() -> None:
    assert Failover().split(0.0, 0.0, [0.0, 1.0, 1.0], tries=False, rise_per_s=0.15) == (0.0, 0.0, 1.0, 0.0)
    assert Failover().split(0.0, 0.5, [0.6, 1.0], tries=False, rise_per_s=0.15) == pytest.approx((0.5, 0.3, 0.2))


def test_if_no_fallback_can_the_pool_keeps_all() -> None:
    assert Failover().split(0.0, 0.0, [0.0], tries=False, rise_per_s=0.15) == (1.0, 0.0)


def test_a_pool_of_the_dead_leaves_its_work_to_one_that_is_merely_full() -> None:
    dead, full, good = Scene([A, B]), Scene([A, B]), Scene([A])
    dead.see(*(failed(1000.0, address, f"{address}{i}") for address in (A, B) for i in range(3)))
    full.see(rejected(1000.0, A))
    full.see(*(failed(1000.0, B, f"{i}") for i in range(3)))
    assert [one.step().serves for one in (dead, full, good)] == [False, True, True]
    assert can_take(full.step(), 0) == 0.0

    def split(*pools: Scene | None) -> tuple[float, ...]:
        decisions = [pool.step() if pool else None for pool in pools]
        takes = [can_take(decision, 0) for decision in decisions]
        to = last_resort(decisions)
        return Failover().split(0.0, takes[0], takes[1:], tries=False, rise_per_s=0.15, last_resort=to)

    assert split(dead, full) == split(dead, None, full)[::2] == (0.0, 1.0)
    assert split(full, full) == split(full, dead) == (1.0, 0.0)
    assert split(dead, dead) == (1.0, 0.0), "no pool is better than itself"
    assert split(dead, full, good) == (0.0, 0.0, 1.0)


def test_it_falls_at_once_and_comes_back_slowly() -> None:
    failover = Failover()

    def keeps(now: float, can: float) -> float:
        return failover.split(now, can, [1.0], tries=False, rise_per_s=0.1)[0]

    assert [keeps(0, 1), keeps(1, 0), keeps(2, 1), keeps(3, 1)] == pytest.approx([1, 0, 0.1, 0.2])
    assert [keeps(4, 0.05), keeps(9, 1), keeps(15, 1)] == pytest.approx([0.05, 0.55, 1])
    assert keeps(14, 1) == 1, "a clock that is set back raises and lowers nothing"


def test_a_try_needs_a_request() -> None:
    assert Failover().split(0.0, 0.0, [1.0], tries=True, rise_per_s=0.1) == pytest.approx((0.02, 0.98))


@given(st.lists(st.tuples(PARTS, st.lists(PARTS, min_size=2, max_size=2), st.booleans()), min_size=1))
def test_nothing_is_lost(steps: list[tuple[float, list[float], bool]]) -> None:
    failover = Failover()
    for now, (keeps, fallbacks, tries) in enumerate(steps):
        parts = failover.split(now, keeps, fallbacks, tries=tries, rise_per_s=0.15)
        assert sum(parts) == pytest.approx(1.0)
        assert all(0 <= part <= 1 + 1e-9 for part in parts)


def test_what_a_pool_can_take_is_its_capacity_that_is_in() -> None:
    scene = Scene({A: 6, B: 3, C: 1})
    assert can_take(scene.step(), 0.7) == 1.0
    scene.see(rejected(1000.0, A))
    assert can_take(scene.step(), 0) == 1.0, "some of it is in"
    assert can_take(scene.step(), 0.8) == pytest.approx(0.5)
    assert can_take(scene.step(), 0.4) == 1.0
    scene.see(rejected(1000.0, B), rejected(1000.0, C))
    assert can_take(scene.step(), 0) == can_take(scene.step(), 0.8) == 0.0
    assert can_take(None, 0) == 0.0


def test_an_endpoint_that_is_half_open_wants_a_try() -> None:
    scene = Scene([A])
    scene.see(*(failed(1000.0, request=f"f{i}") for i in range(3)))
    assert not wants_exploration(scene.step())
    scene.run(1030.5)
    assert wants_exploration(scene.step()) and can_take(scene.step(), 0) == 0.0


def test_a_fallback_that_is_half_open_gets_tries_though_another_could_take_all() -> None:
    spare = Scene([A])
    assert takes_over(spare.step(), 0) == 1.0
    spare.see(*(failed(1000.0, request=f"f{i}") for i in range(3)))
    assert takes_over(spare.step(), 0) == takes_over(None, 0) == 0.0
    spare.run(1030.5)
    takes = [takes_over(spare.step(), 0), 1.0]
    assert Failover().split(0.0, 0.0, takes, tries=False, rise_per_s=0.1) == pytest.approx((0.0, 0.02, 0.98))


def test_an_endpoint_without_a_capacity_counts_as_the_mean_of_the_others() -> None:
    scene = Scene({A: 10, B: None})
    scene.see(rejected(1000.0, A))
    assert can_take(scene.step(), 1.0) == pytest.approx(0.5)
