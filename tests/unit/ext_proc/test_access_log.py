"""Records of Envoy's upstream log, as observations."""

import logging
from typing import Any

import pytest
from envoy.data.accesslog.v3.accesslog_pb2 import HTTPAccessLogEntry
from envoy.service.accesslog.v3.als_pb2 import StreamAccessLogsMessage
from google.protobuf.json_format import ParseDict

from ext_proc.access_log import AccessLogService, observation_of
from trimtab.observation.kinds import AttemptEnded, AttemptStarted, Observation, Outcome


def entry(
    kind: str = "UpstreamEnd",
    *,
    status: int = 200,
    flags: dict[str, bool] | None = None,
    read_to_the_end: bool = True,
    connected: bool = True,
    address: str = "10.0.0.1",
    route: str = "p/stream",
    request_headers: dict[str, str] | None = None,
    **common: Any,
) -> HTTPAccessLogEntry:
    """A record as Envoy 1.40 writes it."""
    return ParseDict(
        {
            "commonProperties": {
                "accessLogType": kind,
                "startTime": "2026-11-29T16:57:35.250Z",
                "duration": "1.500s",
                "upstreamRemoteAddress": {"socketAddress": {"address": address, "portValue": 8000}},
                **({"upstreamLocalAddress": {"socketAddress": {"address": "10.0.0.9"}}} if connected else {}),
                "upstreamCluster": "p",
                "downstreamRemoteAddress": {"socketAddress": {"address": "192.0.2.7", "portValue": 5000}},
                "routeName": route,
                "responseFlags": flags or {},
                "customTags": {"first_byte_us": "120500"},
                **({"timeToLastUpstreamRxByte": "1.4s"} if read_to_the_end else {}),
                **common,
            },
            "request": {
                "requestId": "id-1",
                "path": "/v1/chat/completions?secret=1",
                "requestBodyBytes": 777,
                "requestHeaders": {"content-length": "1234"} if request_headers is None else request_headers,
            },
            "response": {
                "responseCode": status,
                "responseBodyBytes": 1234,
                "responseHeaders": {"content-type": "text/event-stream; charset=utf-8"},
            },
        },
        HTTPAccessLogEntry(),
    )


STARTED_AT = 1795971455.25
PATH, CALLER = "/v1/chat/completions", "192.0.2.7"


def ended(record: HTTPAccessLogEntry) -> AttemptEnded:
    observation = observation_of(record)
    assert isinstance(observation, AttemptEnded)
    return observation


def test_an_end() -> None:
    assert observation_of(entry()) == AttemptEnded(
        at=STARTED_AT + 1.5,
        pool="p",
        address="10.0.0.1:8000",
        request_id="id-1",
        started_at=STARTED_AT,
        status=200,
        outcome=Outcome.COMPLETE,
        streamed=True,
        first_byte_s=0.1205,
        prompt_bytes=1234,
        body_bytes=777,
        content_type="text/event-stream",
        path="/v1/chat/completions",
        caller="192.0.2.7",
    )


@pytest.mark.parametrize(("route", "streamed"), [("p/stream", True), ("p/unary", False), ("p/unknown", None)])
def test_a_start_tells_what_was_asked_for_by_its_route(route: str, streamed: bool | None) -> None:
    start = observation_of(entry("UpstreamPoolReady", route=route))
    assert start == AttemptStarted(STARTED_AT, "p", "10.0.0.1:8000", "id-1", 1234, streamed, PATH, CALLER)


def test_a_start_and_its_end_are_joined_by_the_start() -> None:
    start = observation_of(entry("UpstreamPoolReady"))
    assert isinstance(start, AttemptStarted)
    assert start.at == ended(entry()).started_at


@pytest.mark.parametrize(
    ("record", "outcome"),
    [
        (entry(), Outcome.COMPLETE),
        (entry(status=503), Outcome.COMPLETE),
        (entry(status=429, read_to_the_end=False), Outcome.COMPLETE),  # retried: Envoy leaves the rest unread
        (entry(read_to_the_end=False), Outcome.ABORTED),
        (entry(status=0, read_to_the_end=False), Outcome.ABORTED),
        (
            entry(status=0, read_to_the_end=False, flags={"downstreamConnectionTermination": True}),
            Outcome.ABORTED,
        ),
        (
            entry(status=0, read_to_the_end=False, flags={"upstreamConnectionTermination": True}),
            Outcome.RESET,
        ),
        (entry(status=0, read_to_the_end=False, flags={"upstreamRemoteReset": True}), Outcome.RESET),
        (entry(read_to_the_end=False, flags={"upstreamProtocolError": True}), Outcome.RESET),
        (
            entry(status=0, read_to_the_end=False, connected=False, flags={"upstreamConnectionFailure": True}),
            Outcome.UNREACHABLE,
        ),
    ],
)
def test_how_an_attempt_ended(record: HTTPAccessLogEntry, outcome: Outcome) -> None:
    assert ended(record).outcome is outcome


def test_what_is_not_known_is_none() -> None:
    seen = ended(entry(status=0, read_to_the_end=False, request_headers={}, customTags={}))
    assert (seen.prompt_bytes, seen.first_byte_s) == (None, None)


def test_an_ipv6_endpoint_is_written_as_everywhere_else() -> None:
    assert ended(entry(address="::1")).address == "[::1]:8000"


@pytest.mark.parametrize(
    "record",
    [
        entry(upstreamRemoteAddress={}),
        entry(status=0, read_to_the_end=False, connected=False),  # the client left before there was a connection
        entry("UpstreamPeriodic"),
        entry("NotSet"),
    ],
)
def test_records_that_are_about_no_attempt_on_an_endpoint_are_passed_over(record: HTTPAccessLogEntry) -> None:
    assert observation_of(record) is None


async def messages(*entries: HTTPAccessLogEntry) -> Any:
    message = StreamAccessLogsMessage()
    message.http_logs.log_entry.extend(entries)
    yield message


async def test_a_message_is_reported_at_once_and_a_bad_record_spoils_no_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    batches: list[list[Observation]] = []
    service = AccessLogService(lambda seen: batches.append(list(seen)), clock=lambda: 0.0)
    bad = entry("UpstreamPoolReady", route="not one of ours")
    with caplog.at_level(logging.ERROR):
        await service.StreamAccessLogs(messages(entry("UpstreamPoolReady"), bad, bad, entry()), None)  # type: ignore[arg-type]
    assert [[type(seen) for seen in batch] for batch in batches] == [[AttemptStarted, AttemptEnded]]
    assert (service.counters.started, service.counters.ended, service.counters.faults) == (1, 1, 2)
    assert len(caplog.records) == 1
