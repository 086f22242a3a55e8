"""The receiver of Envoy's access log of attempts: starts and ends, however an attempt ends."""

import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass

import grpc
from envoy.config.core.v3.address_pb2 import SocketAddress
from envoy.data.accesslog.v3 import accesslog_pb2 as data
from envoy.service.accesslog.v3 import als_pb2 as pb
from envoy.service.accesslog.v3 import als_pb2_grpc as pb_grpc
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from ext_proc.quiet_log import QuietLog
from trimtab.datapath import FIRST_BYTE_TAG, Asked, asked_by_route, pool_of_cluster
from trimtab.observation.kinds import AttemptEnded, AttemptStarted, Observation, Outcome

log = logging.getLogger(__name__)

Report = Callable[[Sequence[Observation]], None]

_LONGEST_PATH = 128  # characters: an API's path is shorter, and what a stranger sends is kept for a while

_STREAMED = {Asked.STREAM: True, Asked.UNARY: False, Asked.UNKNOWN: None}


@dataclass(slots=True)
class AccessLogCounters:
    """What the receiver has done since it started."""

    started: int = 0
    ended: int = 0
    faults: int = 0  # records that could not be understood


class AccessLogService(pb_grpc.AccessLogServiceServicer):  # type: ignore[misc]
    """Turns records into `AttemptStarted` and `AttemptEnded`, reported together for each message of Envoy.

    Both carry Envoy's own start of the attempt, which is what joins them. `report` is called on the event
    loop and must not block.
    """

    def __init__(self, report: Report, clock: Callable[[], float] = time.time) -> None:
        self.counters = AccessLogCounters()
        self._report = report
        self._quiet_log = QuietLog(log, clock)

    async def StreamAccessLogs(
        self, request_iterator: AsyncIterator[pb.StreamAccessLogsMessage], context: grpc.aio.ServicerContext
    ) -> pb.StreamAccessLogsResponse:
        """One Envoy worker's log, for as long as the worker lives."""
        async for message in request_iterator:
            if seen := list(self._read(message)):
                self._report(seen)
        return pb.StreamAccessLogsResponse()

    def _read(self, message: pb.StreamAccessLogsMessage) -> Iterator[Observation]:
        for entry in message.http_logs.log_entry:
            try:
                observation = observation_of(entry)
            except ValueError:
                self.counters.faults += 1
                self._quiet_log.exception("an access log record was not understood (%d so far)", self.counters.faults)
                continue
            if observation is not None:
                self.counters.started += type(observation) is AttemptStarted
                self.counters.ended += type(observation) is AttemptEnded
                yield observation


def observation_of(entry: data.HTTPAccessLogEntry) -> AttemptStarted | AttemptEnded | None:
    """What one record says; None if nothing was tried on an endpoint.

    Envoy had none to send the request to, or the client left while Envoy was still connecting.
    """
    common = entry.common_properties
    address = _ip_port(common.upstream_remote_address.socket_address)
    if not address:
        return None
    match common.access_log_type:
        case data.AccessLogType.UpstreamPoolReady:
            return AttemptStarted(
                at=_seconds(common.start_time),
                pool=pool_of_cluster(common.upstream_cluster),
                address=address,
                request_id=entry.request.request_id,
                prompt_bytes=_content_length(entry),
                streamed=_STREAMED[asked_by_route(common.route_name)],
                path=_path(entry),
                caller=common.downstream_remote_address.socket_address.address,
            )
        case data.AccessLogType.UpstreamEnd if _was_tried(common):
            started_at = _seconds(common.start_time)
            first_byte_us = common.custom_tags.get(FIRST_BYTE_TAG)
            content_type = media_type(entry.response.response_headers.get("content-type", ""))
            return AttemptEnded(
                at=started_at + _seconds(common.duration),
                pool=pool_of_cluster(common.upstream_cluster),
                address=address,
                request_id=entry.request.request_id,
                started_at=started_at,
                status=entry.response.response_code.value,
                outcome=_outcome(entry),
                streamed=content_type == "text/event-stream",
                first_byte_s=int(first_byte_us) / 1e6 if first_byte_us else None,
                prompt_bytes=_content_length(entry),
                # In the upstream log the two directions are swapped: this is what came from the endpoint.
                body_bytes=entry.request.request_body_bytes,
                content_type=content_type,
                path=_path(entry),
                caller=common.downstream_remote_address.socket_address.address,
            )
    return None


def _ip_port(address: SocketAddress) -> str:
    """As the ext_proc filters write it; empty if there is none."""
    host = f"[{address.address}]" if ":" in address.address else address.address
    return host and f"{host}:{address.port_value}"


def _was_tried(common: data.AccessLogCommon) -> bool:
    return bool(common.HasField("upstream_local_address") or common.response_flags.upstream_connection_failure)


def _outcome(entry: data.HTTPAccessLogEntry) -> Outcome:
    common = entry.common_properties
    flags = common.response_flags
    if flags.upstream_connection_failure:
        return Outcome.UNREACHABLE
    if flags.upstream_connection_termination or flags.upstream_remote_reset or flags.upstream_protocol_error:
        return Outcome.RESET
    # Envoy leaves the rest of an error answer unread when it retries.
    if common.HasField("time_to_last_upstream_rx_byte") or entry.response.response_code.value >= 400:
        return Outcome.COMPLETE
    return Outcome.ABORTED


def _path(entry: data.HTTPAccessLogEntry) -> str:
    path: str = entry.request.path
    return path.partition("?")[0][:_LONGEST_PATH]


def media_type(content_type: str) -> str:
    """A content type without its parameters, in lower case."""
    return content_type.partition(";")[0].strip().lower()


def _content_length(entry: data.HTTPAccessLogEntry) -> int | None:
    length = entry.request.request_headers.get("content-length")
    return int(length) if length else None


def _seconds(message: Timestamp | Duration) -> float:
    return message.seconds + message.nanos / 1e9
