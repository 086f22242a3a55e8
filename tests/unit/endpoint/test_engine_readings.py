"""What engines say of themselves: UNKNOWN is a value, and a restart is a new endpoint."""

from dataclasses import replace
from math import inf, nan

import pytest

from tests.unit.scene import A, B, Scene, answered, failed, read, rejected
from trimtab.endpoint.engine_readings import Origin
from trimtab.health.state import State
from trimtab.observation.kinds import Signals, SignalsRead


def test_readings_are_shown_until_they_are_stale() -> None:
    scene = Scene(signals={"stale_after_s": 5})
    assert (scene.view().signals, scene.view().signals_age_s) == (Signals(), None)
    scene.see(read(1000.0, waiting=3, kv_usage=0.4))
    scene.now = 1005.0
    assert (scene.view().signals.waiting, scene.view().signals_age_s) == (3, 5.0)
    scene.now = 1005.1
    assert (scene.view().signals, scene.view().signals_age_s) == (Signals(), pytest.approx(5.1))


@pytest.mark.parametrize("value", [nan, inf, -inf, -1.0, 1e400])
def test_readings_that_cannot_be_true_are_unknown(value: float) -> None:
    scene = Scene()
    scene.see(read(1000.0, waiting=value, running=value, kv_usage=value, generated_tokens=value, preemptions=value))
    assert scene.view().signals == Signals()


@pytest.mark.parametrize(("value", "known"), [(0.0, 0.0), (1.0, 1.0), (1.01, None), (40.0, None)])
def test_kv_usage_is_a_share(value: float, known: float | None) -> None:
    scene = Scene()
    scene.see(read(1000.0, kv_usage=value, waiting=2))
    assert (scene.view().signals.kv_usage, scene.view().signals.waiting) == (known, 2)


def test_a_failed_reading_leaves_the_last_good_one() -> None:
    scene = Scene()
    scene.see(read(1000.0, waiting=3), read(1001.0, error="timed out"))
    assert (scene.view().signals.waiting, scene.view().signals_age_s) == (3, 1.0)


def test_an_older_reading_does_not_replace_a_newer_one() -> None:
    scene = Scene()
    scene.see(read(1001.0, waiting=3))
    scene.see(read(1000.0, waiting=9))
    assert scene.view().signals.waiting == 3


def test_a_reading_that_comes_after_the_endpoint_is_gone_is_dropped() -> None:
    scene = Scene()
    scene.set_endpoints(B)
    scene.see(read(1000.5, waiting=9))
    scene.now = 1001.0
    scene.set_endpoints(A, B)
    scene.see(read(1000.9, waiting=9))
    assert scene.view().signals == Signals()


@pytest.mark.parametrize(
    ("before", "after", "restarted"),
    [
        ({"process_start": 500.0}, {"process_start": 990.0}, True),
        ({"process_start": 500.0}, {"process_start": 500.9}, False),  # the clock was set
        ({"process_start": 500.0}, {"process_start": 400.0}, False),  # another worker behind the port
        ({"process_start": 500.0}, {}, False),
        ({}, {"process_start": 990.0}, False),
        ({"generated_tokens": 5000.0}, {"generated_tokens": 20.0}, True),
        ({"generated_tokens": 5000.0}, {"generated_tokens": 5000.0}, False),
        ({"generated_tokens": 5000.0}, {}, False),
        ({"preemptions": 3.0}, {"preemptions": 0.0}, True),
        ({"waiting": 9.0}, {"waiting": 0.0}, False),
    ],
)
def test_a_restart_is_a_new_incarnation_with_a_clean_record(before: dict, after: dict, restarted: bool) -> None:
    scene = Scene()
    scene.see(read(1000.0, **before), *answered(1000.0, 1.9), *(failed(1000.1, request=f"f{i}") for i in range(3)))
    scene.step(1000.5)
    assert scene.at().state == State.OPEN
    scene.see(read(1001.0, **after))
    scene.step()
    clean = (scene.at().id.incarnation, scene.at().view.ttft_s, scene.at().view.error_share) == (1, None, 0.0)
    assert clean is restarted
    assert scene.at().takes_work is restarted


def test_a_restart_is_seen_across_readings_that_failed() -> None:
    scene = Scene()
    scene.see(read(1000.0, process_start=500.0), read(1001.0, error="refused"), read(1002.0, waiting=0))
    scene.see(read(1003.0, process_start=1002.5))
    assert scene.view().id.incarnation == 1


def test_every_restart_counts() -> None:
    scene = Scene()
    for i in range(4):
        scene.see(read(1000.0 + i * 10, process_start=999.0 + i * 10))
    assert scene.view().id.incarnation == 3


def test_a_restarted_endpoint_ramps_from_a_moderate_score() -> None:
    scene = Scene()
    scene.see(read(1000.0, process_start=500.0))
    scene.step()
    assert scene.at().state == State.UP
    scene.see(read(1001.0, process_start=1000.0))
    scene.step()
    assert (scene.at().state, scene.at().effective_score) == (State.SLOW_START, 30.0)
    scene.step(1002.0)
    assert scene.at().effective_score == pytest.approx(45.0)


def test_a_cool_down_ends_with_the_process_that_asked_for_it() -> None:
    scene = Scene()
    scene.see(read(1000.0, process_start=500.0), rejected(1000.1))
    scene.step()
    assert scene.at().state == State.COOLING
    scene.see(read(1001.0, process_start=1000.5))
    scene.step()
    assert scene.at().takes_work


def test_a_view_says_where_each_signal_was_read_and_why_others_are_unknown() -> None:
    scene = Scene(signals={"stale_after_s": 5})
    assert set(scene.view().signals_unknown.values()) == {"not read yet"}
    scene.see(read(1000.0, error="refused"))
    assert scene.view().signals_unknown["waiting"] == "refused"
    scene.see(replace(read(1001.0, waiting=3), origins={"waiting": "queue"}, unknown={"running": "not on the page"}))
    assert scene.view().signal_origins == {"waiting": Origin("scrape", "queue", 1001.0)}
    assert scene.view().signals_unknown["running"] == "not on the page"
    scene.see(read(1006.0, error="refused"))
    scene.now = 1006.5
    assert scene.view().signal_origins == {}
    assert scene.view().signals_unknown["waiting"] == "the last reading is too old: refused"


def test_sources_do_not_replace_each_others_readings() -> None:
    """Of what both know the fresher counts, and what one lacks the other gives."""
    scene = Scene()
    scene.see(replace(read(1000.0, waiting=3, kv_usage=0.5), origins={"waiting": "queue", "kv_usage": "kv"}))
    told = replace(read(1001.0, waiting=9, max_model_len=4096), source="header")
    scene.see(replace(told, origins={"waiting": "w", "max_model_len": "m"}))
    view = scene.view()
    assert (view.signals.waiting, view.signals.kv_usage, view.signals.max_model_len) == (9, 0.5, 4096)
    assert {name: origin.source for name, origin in view.signal_origins.items()} == {
        "waiting": "header",
        "kv_usage": "scrape",
        "max_model_len": "header",
    }
    scene.see(read(1002.0, waiting=4))
    assert (scene.view().signals.waiting, scene.view().signals.kv_usage) == (4, None)


def test_counters_of_two_sources_are_no_restart() -> None:
    scene = Scene()
    scene.see(read(1000.0, generated_tokens=500))
    scene.see(replace(read(1001.0, generated_tokens=400), source="header"))
    scene.see(read(1002.0, generated_tokens=510))
    assert scene.view().id.incarnation == 0


def test_a_counter_in_another_place_is_no_restart() -> None:
    scene = Scene()

    def counted(at: float, tokens: float, place: str) -> SignalsRead:
        return replace(read(at, generated_tokens=tokens), origins={"generated_tokens": place})

    scene.see(counted(1000.0, 500, "tokens"), counted(1001.0, 100, 'tokens where model_name="a"'))
    assert scene.view().id.incarnation == 0
    scene.see(counted(1001.5, 700, "tokens"))
    assert scene.view().tokens_per_s is None
    scene.see(counted(1001.7, 100, 'tokens where model_name="a"'))
    scene.see(counted(1002.0, 50, 'tokens where model_name="a"'))
    assert scene.view().id.incarnation == 1
