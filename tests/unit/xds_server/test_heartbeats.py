"""The ext_proc workers that are not heard of any more."""

from xds_server.heartbeats import OVERDUE_S, Heartbeats


def test_an_observer_that_is_heard_of_in_time_misses_nothing() -> None:
    heartbeats = Heartbeats()
    heartbeats.heard(100.0, "one")
    assert heartbeats.heard(100.5, "one")
    assert not heartbeats.overdue(101.0)


def test_nobody_is_awaited_before_the_first_sign_of_life() -> None:
    heartbeats = Heartbeats()
    assert not heartbeats.overdue(100.0)
    assert not heartbeats.heard(100.0, "one"), "what came before it is not known to have been seen"


def test_one_that_is_silent_is_overdue_until_it_is_heard_of_and_has_missed_something_then() -> None:
    heartbeats = Heartbeats()
    heartbeats.heard(100.0, "one")
    heartbeats.heard(100.0 + OVERDUE_S, "two")
    assert heartbeats.overdue(100.1 + OVERDUE_S)
    assert not heartbeats.heard(100.2 + OVERDUE_S, "one")
    assert not heartbeats.overdue(100.2 + OVERDUE_S)


def test_one_that_is_gone_is_not_awaited() -> None:
    heartbeats = Heartbeats()
    heartbeats.heard(100.0, "one")
    heartbeats.gone("one")
    heartbeats.gone("never seen")
    assert not heartbeats.overdue(200.0)
