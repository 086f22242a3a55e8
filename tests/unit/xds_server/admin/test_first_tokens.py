"""TTFT from pieces that come in any order, each counted once."""

import pytest

from trimtab.observation.kinds import AttemptEnded, AttemptStarted, FirstToken, Observation, Outcome
from xds_server.admin import first_tokens
from xds_server.admin.first_tokens import FirstTokens

WHERE = ("p", "10.0.0.1:80")


def started(at: float, request_id: str = "r") -> AttemptStarted:
    return AttemptStarted(at, *WHERE, request_id, prompt_bytes=1, streamed=True)


def token(at: float, request_id: str = "r") -> FirstToken:
    return FirstToken(at, *WHERE, request_id)


def ended(at: float, started_at: float, request_id: str = "r", *, streamed: bool = True) -> AttemptEnded:
    return AttemptEnded(at, *WHERE, request_id, started_at, 200, Outcome.COMPLETE, streamed, None)


def take(joined: FirstTokens, *pieces: Observation) -> list[float]:
    ways = {AttemptStarted: joined.started, FirstToken: joined.token, AttemptEnded: joined.ended}
    return [ttft for piece in pieces if (ttft := ways[type(piece)](piece)) is not None]


@pytest.mark.parametrize("order", ["ste", "set", "tse", "tes"])
def test_any_order(order: str) -> None:
    pieces = {"s": started(10), "t": token(10.5), "e": ended(12, 10)}
    assert take(FirstTokens(), *(pieces[letter] for letter in order)) == [0.5]


def test_a_start_that_was_lost() -> None:
    assert take(FirstTokens(), token(10.5), ended(12, 10)) == [0.5]


def test_a_retry_on_the_same_endpoint_has_its_own_ttft() -> None:
    assert take(FirstTokens(), started(10), ended(11, 10), started(11.5), token(12), ended(13, 11.5)) == [0.5]


def test_a_token_is_not_taken_for_a_later_attempts() -> None:
    assert take(FirstTokens(), token(10), started(11)) == []


def test_other_requests_and_endpoints_are_apart() -> None:
    joined = FirstTokens()
    elsewhere = FirstToken(10.5, "p", "10.0.0.2:80", "r")
    assert take(joined, started(10), elsewhere, token(10.5, "other")) == []
    assert take(joined, token(11)) == [1]


def test_pieces_without_counterpart_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_tokens, "_OPEN_MAX", 10)
    monkeypatch.setattr(first_tokens, "_LOOSE_MAX", 10)
    joined = FirstTokens()
    for i in range(100):
        take(joined, started(i, f"open-{i}"), token(i, f"token-{i}"))
        take(joined, started(i, f"ended-{i}"), ended(i, i, f"ended-{i}"))
    assert len(joined._open) <= 10 and len(joined._ended) <= 10 and len(joined._tokens) <= 10
    assert take(joined, token(100, "open-99")) == [1]
