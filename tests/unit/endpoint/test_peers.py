"""Which endpoints are suspected because their answers lack the output that others give."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trimtab.endpoint.peers import Answer, Peers, RequestKind, at_least, request_kind
from trimtab.endpoint.snapshot import EndpointId

A, B, C = (EndpointId(f"10.0.0.{number}:8000") for number in (1, 2, 3))
CHAT = request_kind("/v1/chat/completions", "192.0.2.1", 100)


def notify(peers: Peers, at: float, endpoint: EndpointId, missing: str = "", kind: RequestKind = CHAT) -> list[str]:
    """Take in an answer; what is said of whom."""
    peers.add(Answer(at, endpoint, kind, missing))
    return [f"{suspect}: {why}" for suspect, why in peers.suspects()]


def around(peers: Peers, count: int, missing: str) -> list[str]:
    """So many rounds of one answer of each endpoint, of which C gives no output."""
    said: list[str] = []
    for number in range(count):
        for endpoint in (A, B, C):
            said = said or notify(peers, 1000.0 + number, endpoint, missing if endpoint is C else "")
    return said


@pytest.mark.parametrize(
    ("missing", "hint"),
    [
        ("404", ": is the model loaded?"),
        ("401", ": is its API key right?"),
        ("403", ": is its API key right?"),
        ("200 with text/html", ": is another service on this port?"),
        ("307", ": is its address right?"),
        ("200 with an end mark alone", ""),
    ],
)
def test_an_endpoint_whose_answers_lack_output_is_suspected_within_ten_requests(missing: str, hint: str) -> None:
    said = around(Peers(), 10, missing)
    assert len(said) == 1
    who, _, what = said[0].partition(": ")
    count = what.split()[0]
    assert who == str(C)
    assert what == f"{count} of {count} requests got {missing} here, 0 of {2 * int(count)} elsewhere{hint}"


def test_one_that_never_gave_output_is_suspected_sooner_than_one_that_did() -> None:
    def rounds(peers: Peers) -> int:
        return next(number for number in range(1, 30) if around(peers, 1, "404"))

    proven = Peers()
    proven.prove(C)
    answered = Peers()
    notify(answered, 999.0, C)
    assert rounds(Peers()) <= 4
    assert rounds(proven) == 6
    assert rounds(answered) > 6


def test_it_begins_anew_once_it_is_suspected() -> None:
    peers, rounds = Peers(), 0
    while not around(peers, 1, "404"):
        rounds += 1
    assert rounds < 10
    assert [around(peers, 1, "404") for _ in range(2)] == [[], []]


def test_nothing_is_said_where_there_is_nobody_to_compare_with() -> None:
    peers = Peers()
    assert all(not notify(peers, 1000.0 + number, C, "404") for number in range(100))


def test_answers_to_other_paths_are_not_compared() -> None:
    peers = Peers()
    embeddings = request_kind("/v1/embeddings", "192.0.2.1", 100)
    for number in range(100):
        assert notify(peers, 1000.0 + number, A) == []
        assert notify(peers, 1000.0 + number, C, "404", embeddings) == []


def test_answers_of_another_time_are_not_compared() -> None:
    """Good callers use one endpoint, then a bad one comes, for whom all are in."""
    peers = Peers()
    for number in range(100):
        notify(peers, 1000.0 + number, A)
    said = [notify(peers, 1200.0 + number / 50, (A, C)[number % 2], "400") for number in range(200)]
    assert not any(said)


def test_a_caller_whose_requests_get_no_output_anywhere_blames_nobody_although_others_are_served() -> None:
    """His requests happen to go to one endpoint more than to others."""
    peers = Peers()
    bad = request_kind("/v1/chat/completions", "198.51.100.7", 100)
    for number in range(300):
        at = 1000.0 + number / 10
        assert notify(peers, at, (A, B, C)[number % 3]) == []
        assert notify(peers, at, C if number % 3 else A, "400", bad) == []


def test_what_others_give_is_known_of_the_time_and_the_kind() -> None:
    peers = Peers()
    assert peers.give_output(C, CHAT, 1000.0) is None
    for number in range(4):
        notify(peers, 1000.0, A, "404" if number == 0 else "")
    assert peers.give_output(C, CHAT, 1001.0) is True
    assert peers.give_output(A, CHAT, 1001.0) is None, "those of its own say nothing"
    for _ in range(9):
        notify(peers, 1001.0, B, "404")
    assert peers.give_output(C, CHAT, 1001.0) is False
    assert peers.give_output(C, CHAT, 2000.0) is None, "too long ago"


def test_what_it_keeps_is_bounded() -> None:
    peers = Peers()
    for number in range(5000):
        notify(peers, 1000.0 + number, A, kind=request_kind(f"/{number}", f"192.0.2.{number % 200}", number))
    assert len(peers._by_kind) <= 128
    for number in range(5000):
        notify(peers, 9000.0 + number, A)
    assert max(map(len, peers._by_kind.values())) <= 256
    for number in range(5000):
        notify(peers, 20_000.0 + number, A, "404", kind=request_kind(f"/x{number}", "198.51.100.7", 1))
    assert len(peers._without) <= 128
    assert len(peers._by_kind[CHAT]) == 256, "kinds without output take nobody's place"


@settings(max_examples=30)
@given(st.data())
def test_one_broken_endpoint_among_any_callers_is_found_and_nobody_else(data: st.DataObject) -> None:
    """Whatever part of the requests is bad, up to a third, and however many endpoints there are."""
    rng = Random(data.draw(st.integers(0, 2**32)))
    bad_share = data.draw(st.floats(0, 0.33))
    endpoints = [EndpointId(f"e{number}") for number in range(data.draw(st.integers(2, 6)))]
    peers, broken, suspects = Peers(), endpoints[-1], []
    for number in range(80 * len(endpoints)):
        endpoint = rng.choice(endpoints)
        is_missing = endpoint == broken or rng.random() < bad_share
        peers.add(Answer(1000.0 + number / 10, endpoint, CHAT, "404" if is_missing else ""))
        suspects += [suspect for suspect, _ in peers.suspects()]
        if suspects:
            break
    assert suspects == [broken]


@settings(max_examples=30)
@given(st.integers(0, 2**32), st.floats(0, 1), st.integers(2, 6))
def test_bad_callers_put_nobody_out(seed: int, bad_share: float, count: int) -> None:
    rng, peers = Random(seed), Peers()
    endpoints = [EndpointId(f"e{number}") for number in range(count)]
    for endpoint in endpoints:
        peers.prove(endpoint)
    for number in range(500):
        missing = "400" if rng.random() < bad_share else ""
        peers.add(Answer(1000.0 + number / 55, rng.choice(endpoints), CHAT, missing))
        assert list(peers.suspects()) == []


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8), st.integers(1, 8))
def test_the_chance_of_so_many_events_is_that_of_all_cases_added_up(chances: list[float], count: int) -> None:
    expected = 0.0
    for cases in range(2 ** len(chances)):
        happened = [bool(cases >> number & 1) for number in range(len(chances))]
        if sum(happened) >= count:
            case = 1.0
            for chance, is_so in zip(chances, happened, strict=True):
                case *= chance if is_so else 1.0 - chance
            expected += case
    assert at_least(count, chances) == pytest.approx(expected, abs=1e-9)
