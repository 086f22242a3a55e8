"""The route configuration: which pool serves a request, how long it may take, how it is retried.

Everything about a request that may change while streams run is here, because a route update leaves streams
alone.

* A pool gets one route for each thing that a request can have asked for (a stream, no stream, not known), so
  that the route's name tells the access log.
* A pool with length classes gets these for each class, the longest first: what has no length is short. The route
  is chosen anew once the body is here, so the length is known also of one that came in chunks.
* Pools are tried in the policy's order. A model that no pool serves is answered here, with the 404 that an
  engine would give. A request without a model that can be read (a GET, a form, no `model`) goes to the pool that
  serves `*`, else to the first one, and the engine says what it thinks of it.
* Engines are asked for answers that are not encoded: an encoded one could not be read as it passes.
* A pool that wants its engines' load in their answers (ORCA) asks for it where an answer is not streamed.
* A POST that calls itself JSON is meant for one model, and the first pool's engines might answer for it with
  another one. So where there are several pools and none serves `*`, one that cannot be read or has no `model` is
  refused here. An engine might have read the former: Envoy's parser is stricter (`request_body`).
* `/health` is such a request: 200 means that Envoy reached a live engine, not only that Envoy is up.
* `/v1/models` is answered by the engines of a single pool. With several pools no engine knows all models, so
  the answer is made here from the policy's literal names; a glob cannot be listed.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any as Json
from urllib.parse import quote

from envoy_data_plane.envoy.config.core.v3 import (
    DataSource,
    HeaderValue,
    HeaderValueOption,
    HeaderValueOptionHeaderAppendAction,
    SubstitutionFormatString,
)
from envoy_data_plane.envoy.config.route.v3 import (
    DirectResponseAction,
    HeaderMatcher,
    RetryPolicy,
    RetryPolicyRetryBackOff,
    RetryPolicyRetryHostPredicate,
    Route,
    RouteAction,
    RouteActionMaxStreamDuration,
    RouteConfiguration,
    RouteMatch,
    VirtualHost,
)
from envoy_data_plane.envoy.extensions.filters.http.buffer.v3 import Buffer, BufferPerRoute
from envoy_data_plane.envoy.extensions.filters.http.cors.v3 import CorsPolicy
from envoy_data_plane.envoy.extensions.retry.host.previous_hosts.v3 import PreviousHostsPredicate
from envoy_data_plane.envoy.type.matcher.v3 import (
    MetadataMatcher,
    MetadataMatcherPathSegment,
    OrMatcher,
    RegexMatcher,
    StringMatcher,
    ValueMatcher,
)
from envoy_data_plane.envoy.type.v3 import Int64Range
from envoy_data_plane.google.protobuf import Any

from trimtab.datapath import METADATA_NAMESPACE, REASON_HEADER, RETRY_HEADER, Asked, route_name
from trimtab.policy.model import Listen, Policy, Pool, Retries
from xds_server.config import fallbacks, globs
from xds_server.config.body_attributes import (
    JSON_CONTENT_TYPE,
    MODEL_KEY,
    NO_MODEL_KEY,
    STREAM_KEY,
    UNREAD_KEY,
)
from xds_server.config.fault_injection import faults
from xds_server.config.local_replies import (
    ANTHROPIC_BAD_REQUEST,
    ANTHROPIC_PATH,
    BAD_REQUEST,
    anthropic_error_body,
    error_body,
)
from xds_server.signals.orca import REQUEST_HEADER, REQUEST_VALUE, RESPONSE_HEADER

BUFFER_FILTER = "envoy.filters.http.buffer"
CORS_FILTER = "envoy.filters.http.cors"
ROUTES_NAME = "trimtab"

_MODELS_PATH = "/v1/models"
_LONGEST_MODEL_LIST = 1 << 20

# With weights of 98 to 1 nearly all picks fall on the endpoint that has just refused, and each is passed over
# until another endpoint comes up; with Envoy's usual five picks most retries go where the refusal came from.
_HOST_SELECTION_ATTEMPTS = 500


def route_configuration(policy: Policy) -> RouteConfiguration:
    """The routes of all pools."""
    return RouteConfiguration(
        name=ROUTES_NAME,
        virtual_hosts=[
            VirtualHost(
                name=ROUTES_NAME,
                domains=["*"],
                routes=list(_routes(policy)),
                request_body_buffer_limit=policy.listen.max_body_mib << 20,
                response_headers_to_remove=[*_ENGINE_CORS_HEADERS, RETRY_HEADER],
                typed_per_filter_config=_body_limit(policy.listen) | _cors(policy.listen),
            )
        ],
        max_direct_response_body_size_bytes=_LONGEST_MODEL_LIST,
    )


def _routes(policy: Policy) -> Iterator[Route]:
    if "/" not in policy.listen.paths:
        yield _other_paths(policy.listen)
    if len(policy.pools) > 1:
        yield from _model_list(policy)
    catch_all = next((pool for pool in policy.pools if "*" in pool.models), None)
    for pool in policy.pools:
        yield from _pool_routes(policy, pool, [] if pool is catch_all else [_model_is_served_by(pool)])
        if pool is catch_all:
            return
    yield from _unknown_model()
    if len(policy.pools) > 1:
        yield from _refused_body("unread-body", UNREAD_KEY, _UNREAD)
        yield from _refused_body("model-missing", NO_MODEL_KEY, _MODEL_MISSING, param="model")
    yield from _pool_routes(policy, policy.pools[0], [])


def _pool_routes(policy: Policy, pool: Pool, conditions: list[MetadataMatcher]) -> Iterator[Route]:
    if pool.fallbacks:
        yield from fallbacks.answer_route(pool, conditions)
    for number in reversed(range(len(pool.clusters))):
        yield from _cluster_routes(policy, pool, number, conditions)


def _cluster_routes(policy: Policy, pool: Pool, number: int, conditions: list[MetadataMatcher]) -> Iterator[Route]:
    cluster = pool.clusters[number]
    idle_s, longest_s = pool.timeouts.within(policy.listen)
    if pool.fallbacks:
        others = {other.name: other for other in policy.pools}
        serves = RouteAction(weighted_clusters=fallbacks.weighted_clusters(pool, cluster, others))
    else:
        serves = RouteAction(cluster=cluster)
    for asked, condition in _ASKED.items():
        deadline_ms = _first_token_deadline_ms(pool, asked, number)
        action = replace(
            serves,
            timeout=timedelta(0),
            idle_timeout=timedelta(seconds=idle_s),
            max_stream_duration=RouteActionMaxStreamDuration(max_stream_duration=timedelta(seconds=longest_s)),
            retry_policy=_retry_policy(pool.retries, deadline_ms),
        )
        yield Route(
            name=route_name(pool.name, asked),
            match=RouteMatch(prefix="/", headers=_longer_than(pool, number), dynamic_metadata=conditions + condition),
            route=action,
            request_headers_to_add=[
                _NO_CODING,
                *([_LOAD_WANTED] if pool.signals.orca and asked is Asked.UNARY else []),
            ],
            response_headers_to_remove=[RESPONSE_HEADER] if pool.signals.orca else [],
            typed_per_filter_config=faults(pool.fault_injection),
        )


def _longer_than(pool: Pool, number: int) -> list[HeaderMatcher]:
    """That a body is too long for the length class before class `number`; of the shortest class nothing is asked."""
    if number == 0:
        return []
    shortest = int([*pool.class_limits.values()][number - 1]) + 1
    return [HeaderMatcher(name="content-length", range_match=Int64Range(start=shortest, end=_LONGEST_BODY))]


_LONGEST_BODY = 2**63 - 1


# An engine, or a proxy in front of it, that encodes its answers could not be read for tokens and errors.
_NO_CODING = HeaderValueOption(
    header=HeaderValue(key="accept-encoding", value="identity"),
    append_action=HeaderValueOptionHeaderAppendAction.OVERWRITE_IF_EXISTS_OR_ADD,
)
_LOAD_WANTED = HeaderValueOption(
    header=HeaderValue(key=REQUEST_HEADER, value=REQUEST_VALUE),
    append_action=HeaderValueOptionHeaderAppendAction.OVERWRITE_IF_EXISTS_OR_ADD,
)


def _metadata(key: str, value: ValueMatcher) -> MetadataMatcher:
    return MetadataMatcher(filter=METADATA_NAMESPACE, path=[MetadataMatcherPathSegment(key=key)], value=value)


_ASKED = {
    Asked.STREAM: [_metadata(STREAM_KEY, ValueMatcher(bool_match=True))],
    Asked.UNARY: [_metadata(STREAM_KEY, ValueMatcher(bool_match=False))],
    Asked.UNKNOWN: [],
}


def _model_is_served_by(pool: Pool) -> MetadataMatcher:
    values = [ValueMatcher(string_match=globs.string_matcher(glob)) for glob in pool.models]
    matcher = values[0] if len(values) == 1 else ValueMatcher(or_match=OrMatcher(value_matchers=values))
    return _metadata(MODEL_KEY, matcher)


def _first_token_deadline_ms(pool: Pool, asked: Asked, number: int) -> int | None:
    """How long [ms] an attempt may show no token. An answer that is not streamed takes as long as all of its tokens."""
    if not pool.gate.enabled or asked is not Asked.STREAM:
        return None
    of_class = pool.classes[number].first_token_deadline_ms if pool.classes else None
    return of_class or pool.gate.first_token_deadline_ms


def _retry_policy(retries: Retries, first_token_deadline_ms: int | None) -> RetryPolicy | None:
    if retries.attempts == 0:
        return None
    return RetryPolicy(
        # None of these comes after a byte of an answer has passed, so no client sees parts of two answers.
        # Not status codes: which errors are worth it is not known before they are read (`ext_proc workers`).
        retry_on="connect-failure,refused-stream,reset-before-request,reset,retriable-headers",
        retriable_headers=[HeaderMatcher(name=RETRY_HEADER, present_match=True)],
        num_retries=retries.attempts,
        # Envoy's limit of the time to an answer's headers, and those are held until its first token.
        per_try_timeout=timedelta(milliseconds=first_token_deadline_ms) if first_token_deadline_ms else None,
        retry_host_predicate=[
            RetryPolicyRetryHostPredicate(
                name="envoy.retry_host_predicates.previous_hosts",
                typed_config=Any.pack(PreviousHostsPredicate()),
            )
        ],
        host_selection_retry_max_attempts=_HOST_SELECTION_ATTEMPTS,
        retry_back_off=RetryPolicyRetryBackOff(
            base_interval=timedelta(milliseconds=retries.back_off_base_ms),
            max_interval=timedelta(milliseconds=retries.back_off_max_ms),
        ),
    )


def _other_paths(listen: Listen) -> Route:
    return _refusal(
        "no-such-path",
        RouteMatch(
            prefix="/",
            headers=[
                HeaderMatcher(name=":path", string_match=StringMatcher(prefix=path), invert_match=True)
                for path in listen.paths
            ],
        ),
        error_body("There is nothing at this path.", "NotFoundError", 404),
    )


def _unknown_model() -> Iterator[Route]:
    name = f"%DYNAMIC_METADATA({METADATA_NAMESPACE}:{MODEL_KEY}):256%"
    message = f"The model `{name}` does not exist. {_SEE_MODELS}"
    for prefix, body in (
        (ANTHROPIC_PATH, anthropic_error_body(message, "not_found_error")),
        ("/", error_body(message, "NotFoundError", 404, param="model")),
    ):
        yield _refusal(
            "unknown-model",
            RouteMatch(prefix=prefix, dynamic_metadata=[_metadata(MODEL_KEY, ValueMatcher(present_match=True))]),
            body,
        )


def _refused_body(name: str, key: str, message: str, param: str | None = None) -> Iterator[Route]:
    """What calls itself JSON and of which `key` is noted."""
    for prefix, body in (
        (ANTHROPIC_PATH, anthropic_error_body(message, ANTHROPIC_BAD_REQUEST)),
        ("/", error_body(message, BAD_REQUEST, 400, param=param)),
    ):
        yield _refusal(
            name,
            RouteMatch(
                prefix=prefix,
                headers=[
                    HeaderMatcher(name=":method", string_match=StringMatcher(exact="POST")),
                    HeaderMatcher(
                        name="content-type",
                        string_match=StringMatcher(safe_regex=RegexMatcher(regex=JSON_CONTENT_TYPE)),
                    ),
                ],
                dynamic_metadata=[_metadata(key, ValueMatcher(bool_match=True))],
            ),
            body,
            status=400,
        )


_UNREAD = (
    "The gateway cannot read which model the body asks for: it is malformed JSON, or holds an integer from 2^63 to "
    "2^64 - 1, a number that no double can hold, half of a surrogate pair, or 1000 nested levels."
)

_SEE_MODELS = f"GET {_MODELS_PATH} lists what there is."
_MODEL_MISSING = f"`model` is missing: say which one the request is for. {_SEE_MODELS}"


def _refusal(name: str, match: RouteMatch, body: SubstitutionFormatString, *, status: int = 404) -> Route:
    """An answer of our own, with its name as the reason."""
    return Route(
        name=name,
        match=match,
        direct_response=DirectResponseAction(status=status, body_format=body),
        response_headers_to_add=[HeaderValueOption(header=HeaderValue(key=REASON_HEADER, value=name))],
    )


def _model_list(policy: Policy) -> Iterator[Route]:
    names = dict.fromkeys(glob for pool in policy.pools for glob in pool.models if globs.is_literal(glob))
    if not names:
        return
    cards = {name: {"id": name, "object": "model", "created": 0, "owned_by": "trimtab"} for name in names}
    yield _json_route(_MODELS_PATH, {"object": "list", "data": list(cards.values())})
    for name, card in cards.items():
        for path in sorted({name, quote(name), quote(name, safe="")}):
            yield _json_route(f"{_MODELS_PATH}/{path}", card)


def _json_route(path: str, body: Json) -> Route:
    return Route(
        name="models",
        match=RouteMatch(path=path),
        direct_response=DirectResponseAction(status=200, body=DataSource(inline_string=json.dumps(body))),
    )


# An engine's own would stand beside Envoy's, and vLLM's let any site use a user's credentials.
_ENGINE_CORS_HEADERS = tuple(
    f"access-control-{name}"
    for name in (
        "allow-origin",
        "allow-credentials",
        "allow-methods",
        "allow-headers",
        "expose-headers",
        "max-age",
    )
)


def _body_limit(listen: Listen) -> dict[str, Any]:
    return {BUFFER_FILTER: Any.pack(BufferPerRoute(buffer=Buffer(max_request_bytes=listen.max_body_mib << 20)))}


def _cors(listen: Listen) -> dict[str, Any]:
    if not listen.cors_allow_origins:
        return {}
    return {
        CORS_FILTER: Any.pack(
            CorsPolicy(
                allow_origin_string_match=[StringMatcher(exact=origin) for origin in listen.cors_allow_origins],
                allow_methods="GET, POST, DELETE, OPTIONS",
                allow_headers="*, authorization",  # the wildcard does not cover this one
                expose_headers=f"x-request-id, retry-after, {REASON_HEADER}",
                max_age="86400",
                forward_not_matching_preflights=False,
            )
        )
    }
