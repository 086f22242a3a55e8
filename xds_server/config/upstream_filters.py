"""The upstream filters by which the ext_proc service sees what endpoints answer, attempt by attempt.

They stand in the upstream chain because the downstream chain never sees an answer that is retried.
"""

from datetime import timedelta

from envoy_data_plane.envoy.config.common.mutation_rules.v3 import HeaderMutation
from envoy_data_plane.envoy.config.core.v3 import (
    HeaderValue,
    HeaderValueOption,
    HeaderValueOptionHeaderAppendAction,
    RuntimeFractionalPercent,
)
from envoy_data_plane.envoy.extensions.filters.http.ext_proc.v3 import (
    ExternalProcessor,
    MetadataOptions,
    MetadataOptionsMetadataNamespaces,
    ProcessingMode,
    ProcessingModeBodySendMode,
    ProcessingModeHeaderSendMode,
)
from envoy_data_plane.envoy.extensions.filters.http.header_mutation.v3 import HeaderMutation as HeaderMutationFilter
from envoy_data_plane.envoy.extensions.filters.http.header_mutation.v3 import Mutations
from envoy_data_plane.envoy.extensions.filters.http.upstream_codec.v3 import UpstreamCodec
from envoy_data_plane.envoy.extensions.filters.network.http_connection_manager.v3 import HttpFilter
from envoy_data_plane.envoy.type.v3 import FractionalPercent, FractionalPercentDenominatorType
from envoy_data_plane.google.protobuf import Any
from envoy_data_plane.xds.type.matcher.v3 import StringMatcher

from trimtab.datapath import (
    ERROR_STATUS,
    EXT_PROC_CLUSTER,
    METADATA_NAMESPACE,
    RETRY_HEADER,
    ROLE_HEADER,
    WATCH_SHARE_KEY,
    Role,
)
from trimtab.policy.model import ExtProc, Pool
from xds_server.config.body_attributes import JSON_CONTENT_TYPE, STREAM_KEY
from xds_server.config.config_sources import grpc_service
from xds_server.config.matchers import (
    Predicate,
    all_of,
    any_of,
    metadata_is_true,
    negated,
    only_if,
    regex,
    request_header,
    response_header,
    runtime_share,
    status_in,
)

_EXT_PROC = "envoy.filters.http.ext_proc"
_HEADER_MUTATION = "envoy.filters.http.header_mutation"
_CODEC = "envoy.filters.http.upstream_codec"

# Cure three of three (the bootstrap has the others): a body that is known to be long enough to fill the
# connection to the service is not sent there. No engine's error comes near 100 kB. Of a body of unknown
# length the service takes the beginning and ends the stream.
_LONG_BODY = r"[0-9]{6,}"

# Formats that nobody reads here, and that may be streams: they pass.
_OTHER_FORMATS = r"(?i)\s*(audio|image|video|multipart|application)/.*"

# Attributes of the answer: those of the request are only delivered with a message about the request.
_ATTRIBUTES = [
    "request.id",
    "request.url_path",
    "source.address",
    "upstream.address",
    "upstream.local_address",
    "upstream.request_attempt_count",
    "xds.cluster_name",
    "xds.route_name",
]

# What ends a hold is the first token, the route's deadline, the client's departure or the loss of the service, whose
# connection is watched. This is only here because Envoy would give up after 200 ms, and it may not be longer.
_HELD_AT_MOST = timedelta(hours=1)
_GATED_LIMIT = timedelta(seconds=1)


def upstream_filters(pool: Pool, policy: ExtProc) -> list[HttpFilter]:
    """The chain of a pool's cluster, the codec last. An answer goes through it from the last to the first."""
    is_stream = response_header("content-type", StringMatcher(prefix="text/event-stream", ignore_case=True))
    is_held = status_in(ERROR_STATUS)
    is_unary = all_of(
        response_header("content-type", regex(JSON_CONTENT_TYPE)),
        request_header(":method", StringMatcher(exact="POST")),
    )
    is_long = response_header("content-length", regex(_LONG_BODY))
    limit = timedelta(milliseconds=policy.reject_timeout_ms)
    if pool.gate.enabled:
        gated = all_of(status_in([200]), is_stream)
        watching = [only_if(gated, _EXT_PROC, _gate()), only_if(gated, _EXT_PROC, _watch(Role.WATCH_GATED))]
        asks_for_stream = metadata_is_true(METADATA_NAMESPACE, STREAM_KEY)
        # What a request for a stream got in the place of one may be retried, so it is held like an error.
        is_json = response_header("content-type", regex(JSON_CONTENT_TYPE))
        is_other = all_of(status_in([200]), response_header("content-type", regex(_OTHER_FORMATS)), negated(is_json))
        is_held = any_of(is_held, all_of(asks_for_stream, negated(is_stream), negated(is_other)))
        # The service has its own limit, and one that is stopped is noticed by then. One that is busy costs no retry.
        limit = max(limit, _GATED_LIMIT)
        watched = all_of(is_unary, negated(asks_for_stream))
    else:
        watching = []
        watched = any_of(is_stream, is_unary)
    return [
        *watching,
        only_if(all_of(watched, _sampled(policy.sample_percent)), _EXT_PROC, _watch(Role.WATCH)),
        only_if(all_of(is_held, negated(is_long)), _EXT_PROC, _reject(Role.REJECT, limit)),
        only_if(all_of(is_held, is_long), _EXT_PROC, _reject(Role.REJECT_HEADERS, limit)),
        *_unread_mark(pool),
        HttpFilter(name=_CODEC, typed_config=Any.pack(UpstreamCodec())),
    ]


def _unread_mark(pool: Pool) -> list[HttpFilter]:
    """The mark of errors that are retried unless the service reads them, and takes it off: it may be away.

    A 429 gets its mark from the service alone. Most of them are quotas, and one that nobody has read must not be
    spent twice.
    """
    codes = [code for code in pool.retries.status_codes if code != 429]
    if not codes or not pool.retries.attempts:
        return []
    mark = HeaderValueOption(
        header=HeaderValue(key=RETRY_HEADER, value="unread"),
        append_action=HeaderValueOptionHeaderAppendAction.OVERWRITE_IF_EXISTS_OR_ADD,
    )
    mutations = Mutations(response_mutations=[HeaderMutation(append=mark)])
    return [only_if(status_in(codes), _HEADER_MUTATION, HeaderMutationFilter(mutations=mutations))]


def _sampled(percent: float) -> Predicate:
    return runtime_share(
        "x-request-id",
        RuntimeFractionalPercent(default_value=fraction(percent), runtime_key=WATCH_SHARE_KEY),
    )


def fraction(percent: float) -> FractionalPercent:
    """`percent` (0 to 100) to a hundredth of a percent."""
    return FractionalPercent(numerator=round(percent * 100), denominator=FractionalPercentDenominatorType.TEN_THOUSAND)


def _gate() -> ExternalProcessor:
    """Holds the headers of a stream until the service, which watches its body meanwhile, ends the gRPC stream.

    Headers that have passed cannot be retried, and engines send theirs before they have anything to say.
    """
    return ExternalProcessor(
        grpc_service=grpc_service(EXT_PROC_CLUSTER, **{ROLE_HEADER: Role.GATE}),
        stat_prefix=Role.GATE,
        failure_mode_allow=True,
        message_timeout=_HELD_AT_MOST,
        processing_mode=_mode(ProcessingModeBodySendMode.NONE),
        response_attributes=_ATTRIBUTES,
        metadata_options=MetadataOptions(
            receiving_namespaces=MetadataOptionsMetadataNamespaces(untyped=[METADATA_NAMESPACE])
        ),
    )


def _watch(role: Role) -> ExternalProcessor:
    return ExternalProcessor(
        grpc_service=grpc_service(EXT_PROC_CLUSTER, **{ROLE_HEADER: role}),
        stat_prefix=Role.WATCH,
        observability_mode=True,  # the answer never waits for the service
        failure_mode_allow=True,  # needed in observability mode too: without it a dead service cuts answers
        # An answer may end before the service has read its beginning; only then does the stream last so long.
        deferred_close_timeout=timedelta(seconds=1),
        processing_mode=_mode(ProcessingModeBodySendMode.STREAMED),
        response_attributes=_ATTRIBUTES,
    )


def _reject(role: Role, limit: timedelta) -> ExternalProcessor:
    """The error is held until the service says whether to retry it: having seen enough of it, or at its deadline.

    Held, because a retry drops what is left of an answer. The body is sent in pieces that wait for no reply:
    to buffer it instead would hold it until its end, however late that is, and send all of it. Envoy's own
    time-out begins anew with each piece; it is for a service that does not end the stream.
    """
    body = ProcessingModeBodySendMode.STREAMED if role is Role.REJECT else ProcessingModeBodySendMode.NONE
    return ExternalProcessor(
        grpc_service=grpc_service(EXT_PROC_CLUSTER, **{ROLE_HEADER: role}),
        stat_prefix=role.replace("-", "_"),
        failure_mode_allow=True,
        message_timeout=limit,
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
