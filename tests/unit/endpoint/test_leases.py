"""A lease is taken once and given back once, whatever comes, in whatever order."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.scene import (
    A,
    B,
    Scene,
    cluster_changed,
    ended,
    failed,
    load,
    read,
    rejected,
    started,
    token,
    unreachable,
    worker_missed,
)
from trimtab.endpoint.leases import REMEMBER_ENDED
from trimtab.endpoint.lrs import LASTING_S, NODE_GONE_S, SETTLE_S, UNCOUNTED_S
from trimtab.observation.kinds import Outcome, Verdict


def test_an_attempt_is_in_flight_from_its_start_to_its_end() -> None:
    scene = Scene()
    scene.see(started(1000.0, prompt=300))
    view = scene.view()
    assert (view.in_flight, view.awaiting_token, view.outstanding_prompt_bytes) == (1, 1, 300)
    scene.see(token(1000.2))
    view = scene.view()
    assert (view.in_flight, view.awaiting_token, view.outstanding_prompt_bytes) == (1, 0, 0)
    scene.see(ended(1001.0, 1000.0))
    assert scene.view().in_flight == 0


@pytest.mark.parametrize("outcome", list(Outcome))
@pytest.mark.parametrize("status", [0, 200, 429, 500, 503])
def test_every_kind_of_end_gives_the_lease_back(outcome: Outcome, status: int) -> None:
    scene = Scene()
    scene.see(started(1000.0), ended(1000.5, 1000.0, status=status, outcome=outcome))
    view = scene.view()
    assert (view.in_flight, view.awaiting_token, view.outstanding_prompt_bytes) == (0, 0, 0)


def test_a_second_end_gives_nothing_back() -> None:
    scene = Scene()
    scene.see(started(1000.0, request="one"), started(1000.0, request="two"))
    scene.see(ended(1000.5, 1000.0, request="one"), ended(1000.5, 1000.0, request="one"))
    scene.see(ended(1000.5, 1000.0, request="one"), now=1005.0)
    assert scene.view().in_flight == 1


def test_a_start_that_comes_after_its_end_takes_no_lease() -> None:
    scene = Scene()
    scene.see(ended(1000.5, 1000.0))
    scene.see(started(1000.0), now=1000.6)
    assert scene.view().in_flight == 0


def test_a_start_that_comes_long_after_its_end_takes_no_lease_either() -> None:
    scene = Scene()
    scene.see(ended(1000.5, 1000.0))
    scene.run(1100.0)
    scene.see(started(1000.0), now=1100.0)
    assert scene.view().in_flight == 0


def test_two_attempts_of_a_request_on_one_endpoint_are_two_leases() -> None:
    scene = Scene([A])
    scene.see(started(1000.0), started(1000.1))
    assert scene.view().in_flight == 2
    scene.see(ended(1000.2, 1000.1))
    assert scene.view().in_flight == 1
    scene.see(ended(1000.3, 1000.0))
    assert scene.view().in_flight == 0


def test_an_end_of_a_removed_endpoint_does_not_touch_the_one_that_came_back() -> None:
    scene = Scene()
    scene.see(*(started(1000.0, request=f"old{i}") for i in range(50)))
    scene.set_endpoints(B)
    scene.now = 1002.0
    scene.set_endpoints(A, B)
    scene.see(started(1002.5, request="new"))
    scene.see(*(failed(1003.0, request=f"old{i}", took_s=3.0) for i in range(50)))
    view = scene.view()
    assert (view.id.incarnation, view.in_flight, view.error_share) == (1, 1, 0.0)


def test_a_restart_that_its_own_metrics_show_parts_the_leases_as_well() -> None:
    scene = Scene()
    scene.see(read(1000.0, process_start=500.0))
    scene.see(*(started(1000.5, request=f"old{i}") for i in range(5)))
    scene.see(read(1001.0, process_start=1000.8))
    assert (scene.view().id.incarnation, scene.view().in_flight) == (1, 0)
    scene.see(*(failed(1001.5, request=f"old{i}", took_s=1.0) for i in range(5)))
    scene.see(token(1001.5, request="old0"), rejected(1001.5, request="old1"))
    scene.step()
    assert scene.at().takes_work and scene.view().error_share == 0.0 and scene.view().ttft_s is None


def test_the_late_start_of_an_earlier_incarnation_takes_no_lease() -> None:
    scene = Scene()
    scene.set_endpoints()
    scene.now = 1002.0
    scene.set_endpoints(A)
    scene.see(started(1001.9), now=1002.1)
    assert scene.view().in_flight == 0


def test_lost_ends_are_healed_by_what_envoy_reports() -> None:
    scene = Scene()
    scene.see(*(started(1000.0 + i / 100, request=f"r{i}") for i in range(10)))
    differences = set()
    for tick in range(1, 12):
        now = 1000.2 + tick * 0.25
        scene.see(load(now, 7), now=now)
        scene.step(now)
        differences.add(scene.at().view.lease_difference)
    assert scene.view().in_flight == 7
    assert differences == {0, 3}, "the difference is shown when it has lasted, and gone once it is healed"
    scene.see(*(ended(1003.0, 1000.0 + i / 100, request=f"r{i}") for i in range(10)))
    assert scene.view().in_flight == 0, "the ends that were thought lost give nothing back again"


def test_a_difference_is_healed_once() -> None:
    scene = Scene()
    scene.see(*(started(1000.0 + i / 100, request=f"r{i}") for i in range(10)))
    for tick in range(1, 8):
        scene.see(load(1000.2 + tick * 0.25, 7), now=1000.2 + tick * 0.25)
    scene.run(1003.0, 0.05)
    assert scene.view().in_flight == 7


def test_the_oldest_leases_are_healed_first() -> None:
    scene = Scene()
    scene.see(started(1000.0, request="lost"), started(1001.0, request="kept"))
    for tick in range(8):
        now = 1001.5 + tick * 0.25
        scene.see(load(now, 1), now=now)
        scene.step(now)
    scene.now = 1004.0
    assert scene.view().oldest_wait_s == pytest.approx(3.0)


def reporting(scene: Scene, until: float, **in_flight: int) -> None:
    """Envoys report a number for A four times a second."""
    while scene.now < until:
        now = scene.now + 0.25
        scene.see(*(load(now, number, node=node) for node, number in in_flight.items()), now=now)
        scene.step(now)


def test_an_endpoint_that_is_not_in_a_report_is_idle() -> None:
    scene = Scene()
    reporting(scene, 1001.0, envoy=0)
    scene.see(started(1001.0), now=1001.1)
    reporting(scene, 1003.0, envoy=0)
    assert (scene.view().in_flight, scene.view().in_flight_reported) == (0, 0)


def test_leases_that_are_left_when_all_is_idle_need_no_traffic_to_heal() -> None:
    scene = Scene()
    scene.see(*(started(1000.0, request=f"r{i}") for i in range(12)))
    reporting(scene, 1005.0, envoy=12)
    scene.see(worker_missed(1005.0))
    reporting(scene, 1005.0 + LASTING_S + SETTLE_S + 0.5, envoy=0)
    assert scene.view().in_flight == 0


def test_a_passing_difference_heals_nothing() -> None:
    scene = Scene()
    scene.see(*(started(1000.0, request=f"r{i}") for i in range(5)))
    for tick in range(1, 20):
        now = 1000.0 + tick * 0.25
        scene.see(load(now, 5 if tick % 4 == 0 else 4), now=now)
        scene.step(now)
        assert scene.at().view.lease_difference == 0
    assert scene.view().in_flight == 5


def test_a_busy_access_log_is_no_difference() -> None:
    """Starts and ends come up to 60 ms late, and the reports 250 ms apart: no moment of that looks like a leak."""
    random = Random(3)
    scene = Scene()
    log = []
    for i in range(4000):
        at = 1000.0 + i * 0.002
        log.append((at, started(at, request=f"r{i}")))
        end = at + random.uniform(0.05, 0.3)
        log.append((end, ended(end, at, request=f"r{i}", first_byte_s=0.01)))
    log.sort(key=lambda entry: entry[0])
    sent, ends = 0, sorted((at for at, o in log if hasattr(o, "outcome")))
    for tick in range(1, 160):
        now = 1000.0 + tick * 0.05
        flushed = now - 0.06
        batch = []
        while sent < len(log) and log[sent][0] <= flushed:
            batch.append(log[sent][1])
            sent += 1
        scene.see(*batch, now=now)
        if tick % 5 == 0:
            truth = min(4000, int((now - 1000.0) / 0.002) + 1) - sum(1 for at in ends if at <= now)
            scene.see(load(now, truth), now=now)
            scene.step(now)
            assert scene.at().view.lease_difference == 0


def test_work_that_was_not_seen_to_start_is_counted_while_envoy_reports_it() -> None:
    scene = Scene()
    for tick in range(12):
        now = 1000.0 + tick * 0.25
        scene.see(load(now, 30, node="one"), load(now, 20, node="two"), now=now)
        scene.step(now)
    assert (scene.view().in_flight, scene.view().in_flight_reported) == (50, 50)
    assert scene.view().lease_difference == -50
    for tick in range(12, 20):
        now = 1000.0 + tick * 0.25
        scene.see(load(now, 0, node="one"), load(now, 0, node="two"), now=now)
        scene.step(now)
    assert scene.view().in_flight == 0


def test_an_envoy_that_has_gone_silent_may_have_streams_that_run_on() -> None:
    scene = Scene()
    scene.see(*(started(1000.0, request=f"r{i}") for i in range(7)))
    reporting(scene, 1002.0, silent=5, here=2)
    assert scene.view().in_flight_reported == 7
    reporting(scene, 1050.0, here=2)
    assert (scene.view().in_flight, scene.view().in_flight_reported) == (7, None)
    reporting(scene, 1052.0, silent=5, here=2)
    assert (scene.view().in_flight, scene.view().in_flight_reported, scene.view().lease_difference) == (7, 7, 0)


def test_the_leases_of_an_envoy_that_has_ended_are_given_back() -> None:
    scene = Scene()
    scene.see(*(started(1000.0, request=f"r{i}") for i in range(7)))
    reporting(scene, 1002.0, ended=5, here=2)
    reporting(scene, 1002.0 + NODE_GONE_S + 3.0, here=2)
    assert (scene.view().in_flight, scene.view().in_flight_reported) == (2, 2)


def test_an_envoy_that_was_killed_and_is_back_has_nothing_in_flight() -> None:
    scene = Scene()
    scene.see(*(started(1000.0, request=f"r{i}") for i in range(7)))
    reporting(scene, 1002.0, envoy=7)
    scene.run(1004.0)
    scene.see(started(1004.5, request="new"))
    reporting(scene, 1007.0, envoy=1)
    assert scene.view().in_flight == 1


def test_a_changed_cluster_counts_anew_and_its_old_streams_keep_their_leases() -> None:
    scene = Scene()
    scene.see(*(started(1000.0, request=f"old{i}") for i in range(7)))
    reporting(scene, 1002.0, envoy=7)
    scene.see(cluster_changed(1002.0))
    for tick in range(100):
        if tick == 20:
            scene.see(*(started(scene.now, request=f"new{i}") for i in range(3)))
        reporting(scene, scene.now + 0.25, envoy=3 if tick >= 20 else 0)
        assert scene.at().view.lease_difference == 0
    assert scene.view().in_flight == 10
    scene.see(*(ended(scene.now, 1000.0, request=f"old{i}") for i in range(7)))
    assert scene.view().in_flight == 3


def test_after_a_changed_cluster_lost_ends_of_new_streams_are_healed_and_old_ones_in_the_end() -> None:
    scene = Scene()
    scene.see(*(started(1000.0, request=f"old{i}") for i in range(7)))
    reporting(scene, 1002.0, envoy=7)
    scene.see(cluster_changed(1002.0))
    reporting(scene, 1010.0, envoy=0)
    scene.see(*(started(1010.0, request=f"new{i}") for i in range(3)))
    reporting(scene, 1013.0, envoy=1)
    assert scene.view().in_flight == 8
    reporting(scene, 1002.0 + UNCOUNTED_S + 3.0, envoy=1)
    assert scene.view().in_flight == 1


def test_an_envoy_that_was_cut_off_hears_of_a_changed_cluster_late() -> None:
    scene = Scene()
    scene.see(*(started(1000.0, request=f"r{i}") for i in range(7)))
    reporting(scene, 1001.0, cut=5, here=2)
    scene.see(cluster_changed(1001.5))
    reporting(scene, 1010.0, here=0)
    scene.see(*(started(1010.0, request=f"more{i}") for i in range(4)))
    reporting(scene, 1020.0, here=2)
    reporting(scene, 1040.0, cut=0, here=2)
    assert scene.view().in_flight == 11


def test_reports_of_several_envoys_while_load_rises_are_no_difference() -> None:
    """Their reports are not of one moment: the older one knows less than the leases."""
    scene = Scene()
    for tick in range(200):
        now = scene.now + 0.025
        scene.see(started(now - 0.001, request=f"r{tick}"), now=now)
        if tick % 10 == 0:
            scene.see(load(now, (tick + 1) // 2, node="one"), now=now)
        if tick % 10 == 8:
            scene.see(load(now, (tick + 1) - (tick + 1) // 2, node="two"), now=now)
        scene.step(now)
        assert scene.at().view.lease_difference == 0
    assert scene.view().in_flight == 200


def test_a_lease_that_nobody_ends_expires() -> None:
    scene = Scene()
    scene.see(started(1000.0))
    scene.now += 3601
    assert scene.view().in_flight == 1, "a stream may last an hour"
    scene.now += 3 * 3600
    assert scene.view().in_flight == 0


def test_what_is_unknown_or_of_another_pool_is_left_aside() -> None:
    scene = Scene()
    scene.see(started(1000.0, address="10.9.9.9:1"), ended(1000.1, 999.0, address="10.9.9.9:1"))
    other = started(1000.0)
    object.__setattr__(other, "pool", "other")
    scene.see(other)
    scene.see(started(float("nan")), started(2e9), ended(1000.0, float("nan")), now=1000.5)
    assert scene.view().in_flight == 0


Script = st.lists(
    st.tuples(
        st.integers(0, 5),  # request
        st.integers(0, 3),  # attempt of it
        st.sampled_from(["start", "token", "reject", "end", "unreachable"]),
        st.integers(0, 40),  # when it arrives, in tenths of a second
    ),
    max_size=60,
)


@settings(max_examples=150, deadline=None)
@given(Script, st.randoms(use_true_random=False))
def test_in_flight_is_never_negative_and_returns_to_nothing(script: list, random: Random) -> None:
    scene = Scene()

    def times(request: int, attempt: int) -> tuple[float, float]:
        begin = 1000.0 + attempt * 0.7 + request * 0.01
        return begin, begin + 0.5

    begun = set()
    for request, attempt, kind, arrives in sorted(script, key=lambda entry: entry[3]):
        begin, end = times(request, attempt)
        name, now = f"r{request}", max(1000.0 + arrives / 10, end)
        if kind == "start":
            begun.add((request, attempt))
        observation = {
            "start": started(begin, request=name, prompt=random.choice([None, 0, 700])),
            "token": token(begin + 0.2, request=name),
            "reject": rejected(begin + 0.3, request=name, verdict=random.choice(list(Verdict))),
            "end": ended(end, begin, request=name, status=random.choice([0, 200, 429, 503])),
            "unreachable": unreachable(begin, request=name),
        }[kind]
        scene.see(observation, now=max(now, scene.now))
        view = scene.view()
        assert view.in_flight >= 0 and view.awaiting_token >= 0 and view.outstanding_prompt_bytes >= 0
        assert view.in_flight <= len(begun)
    for request, attempt in random.sample(sorted(begun), len(begun)):
        begin, end = times(request, attempt)
        scene.see(ended(end, begin, request=f"r{request}"), now=scene.now)
    view = scene.view()
    assert (view.in_flight, view.awaiting_token, view.outstanding_prompt_bytes) == (0, 0, 0)


def test_memory_does_not_grow_with_traffic() -> None:
    scene = Scene([A])
    tracker = scene.controller._fleet._profiles[A].tracker
    for i in range(3 * REMEMBER_ENDED):
        at = 1000.0 + i * 0.001
        scene.see(started(at, request=f"r{i}"), token(at, request=f"t{i}"), ended(at + 0.0005, at, request=f"r{i}"))
    scene.step(scene.now + 2.5)
    assert len(tracker.leases._by_request) <= REMEMBER_ENDED
    assert len(tracker._held._by_request) == 0
    scene.step(scene.now + 60)
    assert len(tracker.leases._by_request) == len(tracker.leases._ended) == len(tracker._unsettled) == 0
