"""The ext_proc service, spoken to as Envoy does: whatever happens, Envoy gets no error."""

import asyncio
import contextlib
import gc
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import grpc
import pytest
from envoy.service.accesslog.v3 import als_pb2, als_pb2_grpc
from envoy.service.ext_proc.v3 import external_processor_pb2 as pb
from envoy.service.ext_proc.v3 import external_processor_pb2_grpc as pb_grpc

from ext_proc.access_log import AccessLogService
from ext_proc.first_token_gate import Meetings
from ext_proc.server import serve_ext_proc
from ext_proc.service import ExtProcService
from ext_proc.watch import Attempt
from tests.harness import DONE, event, until
from trimtab.datapath import RETRY_HEADER
from trimtab.llmapi.rejections import MAX_BODY, RejectionReader
from trimtab.observation.kinds import FirstToken, Observation, Rejected, StreamRead, Verdict
from trimtab.policy.model import Pool, Rejections

BUSY = b'{"error":{"message":"currently busy","type":"Service Unavailable","param":null,"code":503}}'


def headers(status: int, end: bool = False, request_id: str = "id-1", **values: str) -> pb.ProcessingRequest:
    message = pb.ProcessingRequest()
    for key, value in {":status": str(status), **values}.items():
        message.response_headers.headers.headers.add(key=key.replace("_", "-"), raw_value=value.encode())
    message.response_headers.end_of_stream = end
    fields = message.attributes["envoy.filters.http.ext_proc"].fields
    fields["request.id"].string_value = request_id
    fields["upstream.address"].string_value = "10.0.0.1:8000"
    fields["xds.cluster_name"].string_value = "p"
    fields["request.time"].string_value = datetime.now(UTC).isoformat()
    return message


def body(piece: bytes, end: bool = False) -> pb.ProcessingRequest:
    return pb.ProcessingRequest(response_body=pb.HttpBody(body=piece, end_of_stream=end))


class Played:
    """What a handler sees of a gRPC stream whose messages are all there."""

    def __init__(self, role: str, messages: Iterable[pb.ProcessingRequest]) -> None:
        self._role = role
        self._messages = iter(messages)
        self.answers: list[pb.ProcessingResponse] = []

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return (("user-agent", "envoy"), ("role", self._role))

    async def read(self) -> Any:
        return next(self._messages, grpc.aio.EOF)

    async def write(self, answer: pb.ProcessingResponse) -> None:
        self.answers.append(answer)


@dataclass
class Line:
    """A running service, a connection to it, and what it reported."""

    service: ExtProcService
    channel: grpc.aio.Channel
    seen: list[Observation] = field(default_factory=list)

    async def send(self, role: str, *messages: pb.ProcessingRequest) -> list[pb.ProcessingResponse]:
        """Play a stream that Envoy ends after these messages; a fault would be counted."""
        played = Played(role, messages)
        await self.service.Process(None, played)  # type: ignore[arg-type]
        return played.answers

    def open(self, role: str) -> Any:
        """A stream over the wire."""
        return pb_grpc.ExternalProcessorStub(self.channel).Process(metadata=(("role", role),))


@asynccontextmanager
async def line(
    *, rejections: Any = None, full_stream_percent: float = 0, reject_timeout_s: float = 5, grace_s: float = 0
) -> AsyncIterator[Line]:
    seen: list[Observation] = []
    rejections = rejections or RejectionReader.from_policy(Rejections())
    service = ExtProcService(seen.extend, rejections, full_stream_percent, reject_timeout_s)
    async with (
        serve_ext_proc("127.0.0.1:0", service, AccessLogService(seen.extend), grace_s=grace_s) as port,
        grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
    ):
        yield Line(service, channel, seen)


SSE = {"content_type": "text/event-stream"}


async def test_a_watched_stream_is_ended_at_its_first_token() -> None:
    async with line() as to:
        await to.send("watch", headers(200, **SSE), body(event("", role="assistant")), body(event("hello")))
        (token,) = to.seen
        assert isinstance(token, FirstToken)
        assert (token.pool, token.address, token.request_id) == ("p", "10.0.0.1:8000", "id-1")
        assert abs(token.at - time.time()) < 5
        assert (to.service.counters.watched, to.service.counters.read_whole) == (1, 0)


async def test_a_share_of_the_watched_is_read_to_the_end() -> None:
    async with line(full_stream_percent=30) as to:
        for number in range(200):
            pieces = body(event("a")), body(event("b")), body(DONE, end=True)
            await to.send("watch", headers(200, request_id=f"id-{number}", **SSE), *pieces)
        tokens, whole = ({o.request_id for o in to.seen if isinstance(o, kind)} for kind in (FirstToken, StreamRead))
        assert len(tokens) == 200
        assert 30 <= len(whole) <= 90
        assert to.service.counters.read_whole == len(whole)


async def test_all_streams_of_an_endpoint_that_cuts_one_short_are_read_to_the_end() -> None:
    async with line(full_stream_percent=0.01) as to:
        for number in range(10):
            end = body(DONE, end=True) if number == 0 else body(event("b"), end=True)
            await to.send("watch", headers(200, request_id=f"id-{number}", **SSE), body(event("a")), end)
        assert sum(isinstance(seen, StreamRead) and seen.truncated for seen in to.seen) == 9


async def test_an_answer_that_ends_with_its_headers_is_empty() -> None:
    async with line() as to:
        await to.send("watch", headers(200, end=True, **SSE))
        (seen,) = to.seen
        assert isinstance(seen, Rejected)
        assert seen.reason == "empty-stream"


async def test_an_error_with_the_type_of_a_stream_is_left_to_the_other_filter() -> None:
    async with line() as to:
        await to.send("watch", headers(503, **SSE))
        assert to.seen == []


@pytest.mark.parametrize(
    ("role", "messages"),
    [
        ("reject", (headers(503), body(BUSY, end=True))),
        ("reject", (headers(503), body(BUSY[:20]), body(BUSY[20:]), body(b"", end=True))),
        ("reject-headers", (headers(503, x_llm_d_request_dropped_reason="rejected-saturated"),)),
        ("reject", (headers(503, end=True, x_llm_d_request_dropped_reason="rejected-saturated"),)),
    ],
)
async def test_an_error_is_judged_once_all_is_there(role: str, messages: tuple[pb.ProcessingRequest, ...]) -> None:
    async with line() as to:
        await to.send(role, *messages)
        (seen,) = to.seen
        assert isinstance(seen, Rejected)
        assert (seen.status, seen.verdict, seen.in_stream) == (503, Verdict.SATURATED, False)
        assert (seen.pool, seen.address, seen.request_id) == ("p", "10.0.0.1:8000", "id-1")


async def test_of_an_endless_error_only_the_beginning_is_read() -> None:
    async with line() as to:
        await to.send("reject", headers(429), body(BUSY + b" " * MAX_BODY))
        assert len(to.seen) == 1


async def test_an_error_that_drips_is_judged_by_what_came_until_the_deadline(caplog: pytest.LogCaptureFixture) -> None:
    async with line(reject_timeout_s=0.3) as to:

        async def drip() -> float:
            """Seconds until the service ends the stream, which is written to before and after."""
            call = to.open("reject")
            began = time.monotonic()
            await call.write(headers(503))
            await call.write(body(BUSY[:-1]))
            with contextlib.suppress(asyncio.InvalidStateError, grpc.aio.AioRpcError):
                while time.monotonic() < began + 10:
                    await call.write(body(b" "))
                    await asyncio.sleep(0.02)
            await call.code()  # this client calls it a fault when a stream ends while it writes
            return time.monotonic() - began

        took = await asyncio.gather(*(drip() for _ in range(20)))
        assert min(took) >= 0.3
        assert max(took) < 3
        assert [seen.verdict for seen in to.seen if isinstance(seen, Rejected)] == [Verdict.SATURATED] * 20
        assert to.service.counters.faults == 0
    gc.collect()  # a read that was left behind would complain now
    assert caplog.records == []


async def test_an_error_that_envoy_stops_waiting_for_is_judged_by_what_came() -> None:
    async with line() as to:
        call = to.open("reject")
        await call.write(headers(503))
        await until(lambda: to.service.counters.rejects)
        call.cancel()
        await until(lambda: to.seen)
        (seen,) = to.seen
        assert isinstance(seen, Rejected)
        assert seen.status == 503
        assert to.service.counters.faults == 0


async def test_a_stream_that_envoy_ends_is_no_fault() -> None:
    async with line() as to:
        for messages in ((), (headers(200, **SSE),), (headers(200, **SSE), body(b": ping\n\n"))):
            call = to.open("watch")
            for message in messages:
                await call.write(message)
            await call.done_writing()
            assert await call.code() is grpc.StatusCode.OK
        cancelled = to.open("watch")
        await cancelled.write(headers(200, **SSE))
        await until(lambda: to.service.counters.watched == 3)
        cancelled.cancel()
        await asyncio.sleep(0)
        assert to.service.counters.faults == 0
        assert to.seen == []


def set_headers(answer: pb.ProcessingResponse) -> dict[str, str]:
    mutation = answer.response_headers.response.header_mutation
    return {option.header.key: option.header.raw_value.decode() for option in mutation.set_headers}


QUOTA = b'{"error":{"message":"Rate limit reached","type":"tokens","code":"rate_limit_exceeded"}}'


@pytest.mark.parametrize(("text", "marked"), [(BUSY, True), (QUOTA, False)])
async def test_only_the_engines_trouble_is_marked_for_a_retry(text: bytes, marked: bool) -> None:
    async with line() as to:
        (answer,) = await to.send("reject", headers(429), body(text, end=True))
        assert (RETRY_HEADER in set_headers(answer)) == marked
        removed = answer.response_headers.response.header_mutation.remove_headers
        assert (RETRY_HEADER in removed) != marked  # Envoy's own mark, of what nobody has read


FAILED = b"data: " + BUSY + b"\n\n"
OPENINGS: dict[str, tuple[tuple[pb.ProcessingRequest, ...], str | None]] = {
    "token": ((body(event("", role="assistant")), body(event("a"))), None),
    "error": ((body(b": ping\n\n"), body(FAILED)), "503"),
    "empty": ((body(b": ping\n\n"), body(b"", end=True)), "503"),
    "unread": ((body(b'data: {"type":"transcript.text.delta","delta":"a"}\n\n'),), None),
}


@pytest.mark.parametrize("first", ["gate", "watch-gated"])
@pytest.mark.parametrize("release", OPENINGS)
async def test_the_gate_hears_from_the_watcher_whoever_comes_first(first: str, release: str) -> None:
    pieces, status = OPENINGS[release]
    sent = {"gate": (headers(200, **SSE),), "watch-gated": (headers(200, **SSE), *pieces)}
    async with line() as to:
        one = asyncio.create_task(to.send(first, *sent.pop(first)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        (other, messages), *_ = sent.items()
        answers = await to.send(other, *messages)
        answers = answers or await one
        assert dict(to.service.counters.gated) == {release: 1}
        if status is None:
            assert answers == []
        else:
            (answer,) = answers
            assert set_headers(answer)[":status"] == status
            assert RETRY_HEADER in set_headers(answer)
            assert json.loads(answer.response_headers.response.body_mutation.body)["error"]["message"]
        assert to.service.counters.faults == 0


@pytest.mark.parametrize(("attempts", "retried"), [(1, True), (2, False), (3, False)])
async def test_a_refusal_that_gets_no_other_attempt_ends_the_request(attempts: int, retried: bool) -> None:
    """Its answer may go on for ever, and what replaces it would go on with it."""
    held = headers(200, **SSE)
    fields = held.attributes["envoy.filters.http.ext_proc"].fields
    fields["xds.route_name"].string_value = "asked/stream"  # `p` stands in for it
    fields["upstream.request_attempt_count"].number_value = attempts
    pool = {"name": "asked", "endpoints": [{"address": "10.0.0.1:8000"}], "retries": {"attempts": 1}}
    async with line() as to:
        to.service.retries.take_policy([Pool.model_validate(pool)])
        watcher = to.open("watch-gated")
        await watcher.write(held)
        await watcher.write(body(FAILED))
        (answer,) = await to.send("gate", held)
        assert answer.HasField("response_headers") == retried
        if not retried:
            assert answer.immediate_response.status.code == 503
            assert answer.immediate_response.body == BUSY
        watcher.cancel()


@pytest.mark.parametrize("content_type", ["text/event-streams", "text/event-stream, text/plain"])
async def test_what_only_begins_like_an_event_stream_passes_as_it_is(content_type: str) -> None:
    other = headers(200, **{"content-type": content_type})
    async with line() as to:
        held = asyncio.create_task(to.send("gate", other))
        await to.send("watch-gated", other, body(b"hello"), body(b"", end=True))
        assert await held == []
        assert dict(to.service.counters.gated) == {"unread": 1}
        assert to.seen == []


async def test_an_attempt_that_nobody_watches_passes_soon() -> None:
    async with line() as to:
        assert await asyncio.wait_for(to.send("gate", headers(200, **SSE)), 5) == []
        assert dict(to.service.counters.gated) == {"unread": 1}
        await to.send("watch-gated", headers(200, **SSE), body(event("a")))  # too late: nobody waits, nothing stays
        await asyncio.sleep(0.6)
        assert await asyncio.wait_for(to.send("gate", headers(200, **SSE)), 5) == []


async def test_a_counterpart_that_came_while_the_service_was_busy_is_met() -> None:
    meetings, attempt = Meetings(), Attempt("p", "10.0.0.1:8000", "id-1")
    held = meetings.meet(attempt)
    time.sleep(0.7)  # noqa: ASYNC251  # the event loop is busy, and reads nothing
    await asyncio.sleep(0.01)
    assert not held.done()
    assert meetings.meet(attempt) is held


async def test_streams_that_come_by_the_thousand_are_all_served() -> None:
    """gRPC by itself cancels some while they wait, and Envoy lets go what they hold."""
    async with line() as to:
        calls = [to.open("watch") for _ in range(2000)]
        await asyncio.gather(*(call.done_writing() for call in calls))
        assert Counter(await asyncio.gather(*(call.code() for call in calls))) == {grpc.StatusCode.OK: 2000}


async def test_attempts_of_one_request_are_told_apart_by_their_connections() -> None:
    def over(port: int) -> pb.ProcessingRequest:
        message = headers(200, **SSE)
        message.attributes["envoy.filters.http.ext_proc"].fields["upstream.local_address"].string_value = f"a:{port}"
        return message

    async with line() as to:
        held = asyncio.create_task(to.send("gate", over(1)))
        await asyncio.sleep(0)
        await to.send("watch-gated", over(2), body(FAILED))
        await to.send("watch-gated", over(1), body(event("a")))
        assert await held == []
        (answer,) = await to.send("gate", over(2))
        assert set_headers(answer)[":status"] == "503"


async def test_a_held_attempt_that_envoy_gives_up_is_counted_and_leaves_nothing() -> None:
    async with line() as to:
        watcher, gate = to.open("watch-gated"), to.open("gate")
        await watcher.write(headers(200, **SSE))
        await gate.write(headers(200, **SSE))
        # Both are here when nothing waits for its counterpart any more.
        await until(lambda: to.service.counters.watched and not to.service._meetings._waiting)
        gate.cancel()
        await until(lambda: to.service.counters.gated["gone"])
        watcher.cancel()
        assert to.service.counters.faults == 0


class Broken:
    def judge(self, *_: object) -> None:
        raise KeyError("a fault of ours")


@pytest.mark.parametrize(
    ("role", "message"),
    [
        ("reject", headers(503, end=True)),
        ("reject", pb.ProcessingRequest(response_headers=pb.HttpHeaders(end_of_stream=True))),
        ("watch", pb.ProcessingRequest(response_headers=pb.HttpHeaders())),
        ("unheard-of", headers(200)),
    ],
)
async def test_a_fault_is_counted_and_said_once_and_envoy_hears_nothing_of_it(
    role: str, message: pb.ProcessingRequest, caplog: pytest.LogCaptureFixture
) -> None:
    async with line(rejections=Broken()) as to:
        for _ in range(3):
            await to.send(role, message)
        assert to.service.counters.faults == 3
        assert len([record for record in caplog.records if record.name == "ext_proc.service"]) == 1


async def test_it_stops_within_its_grace_whatever_envoy_holds_open() -> None:
    async with line(grace_s=0.2) as to:
        idle = [to.open("watch") for _ in range(100)]
        for call in idle:
            await call.write(headers(200, **SSE))
        log = als_pb2_grpc.AccessLogServiceStub(to.channel).StreamAccessLogs()
        await log.write(als_pb2.StreamAccessLogsMessage())
        await until(lambda: to.service.counters.watched == 100)
        began = time.monotonic()
    assert time.monotonic() - began < 2
    assert to.service.counters.faults == 0


async def test_a_taken_address_is_an_error_and_a_shared_one_is_not() -> None:
    def service() -> ExtProcService:
        return ExtProcService(lambda seen: None, RejectionReader.from_policy(Rejections()), 0, 5)

    log = AccessLogService(lambda seen: None)
    async with serve_ext_proc("127.0.0.1:0", service(), log, shared_port=True, grace_s=0) as port:
        async with serve_ext_proc(f"127.0.0.1:{port}", service(), log, shared_port=True, grace_s=0) as same:
            assert same == port
        with pytest.raises(RuntimeError):
            async with serve_ext_proc(f"127.0.0.1:{port}", service(), log, grace_s=0):
                pass
