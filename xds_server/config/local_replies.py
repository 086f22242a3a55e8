"""Answers that Envoy makes itself: in the shape of the API that was asked, each with the reason in a header."""

from collections.abc import Iterator

from envoy_data_plane.envoy.config.accesslog.v3 import (
    AccessLogFilter,
    AndFilter,
    ComparisonFilter,
    ComparisonFilterOp,
    HeaderFilter,
    MetadataFilter,
    OrFilter,
    ResponseFlagFilter,
    StatusCodeFilter,
)
from envoy_data_plane.envoy.config.core.v3 import (
    DataSource,
    HeaderValue,
    HeaderValueOption,
    HeaderValueOptionHeaderAppendAction,
    RuntimeUInt32,
    SubstitutionFormatString,
)
from envoy_data_plane.envoy.config.route.v3 import HeaderMatcher
from envoy_data_plane.envoy.extensions.filters.network.http_connection_manager.v3 import (
    LocalReplyConfig,
    ResponseMapper,
)
from envoy_data_plane.envoy.type.matcher.v3 import (
    MetadataMatcher,
    MetadataMatcherPathSegment,
    StringMatcher,
    ValueMatcher,
)
from envoy_data_plane.google.protobuf import Struct

from trimtab.datapath import METADATA_NAMESPACE, REASON_HEADER, REFUSED_KEY
from xds_server.config.body_attributes import NO_MODEL_KEY, UNREAD_KEY

# The path of Anthropic's API; all others are OpenAI's, or an engine's own.
ANTHROPIC_PATH = "/v1/messages"

_PLAIN = "%LOCAL_REPLY_BODY%"


def error_body(message: str, kind: str, code: int | str, param: str | None = None) -> SubstitutionFormatString:
    """The error object of the OpenAI API. Texts may hold Envoy's command operators; values are escaped."""
    error = {"message": message, "type": kind, "param": param, "code": code}
    return SubstitutionFormatString(json_format=Struct.from_dict({"error": error}), content_type="application/json")


def anthropic_error_body(message: str, kind: str) -> SubstitutionFormatString:
    """The error object of the Anthropic API, likewise."""
    error = {"type": "error", "error": {"type": kind, "message": message}}
    return SubstitutionFormatString(json_format=Struct.from_dict(error), content_type="application/json")


def local_reply_config() -> LocalReplyConfig:
    """The first mapper that fits decides."""
    return LocalReplyConfig(
        mappers=[
            # What an engine says, or the routes answer themselves, is JSON already.
            ResponseMapper(
                filter=_any_of(
                    _is_true(REFUSED_KEY),
                    _status(_OP.EQ, 200),
                    _status(_OP.EQ, 404),
                    # Any other 400 comes before the body is looked at.
                    _all_of(_status(_OP.EQ, 400), _any_of(_is_true(UNREAD_KEY), _is_true(NO_MODEL_KEY))),
                ),
                body_format_override=SubstitutionFormatString(
                    text_format_source=DataSource(inline_string=_PLAIN), content_type="application/json"
                ),
            ),
            *_mappers(
                "no-healthy-endpoint",
                _flags("UH", "NC"),
                "No endpoint can take the request now.",
                retry_after_s=1,
            ),
            *_mappers("connect-failure", _flags("UF"), "No endpoint could be reached.", retry_after_s=1),
            *_mappers(
                "timeout",
                _flags("UT", "SI", "UMSDR", "DT", "DO"),
                "The request took too long.",
                anthropic_kind="timeout_error",
            ),
            *_mappers(
                "endpoint-reset",
                _flags("UC", "UR", "UPE", "LR"),
                "The endpoint broke the connection.",
                anthropic_kind="api_error",
            ),
            # After what it came of: a retry that is not made for want of another endpoint is an overflow too.
            *_mappers("overloaded", _flags("UO"), "The gateway has too many requests under way.", retry_after_s=1),
            *_mappers("drill", _flags("FI"), "The gateway is being drilled: this fault is made on purpose."),
            *_mappers(
                "request-too-large",
                _status(_OP.EQ, 413),
                "The request body is larger than this gateway takes.",
                kind=BAD_REQUEST,
                anthropic_kind="request_too_large",
            ),
            *_mappers(
                "bad-request",
                _status(_OP.LE, 499),
                "The gateway refuses the request: %RESPONSE_CODE_DETAILS%",  # it often says no more in the body
                kind=BAD_REQUEST,
                anthropic_kind=ANTHROPIC_BAD_REQUEST,
            ),
            *_mappers("timeout", _status(_OP.EQ, 504), _PLAIN, anthropic_kind="timeout_error"),
            *_mappers("gateway-fault", _status(_OP.EQ, 503), _PLAIN),  # a static answer has its own reason
            *_mappers(
                "gateway-fault", _status(_OP.GE, 500), _PLAIN, kind="InternalServerError", anthropic_kind="api_error"
            ),
        ],
    )


_OP = ComparisonFilterOp
_UNAVAILABLE = "ServiceUnavailableError"
BAD_REQUEST = "BadRequestError"
ANTHROPIC_BAD_REQUEST = "invalid_request_error"


def _mappers(
    reason: str,
    condition: AccessLogFilter,
    message: str,
    *,
    kind: str = _UNAVAILABLE,
    anthropic_kind: str = "overloaded_error",
    retry_after_s: int | None = None,
) -> Iterator[ResponseMapper]:
    headers = {REASON_HEADER: reason} | ({} if retry_after_s is None else {"retry-after": str(retry_after_s)})
    for when, body in (
        (_all_of(condition, _asked_of_anthropic()), anthropic_error_body(message, anthropic_kind)),
        (condition, error_body(message, kind, "%RESPONSE_CODE%")),
    ):
        yield ResponseMapper(
            filter=when,
            body_format_override=body,
            headers_to_add=[
                HeaderValueOption(
                    header=HeaderValue(key=key, value=value),
                    # A route that answers itself has said why.
                    append_action=HeaderValueOptionHeaderAppendAction.ADD_IF_ABSENT,
                )
                for key, value in headers.items()
            ],
        )


def _asked_of_anthropic() -> AccessLogFilter:
    matcher = HeaderMatcher(name=":path", string_match=StringMatcher(prefix=ANTHROPIC_PATH))
    return AccessLogFilter(header_filter=HeaderFilter(header=matcher))


def _flags(*flags: str) -> AccessLogFilter:
    return AccessLogFilter(response_flag_filter=ResponseFlagFilter(flags=list(flags)))


def _status(op: ComparisonFilterOp, code: int) -> AccessLogFilter:
    value = RuntimeUInt32(default_value=code, runtime_key=f"trimtab.local_reply.{code}")
    return AccessLogFilter(status_code_filter=StatusCodeFilter(comparison=ComparisonFilter(op=op, value=value)))


def _is_true(key: str) -> AccessLogFilter:
    """What was noted of the request."""
    matcher = MetadataMatcher(
        filter=METADATA_NAMESPACE,
        path=[MetadataMatcherPathSegment(key=key)],
        value=ValueMatcher(bool_match=True),
    )
    return AccessLogFilter(metadata_filter=MetadataFilter(matcher=matcher, match_if_key_not_found=False))


def _all_of(*filters: AccessLogFilter) -> AccessLogFilter:
    return AccessLogFilter(and_filter=AndFilter(filters=list(filters)))


def _any_of(*filters: AccessLogFilter) -> AccessLogFilter:
    return AccessLogFilter(or_filter=OrFilter(filters=list(filters)))
