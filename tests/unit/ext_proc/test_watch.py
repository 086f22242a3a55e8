"""What a watched stream reports: pieces in, observations out."""

import pytest

from ext_proc.watch import Attempt, Opening, OpeningKind, StreamWatch
from tests.harness import DONE, event
from trimtab.llmapi.rejections import RejectionReader
from trimtab.observation.kinds import AnswerRead, FirstToken, Observation, Output, Rejected, StreamRead, Verdict
from trimtab.policy.model import Rejections

ATTEMPT = Attempt("pool", "10.0.0.1:8000", "id-1")
SSE = {"content-type": "text/event-stream; charset=utf-8"}
REJECTIONS = RejectionReader.from_policy(Rejections())
ERROR = b'data: {"error":{"message":"The request queue is full.","type":"SERVICE_UNAVAILABLE","code":503}}\n\n'


def watch(*, whole: bool = False, headers: dict[str, str] = SSE) -> StreamWatch:
    return StreamWatch(ATTEMPT, headers, REJECTIONS, whole=whole)


def play(watched: StreamWatch, *pieces: bytes, end: bool = True) -> list[Observation]:
    """The pieces arrive a second apart, from second 1 on; `end` marks the last as the answer's end."""
    seen = []
    for number, piece in enumerate(pieces, 1):
        if watched.done:
            break
        seen += watched.take(float(number), piece, end and number == len(pieces))
    return seen


def first(at: float) -> FirstToken:
    return FirstToken(at, "pool", "10.0.0.1:8000", "id-1")


def test_the_first_token_is_no_ping_and_no_role() -> None:
    watched = watch()
    pieces = (b": ping\n\n", event("", role="assistant"), event("hello"), event(" you"))
    assert play(watched, *pieces) == [first(3.0)]
    assert watched.done


@pytest.mark.parametrize("size", [1, 2, 7, 100])
def test_it_is_found_in_any_pieces(size: int) -> None:
    text = b": ping\n\n" + event("", role="assistant") + event("hello")
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    assert [type(seen) for seen in play(watch(), *pieces, end=False)] == [FirstToken]


@pytest.mark.parametrize(
    ("pieces", "kind"),
    [
        ((b": ping\n\n", event("", role="assistant")), None),
        ((event("", role="assistant"), event("a")), OpeningKind.TOKEN),
        ((event("", role="assistant"), DONE), OpeningKind.TOKEN),
        ((event("", role="assistant"), ERROR), OpeningKind.ERROR),
        ((event("a"), ERROR), OpeningKind.TOKEN),
        ((b"data: {}\n\n",), OpeningKind.UNREAD),
        ((b"data: {}\n\n", event("a")), OpeningKind.UNREAD),
    ],
)
def test_how_an_answer_began_is_said_once(pieces: tuple[bytes, ...], kind: OpeningKind | None) -> None:
    watched = watch(whole=True)
    play(watched, *pieces, end=False)
    assert (watched.opening and watched.opening.kind) == kind


def test_an_answer_without_a_word_began_empty() -> None:
    watched = watch()
    play(watched, b": ping\n\n", b"")
    assert watched.opening == Opening(OpeningKind.EMPTY, Verdict.UNAVAILABLE)


def test_an_error_before_the_first_token_is_a_rejection() -> None:
    watched = watch()
    (seen,) = play(watched, event("", role="assistant"), ERROR, DONE)
    assert isinstance(seen, Rejected)
    assert (seen.at, seen.status, seen.verdict, seen.in_stream) == (2.0, 200, Verdict.SATURATED, True)
    assert watched.done


@pytest.mark.parametrize("pieces", [(b"",), (b": ping\n\n", b""), (event("", role="assistant"), b"")])
def test_a_stream_that_ends_cleanly_without_a_word_is_a_failure(pieces: tuple[bytes, ...]) -> None:
    (seen,) = play(watch(), *pieces)
    assert isinstance(seen, Rejected)
    assert (seen.verdict, seen.reason, seen.in_stream) == (Verdict.UNAVAILABLE, "empty-stream", True)


def answer(at: float, output: Output, reason: str = "") -> AnswerRead:
    return AnswerRead(at, "pool", "10.0.0.1:8000", "id-1", output, reason)


def test_a_complete_answer_may_have_no_token() -> None:
    assert play(watch(), event("", role="assistant"), DONE) == [answer(2.0, Output.OUTPUT)]


def test_an_end_mark_alone_is_no_answer() -> None:
    assert play(watch(), b": ping\n\n", DONE) == [answer(2.0, Output.NONE, "an end mark alone")]
    watched = watch()
    play(watched, DONE)
    assert watched.opening is not None
    assert watched.opening.kind is OpeningKind.NO_OUTPUT


@pytest.mark.parametrize("end", [DONE, b""])
def test_a_stream_of_events_that_are_not_known_has_no_verdict(end: bytes) -> None:
    assert play(watch(), b'data: {"sound": "AAAA"}\n\n', end)[-1:] == [
        answer(2.0, Output.UNKNOWN, "events of no known API")
    ]


def test_a_stream_that_is_cut_says_nothing_here_because_the_access_log_does() -> None:
    assert play(watch(), event("", role="assistant"), end=False) == []
    begun = StreamRead(1.0, "pool", "10.0.0.1:8000", "id-1", (), False, None)
    assert play(watch(whole=True), event("a"), event("b"), end=False) == [first(1.0), begun]


def test_a_body_that_cannot_be_read_gives_the_time_of_its_first_byte() -> None:
    watched = watch(headers={**SSE, "content-encoding": "x-unheard-of"}, whole=True)
    assert play(watched, b"\x01\x02", b"\x03") == [first(1.0)]
    assert watched.done


def test_a_whole_stream_gives_the_times_between_its_tokens() -> None:
    watched = watch(whole=True)
    seen = play(watched, event("a"), event("b"), b": ping\n\n", event("c"), DONE)
    assert seen[0] == first(1.0)
    assert seen[1:] == [
        StreamRead(1.0, "pool", "10.0.0.1:8000", "id-1", (), False, None),
        StreamRead(3.0, "pool", "10.0.0.1:8000", "id-1", (1.0,), False, None),
        StreamRead(5.0, "pool", "10.0.0.1:8000", "id-1", (2.0,), True, None),
    ]


def test_a_whole_answer_in_one_piece_is_told_once() -> None:
    seen = play(watch(whole=True), event("a") + event("b") + DONE)
    assert seen == [first(1.0), StreamRead(1.0, "pool", "10.0.0.1:8000", "id-1", (0.0,), True, None)]


def test_a_long_stream_is_told_while_it_lasts() -> None:
    watched = watch(whole=True)
    seen: list[Observation] = []
    for number in range(2000):
        seen += watched.take(number / 100, event(str(number)), False)
    parts = [part for part in seen if isinstance(part, StreamRead)]
    assert [part.at for part in parts] == pytest.approx([2 * n for n in range(10)], abs=0.02)
    assert sum(len(part.gaps_s) for part in parts) >= 1790
    assert not any(part.finished for part in parts)


def test_a_fast_stream_is_told_in_parts_of_bounded_size() -> None:
    watched = watch(whole=True)
    seen = [part for n in range(1000) for part in watched.take(n / 1e4, event(str(n)), n == 999)]
    parts = [part for part in seen if isinstance(part, StreamRead)]
    assert [len(part.gaps_s) for part in parts] == [0, 256, 256, 256, 231]
    assert len({part.at for part in parts}) == 5


def test_a_piece_with_any_number_of_tokens_makes_no_longer_report() -> None:
    watched = watch(whole=True)
    watched.take(1.0, event("a"), False)
    (read,) = watched.take(1.5, event("b") * 20_000, False)
    assert isinstance(read, StreamRead)
    assert (len(read.gaps_s), max(read.gaps_s)) == (512, 0.5)


def test_tokens_that_come_together_and_a_clock_that_is_set_back_give_no_gap() -> None:
    watched = watch(whole=True)
    _, begun = watched.take(10.0, event("a") + event("b"), False)
    assert isinstance(begun, StreamRead)
    assert begun.gaps_s == (0.0,)
    watched.take(9.0, event("c"), False)
    (read,) = watched.take(9.5, event("d") + DONE, True)
    assert isinstance(read, StreamRead)
    assert (read.gaps_s, read.finished) == ((0.0, 0.5), True)


def test_one_token_has_no_gaps() -> None:
    _, read = play(watch(whole=True), event("a") + DONE)
    assert isinstance(read, StreamRead)
    assert (read.gaps_s, read.finished) == ((), True)


def test_a_late_error_is_in_what_was_read() -> None:
    *_, read = play(watch(whole=True), event("a"), event("b"), ERROR, DONE)
    assert isinstance(read, StreamRead)
    assert (read.gaps_s, read.finished, read.verdict) == ((1.0,), False, Verdict.SATURATED)


def test_an_answer_without_its_end_mark_is_not_finished() -> None:
    *_, read = play(watch(whole=True), event("a"), event("b"))
    assert isinstance(read, StreamRead)
    assert (read.finished, read.verdict, read.truncated) == (False, None, True)


@pytest.mark.parametrize(
    "events",
    [
        [b'data: {"text_output": "a"}\n\n', b'data: {"text_output": "b"}\n\n'],
        [event("a"), event("b", padding="x" * (1 << 20))],
    ],
    ids=["triton's protocol has no mark", "the mark may have been in what was too long to read"],
)
def test_an_end_without_a_mark_is_no_cut_where_none_can_be_expected(events: list[bytes]) -> None:
    *_, read = play(watch(whole=True), *events)
    assert isinstance(read, StreamRead)
    assert (read.finished, read.truncated) == (False, False)


ANTHROPIC_START = b'event: message_start\ndata: {"type": "message_start", "message": {"content": []}}\n\n'
ANTHROPIC_TOKEN = b'data: {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "a"}}\n\n'


def test_an_anthropic_stream_has_a_mark_at_its_end() -> None:
    *_, cut = play(watch(whole=True), ANTHROPIC_START, ANTHROPIC_TOKEN)
    *_, whole = play(watch(whole=True), ANTHROPIC_START, ANTHROPIC_TOKEN, b'data: {"type": "message_stop"}\n\n')
    assert isinstance(cut, StreamRead) and isinstance(whole, StreamRead)
    assert (cut.finished, cut.truncated, whole.finished, whole.truncated) == (False, True, True, False)
