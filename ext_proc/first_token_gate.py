"""The first-token gate: where the stream that holds an answer meets the one that watches it.

Envoy opens both for one attempt, and either may come first. They are joined by the attempt, so one process must serve
both. If they ever miss each other, as when a connection is replaced between them, the answer passes.
"""

import asyncio
import json
from dataclasses import dataclass
from typing import Final

from envoy.config.core.v3.base_pb2 import HeaderValueOption
from envoy.service.ext_proc.v3 import external_processor_pb2 as pb
from envoy.type.v3.http_status_pb2 import HttpStatus

from ext_proc.watch import Attempt, Opening, OpeningKind
from trimtab.datapath import METADATA_NAMESPACE, REASON_HEADER, REFUSED_KEY, RETRY_HEADER
from trimtab.llmapi.errors import read_error_body
from trimtab.observation.kinds import Verdict

# The two streams begin together. One that is alone for half a second stays alone, and its answer passes. That time is
# counted in turns: while the event loop is busy the other one may have come unread, so a long wait is one turn too.
_TURN_S = 0.1
_TURNS_ALONE = 5

GONE: Final = "gone"
"""In the place of an opening: Envoy gave the attempt up, at the deadline or as the client left."""

_UNREAD = Opening(OpeningKind.UNREAD)
_EMPTY = "The engine ended its answer before the first token."


class Meetings:
    """Attempts whose two streams have not both come yet."""

    def __init__(self) -> None:
        self._waiting: dict[Attempt, asyncio.Future[Opening]] = {}

    def meet(self, attempt: Attempt) -> "asyncio.Future[Opening]":
        """The future that both streams of an attempt get: the watching one sets it, the holding one waits for it.

        For one whose counterpart does not come it ends by itself, as `UNREAD`.
        """
        if (opening := self._waiting.pop(attempt, None)) is None:
            opening = self._waiting[attempt] = asyncio.get_running_loop().create_future()
            self._look(attempt, opening, _TURNS_ALONE)
        return opening

    def _look(self, attempt: Attempt, opening: "asyncio.Future[Opening]", turns: int) -> None:
        if self._waiting.get(attempt) is not opening:
            return
        if turns:
            opening.get_loop().call_later(_TURN_S, self._look, attempt, opening, turns - 1)
        else:
            del self._waiting[attempt]
            settle(opening, _UNREAD)


def settle(future: "asyncio.Future[Opening]", opening: Opening = _UNREAD) -> None:
    """Set how an answer began, unless that is known or nobody waits for it any more."""
    if not future.done():
        future.set_result(opening)


@dataclass(frozen=True, slots=True)
class Refusal:
    """The error that a streamed answer turned out to be."""

    status: int
    verdict: Verdict
    body: bytes  # JSON, as of an answer that is not streamed
    is_said: bool = True  # by the engine; else it said nothing, and the words are ours

    @classmethod
    def of(cls, opening: Opening) -> "Refusal | None":
        """The refusal that an answer began with, if it is one.

        The status is 429 for a quota, else the one that the error itself names, else 503.
        """
        match opening.kind:
            case OpeningKind.ERROR:
                error = read_error_body(opening.data)
                code = 429 if opening.verdict is Verdict.QUOTA else _status(error.value("code"))
                return cls(code, opening.verdict, _as_error(opening.data, error.text, code))
            case OpeningKind.EMPTY | OpeningKind.NO_OUTPUT:
                return cls(503, opening.verdict, _as_error(b"", _EMPTY, 503), is_said=False)
        return None

    def retried(self) -> pb.ProcessingResponse:
        """Makes the answer this error, with the mark that has the router try again.

        If it does not, the client gets the error; but its end only with that of the engine's own answer.
        """
        headers = {":status": str(self.status), "content-type": "application/json"}
        common = pb.CommonResponse(
            status=pb.CommonResponse.CONTINUE_AND_REPLACE,
            body_mutation=pb.BodyMutation(body=self.body),
            header_mutation=_mutation(headers, retry=True),
        )
        common.header_mutation.remove_headers.append("content-encoding")
        return pb.ProcessingResponse(response_headers=pb.HeadersResponse(response=common))

    def told(self) -> pb.ProcessingResponse:
        """Ends the request with this error, all its attempts too, whether or not the engine ends its answer."""
        if not self.is_said:
            return _ended(self.status, "empty-answer", _EMPTY)
        response = pb.ProcessingResponse(
            immediate_response=pb.ImmediateResponse(
                status=HttpStatus(code=self.status),
                body=self.body,
                details="refused",
            )
        )
        response.dynamic_metadata.get_or_create_struct(METADATA_NAMESPACE)[REFUSED_KEY] = True
        return response


def _ended(status: int, reason: str, message: str) -> pb.ProcessingResponse:
    """Ends the request with words of ours, which Envoy puts into the shape of the API that was asked."""
    return pb.ProcessingResponse(
        immediate_response=pb.ImmediateResponse(
            status=HttpStatus(code=status),
            headers=_mutation({REASON_HEADER: reason}, retry=False),
            body=message.encode(),
            details="first_token",
        )
    )


def mark(*, retry: bool) -> pb.ProcessingResponse:
    """Leaves an error as it is but for the mark that has the router try again."""
    return pb.ProcessingResponse(
        response_headers=pb.HeadersResponse(response=pb.CommonResponse(header_mutation=_mutation({}, retry=retry)))
    )


def _mutation(headers: dict[str, str], *, retry: bool) -> pb.HeaderMutation:
    mutation = pb.HeaderMutation()
    for key, value in (headers | ({RETRY_HEADER: "read"} if retry else {})).items():
        option = mutation.set_headers.add(append_action=HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD)
        option.header.key, option.header.raw_value = key, value.encode()
    if not retry:
        mutation.remove_headers.append(RETRY_HEADER)
    return mutation


def _status(code: str | None) -> int:
    return int(code) if code is not None and len(code) == 3 and code.isdecimal() and 400 <= int(code) < 600 else 503


def _as_error(data: bytes, text: str, status: int) -> bytes:
    """The event itself if it is an error object of an API, else one of OpenAI's with its text."""
    try:
        event = json.loads(data)
    except (ValueError, RecursionError):
        event = None
    if isinstance(event, dict) and isinstance(event.get("error"), dict):
        return data
    error = {"message": text or "The engine failed.", "type": "ServiceUnavailableError", "param": None, "code": status}
    return json.dumps({"error": error}).encode()
