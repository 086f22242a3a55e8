"""The upstream filters by which the ext_proc service sees what endpoints answer, attempt by attempt.

They stand in the upstream chain because the downstream chain never sees an answer that is retried.
"""

from datetime import timedelta

from envoy_data_plane.envoy.config.core.v3 import RuntimeFractionalPercent
from envoy_data_plane.envoy.extensions.filters.http.ext_proc.v3 import (
    ExternalProcessor,
    ProcessingMode,
    ProcessingModeBodySendMode,
    ProcessingModeHeaderSendMode,
)
from envoy_data_plane.envoy.extensions.filters.http.upstream_codec.v3 import UpstreamCodec
from envoy_data_plane.envoy.extensions.filters.network.http_connection_manager.v3 import HttpFilter
from envoy_data_plane.envoy.type.v3 import FractionalPercent, FractionalPercentDenominatorType
from envoy_data_plane.google.protobuf import Any
from envoy_data_plane.xds.type.matcher.v3 import StringMatcher

from trimtab.datapath import EXT_PROC_CLUSTER, ROLE_HEADER, WATCH_SHARE_KEY, Role
from trimtab.policy.model import ExtProc
from xds_server.resources.matchers import (
    Predicate,
    all_of,
    negated,
    only_if,
    regex,
    response_header,
    runtime_share,
    status_in,
)
from xds_server.resources.sources import grpc_service

_EXT_PROC = "envoy.filters.http.ext_proc"
_CODEC = "envoy.filters.http.upstream_codec"

# The answers that can mean that an endpoint is full, broken or leaving.
ERROR_STATUS = (429, 500, 502, 503, 504, 529)

# Cure three of three (the bootstrap has the others): a body that is known to be long enough to fill the
# connection to the service is not sent there. No engine's error comes near 100 kB. Of a body of unknown
# length the service takes the beginning and ends the stream.
_LONG_BODY = r"[0-9]{6,}"

# Attributes of the answer: those of the request are only delivered with a message about the request.
_ATTRIBUTES = ["request.id", "upstream.address", "xds.cluster_name"]


def upstream_filters(policy: ExtProc) -> list[HttpFilter]:
    """The chain of a pool's cluster, the codec last."""
    is_error = status_in(ERROR_STATUS)
    is_long = response_header("content-length", regex(_LONG_BODY))
    return [
        only_if(_is_watched(policy.sample_percent), _EXT_PROC, _watch()),
        only_if(all_of(is_error, negated(is_long)), _EXT_PROC, _reject(policy, Role.REJECT)),
        only_if(all_of(is_error, is_long), _EXT_PROC, _reject(policy, Role.REJECT_HEADERS)),
        HttpFilter(name=_CODEC, typed_config=Any.pack(UpstreamCodec())),
    ]


def _is_watched(percent: float) -> Predicate:
    return all_of(
        response_header("content-type", StringMatcher(prefix="text/event-stream", ignore_case=True)),
        runtime_share(
            "x-request-id",
            RuntimeFractionalPercent(default_value=fraction(percent), runtime_key=WATCH_SHARE_KEY),
        ),
    )


def fraction(percent: float) -> FractionalPercent:
    """`percent` (0 to 100) to a hundredth of a percent."""
    return FractionalPercent(numerator=round(percent * 100), denominator=FractionalPercentDenominatorType.TEN_THOUSAND)


def _watch() -> ExternalProcessor:
    return ExternalProcessor(
        grpc_service=grpc_service(EXT_PROC_CLUSTER, **{ROLE_HEADER: Role.WATCH}),
        stat_prefix=Role.WATCH,
        observability_mode=True,  # the answer never waits for the service
        failure_mode_allow=True,  # needed in observability mode too: without it a dead service cuts answers
        # An answer may end before the service has read its beginning; only then does the stream last so long.
        deferred_close_timeout=timedelta(seconds=1),
        processing_mode=_mode(ProcessingModeBodySendMode.STREAMED),
        response_attributes=_ATTRIBUTES,
    )


def _reject(policy: ExtProc, role: Role) -> ExternalProcessor:
    """The error is held until the service ends the stream: having seen enough of it, or at its deadline.

    Held, because a retry drops what is left of an answer. The body is sent in pieces that wait for no reply:
    to buffer it instead would hold it until its end, however late that is, and send all of it. Envoy's own
    time-out begins anew with each piece; it is for a service that does not end the stream.
    """
    body = ProcessingModeBodySendMode.STREAMED if role is Role.REJECT else ProcessingModeBodySendMode.NONE
    return ExternalProcessor(
        grpc_service=grpc_service(EXT_PROC_CLUSTER, **{ROLE_HEADER: role}),
        stat_prefix=role.replace("-", "_"),
        failure_mode_allow=True,
        message_timeout=timedelta(milliseconds=policy.reject_timeout_ms),
        processing_mode=_mode(body),
        send_body_without_waiting_for_header_response=role is Role.REJECT,
        response_attributes=_ATTRIBUTES,
    )


def _mode(response_body: ProcessingModeBodySendMode) -> ProcessingMode:
    return ProcessingMode(
        request_header_mode=ProcessingModeHeaderSendMode.SKIP,
        request_body_mode=ProcessingModeBodySendMode.NONE,
        request_trailer_mode=ProcessingModeHeaderSendMode.SKIP,
        response_header_mode=ProcessingModeHeaderSendMode.SEND,
        response_body_mode=response_body,
        response_trailer_mode=ProcessingModeHeaderSendMode.SKIP,
    )
