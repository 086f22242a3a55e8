"""The ext_proc service: sees what endpoints answer, and says which errors are retried. Faults here change no answer."""

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field

import grpc
from envoy.service.ext_proc.v3 import external_processor_pb2 as pb
from envoy.service.ext_proc.v3 import external_processor_pb2_grpc as pb_grpc
from google.protobuf.struct_pb2 import Value

from ext_proc.access_log import media_type
from ext_proc.first_token_gate import GONE, Meetings, Refusal, mark, settle
from ext_proc.full_stream_sampling import CloseLook
from ext_proc.quiet_log import QuietLog
from ext_proc.retry_decision import Asked, RetryAdvice
from ext_proc.unary import UnaryWatch, observation_of, read_unary
from ext_proc.watch import Attempt, Opening, OpeningKind, StreamWatch
from trimtab.datapath import ERROR_STATUS, ROLE_HEADER, Role, pool_of_cluster, pool_of_route
from trimtab.endpoint.outcome import is_json
from trimtab.llmapi.rejections import MAX_BODY, RejectionReader
from trimtab.observation.kinds import AnswerRead, Observation, Output, Rejected, Verdict

log = logging.getLogger(__name__)

Report = Callable[[Sequence[Observation]], None]

_ATTRIBUTES = "envoy.filters.http.ext_proc"


@dataclass(slots=True)
class ExtProcCounters:
    """What the service has done since it started."""

    watched: int = 0  # streamed answers
    read_whole: int = 0  # of these, the ones that were to be read to their end
    rejects: int = 0  # error answers
    faults: int = 0  # streams that could not be understood: a fault of ours
    gated: Counter[str] = field(default_factory=Counter)  # answers that the gate has held, by opening, or `GONE`


class ExtProcService(pb_grpc.ExternalProcessorServicer):  # type: ignore[misc]
    """Serves the upstream filters, told apart by their gRPC metadata (`trimtab.datapath.Role`).

    When it ends a stream, Envoy lets the rest of the answer pass. A watched stream is ended as soon as its first token
    is known, so that the rest of an answer costs nothing; `full_stream_percent` of them are read to the end, and those
    of an endpoint that needs a full-stream sampling. An error answer is held for `reject_timeout_s` at most, and
    answered with a mark if `retries` says that it is worth another attempt. A gated stream is held until its first
    token; one that begins with an error is answered with that error. `report` is called on the event loop and must not
    block.
    """

    def __init__(
        self,
        report: Report,
        rejections: RejectionReader,
        full_stream_percent: float,
        reject_timeout_s: float,
        retries: RetryAdvice | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.rejections = rejections
        self.retries = retries or RetryAdvice()
        self.close_look = CloseLook(full_stream_percent)
        self.reject_timeout_s = reject_timeout_s
        self.counters = ExtProcCounters()
        self._report = report
        self._clock = clock
        self._quiet_log = QuietLog(log, clock)
        self._meetings = Meetings()

    async def Process(
        self, request_iterator: AsyncIterator[pb.ProcessingRequest], context: grpc.aio.ServicerContext
    ) -> None:
        """One attempt. Envoy may end it at any time: that is no fault."""
        try:
            role = Role(dict(context.invocation_metadata() or ()).get(ROLE_HEADER, ""))
            match role:
                case Role.WATCH | Role.WATCH_GATED:
                    await self._watch(context, gated=role is Role.WATCH_GATED)
                case Role.GATE:
                    await self._gate(context)
                case Role.REJECT | Role.REJECT_HEADERS:
                    await self._reject(context, await_body=role is Role.REJECT)
        except Exception:  # noqa: BLE001  # an error status would make Envoy wait or fail over; the answer must pass
            self.counters.faults += 1
            self._quiet_log.exception("an ext_proc stream was not understood (%d so far)", self.counters.faults)

    async def _gate(self, stream: grpc.aio.ServicerContext) -> None:
        message = await stream.read()
        if message is grpc.aio.EOF:
            return
        attempt = _attempt(message)
        try:
            opening = await self._meetings.meet(attempt)
        except asyncio.CancelledError:
            self.counters.gated[GONE] += 1
            raise
        self.counters.gated[opening.kind] += 1
        if (refusal := Refusal.of(opening)) is None:
            return
        if opening.kind is OpeningKind.NO_OUTPUT:
            if self._is_worth_another(message, attempt, 200):
                await _write(stream, refusal.retried())
            return  # else the client gets the answer as it is
        if refusal.verdict is Verdict.UNKNOWN:
            retry = self._is_worth_another(message, attempt, refusal.status)
        else:
            retry = self._is_worth_a_retry(message, attempt, refusal.status, refusal.verdict)
        await _write(stream, refusal.retried() if retry else refusal.told())

    async def _watch(self, stream: grpc.aio.ServicerContext, *, gated: bool) -> None:
        message = await stream.read()
        if message is grpc.aio.EOF:
            return
        self.counters.watched += 1
        attempt, headers = _attempt(message), _headers(message.response_headers)
        if headers.get(":status") != "200":
            return
        watch: StreamWatch | UnaryWatch
        if is_json(media_type(headers.get("content-type", ""))):
            watch = UnaryWatch(attempt, headers, self.rejections)
        else:
            whole = self.close_look.wants(attempt)
            self.counters.read_whole += whole
            watch = StreamWatch(attempt, headers, self.rejections, whole=whole)
        opening = self._meetings.meet(attempt) if gated else None
        try:
            if message.response_headers.end_of_stream:
                self._report(watch.take(self._clock(), b"", end=True))
            while not watch.done and (message := await stream.read()) is not grpc.aio.EOF:
                body = message.response_body
                seen = watch.take(self._clock(), body.body, body.end_of_stream)
                if opening is not None and watch.opening is not None:
                    settle(opening, watch.opening)
                if seen:
                    self.close_look.saw(seen)
                    self._report(seen)
        finally:
            if opening is not None:
                settle(opening, watch.opening or Opening(OpeningKind.UNREAD))

    async def _reject(self, stream: grpc.aio.ServicerContext, *, await_body: bool) -> None:
        first = message = await stream.read()
        if message is grpc.aio.EOF:
            return
        loop = asyncio.get_running_loop()
        # Envoy's own time-out begins anew with each piece of a body, so one that drips would hold a retry for ever.
        deadline = loop.time() + self.reject_timeout_s
        self.counters.rejects += 1
        attempt, headers = _attempt(message), _headers(message.response_headers)
        body = bytearray()
        end = message.response_headers.end_of_stream or not await_body
        try:
            while not end and len(body) < MAX_BODY and (left_s := deadline - loop.time()) > 0:
                # A read that is cancelled leaks in gRPC, so the last one is left to end with the stream.
                reading = asyncio.ensure_future(_next_piece(stream))
                done, _ = await asyncio.wait([reading], timeout=left_s)
                if not done or (piece := reading.result()) is None:
                    break
                body += piece.body
                end = piece.end_of_stream
        finally:
            # Envoy stops waiting, or we do: then what is here must do.
            is_whole = await_body and (end or headers.get("content-length") == str(len(body)))
            seen = self._judge(attempt, headers, bytes(body), is_whole=is_whole)
            if seen is not None:
                self._report([seen])
        await _write(stream, mark(retry=self._is_retried(first, attempt, headers, seen)))

    def _judge(
        self, attempt: Attempt, headers: dict[str, str], body: bytes, *, is_whole: bool
    ) -> Rejected | AnswerRead | None:
        """What is reported of an answer that is held. None: its status says all."""
        now = self._clock()
        status = int(headers[":status"])
        if status == 200 and is_json(media_type(headers.get("content-type", ""))):
            answer = read_unary(body, headers, attempt.path, is_whole=is_whole)
            return observation_of(now, attempt, headers, answer, self.rejections)
        if status not in ERROR_STATUS:
            return None
        judgement = self.rejections.judge(status, headers, body, now)
        return Rejected(
            at=now,
            pool=attempt.pool,
            address=attempt.address,
            request_id=attempt.request_id,
            status=status,
            verdict=judgement.verdict,
            retry_after_s=judgement.retry_after_s,
            reason=judgement.rule,
        )

    def _is_retried(
        self, first: pb.ProcessingRequest, attempt: Attempt, headers: dict[str, str], seen: Rejected | AnswerRead | None
    ) -> bool:
        status = int(headers[":status"])
        if isinstance(seen, Rejected) and (status != 200 or seen.verdict is not Verdict.UNKNOWN):
            return self._is_worth_a_retry(first, attempt, status, seen.verdict)
        if isinstance(seen, AnswerRead) and seen.output is not Output.NONE:
            return False
        return self._is_worth_another(first, attempt, status)

    def _is_worth_another(self, first: pb.ProcessingRequest, attempt: Attempt, status: int) -> bool:
        asked_pool, attempts = _asked_pool(first), _attempts(first)
        if self.retries.are_spent(asked_pool, attempts):
            return False
        asked = Asked(attempt.pool, status, attempt.path, _caller(first))
        return self.retries.is_worth_another(self._clock(), asked, attempt.address)

    def _is_worth_a_retry(self, first: pb.ProcessingRequest, attempt: Attempt, status: int, verdict: Verdict) -> bool:
        asked_pool, attempts = _asked_pool(first), _attempts(first)
        if self.retries.are_spent(asked_pool, attempts):
            return False
        return self.retries.is_worth_it(attempt.pool, attempt.address, status, verdict)


async def _write(stream: grpc.aio.ServicerContext, response: pb.ProcessingResponse) -> None:
    with contextlib.suppress(grpc.aio.UsageError):  # that is, Envoy has ended the stream meanwhile
        await stream.write(response)


async def _next_piece(stream: grpc.aio.ServicerContext) -> pb.HttpBody | None:
    """The next piece of a body, or None when the stream has ended, whoever ended it."""
    try:
        message = await stream.read()
    except grpc.aio.UsageError:  # that is, read after our own end
        return None
    return None if message is grpc.aio.EOF else message.response_body


def _attributes(message: pb.ProcessingRequest) -> Mapping[str, Value]:
    """Of a stream's first message. One that Envoy did not send is empty."""
    fields: Mapping[str, Value] = message.attributes[_ATTRIBUTES].fields
    return fields


def _attempt(message: pb.ProcessingRequest) -> Attempt:
    """Which attempt a stream is about, from its first message. Raises ValueError if that does not say."""
    fields = _attributes(message)
    attempt = Attempt(
        pool=pool_of_cluster(fields["xds.cluster_name"].string_value),
        address=fields["upstream.address"].string_value,
        request_id=fields["request.id"].string_value,
        connection=fields["upstream.local_address"].string_value,
        path=fields["request.url_path"].string_value,
    )
    if not (attempt.pool and attempt.address and attempt.request_id):
        raise ValueError(f"attributes are missing: {attempt}")
    return attempt


def _asked_pool(message: pb.ProcessingRequest) -> str:
    return pool_of_route(_attributes(message)["xds.route_name"].string_value)


def _caller(message: pb.ProcessingRequest) -> str:
    """The IP address that sent the request."""
    return _attributes(message)["source.address"].string_value.rpartition(":")[0]


def _attempts(message: pb.ProcessingRequest) -> int:
    """How many attempts the request has had, this one too."""
    return int(_attributes(message)["upstream.request_attempt_count"].number_value)


def _headers(message: pb.HttpHeaders) -> dict[str, str]:
    """Names in lower case; of a name that comes twice the values are joined, as HTTP allows."""
    headers: dict[str, str] = {}
    for header in message.headers.headers:
        value = header.raw_value.decode("utf-8", "replace") if header.raw_value else header.value
        headers[header.key] = f"{headers[header.key]}, {value}" if header.key in headers else value
    return headers
