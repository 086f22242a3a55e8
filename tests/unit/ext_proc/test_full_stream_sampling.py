"""Which streams are read to their end."""

import itertools

import pytest

from ext_proc.full_stream_sampling import CloseLook
from ext_proc.watch import Attempt
from trimtab.observation.kinds import FirstToken, StreamRead, Verdict

_numbers = itertools.count()


def an_attempt(address: str = "a:1") -> Attempt:
    return Attempt("p", address, f"id-{next(_numbers)}")


def wanted(look: CloseLook, address: str = "a:1", of: int = 1000) -> int:
    return sum(look.wants(an_attempt(address)) for _ in range(of))


def read(
    address: str = "a:1", *, finished: bool = False, truncated: bool = False, verdict: Verdict | None = None
) -> list[StreamRead]:
    return [StreamRead(1000.0, "p", address, "r", (), finished, verdict, truncated)]


@pytest.fixture
def look() -> CloseLook:
    """Of 5 %, with an endpoint that is known to mark its ends."""
    look = CloseLook(5)
    for _ in range(3):
        assert look.wants(an_attempt()), "a new one is got to know"
        look.saw(read(finished=True))
    return look


def test_an_endpoint_in_good_order_is_sampled(look: CloseLook) -> None:
    look.saw([FirstToken(1000.0, "p", "a:1", "r")])
    look.saw(read())
    assert 25 <= wanted(look) <= 80


@pytest.mark.parametrize("broken", [read(truncated=True), read(verdict=Verdict.UNAVAILABLE)], ids=["cut", "error"])
def test_one_that_breaks_a_stream_is_read_whole_until_twenty_in_a_row_were_whole(
    look: CloseLook, broken: list[StreamRead]
) -> None:
    look.saw(broken)
    assert wanted(look) == 1000
    assert look.wants(an_attempt("b:1")) and wanted(look, "b:1") < 100, "another one is not to blame"
    for _ in range(19):
        look.saw(read(finished=True))
    look.saw(broken)
    for _ in range(19):
        look.saw(read(finished=True))
    assert wanted(look) == 1000
    look.saw(read(finished=True))
    assert wanted(look) < 100


def test_a_missing_mark_says_nothing_of_one_that_has_none() -> None:
    look = CloseLook(5)
    for _ in range(10):
        look.wants(an_attempt())
        look.saw(read(truncated=True))
    assert wanted(look) < 100


def test_nothing_is_read_whole_where_the_policy_wants_none(look: CloseLook) -> None:
    look.saw(read(truncated=True))
    look.percent = 0
    assert wanted(look) == 0
    assert wanted(look, "b:1") == 0


def test_what_is_known_is_forgotten_where_addresses_come_and_go(look: CloseLook) -> None:
    """Else they would fill the memory."""
    look.saw(read(truncated=True))
    for number in range(5000):
        look.wants(an_attempt(f"{number}:1"))
    assert wanted(look) < 100
