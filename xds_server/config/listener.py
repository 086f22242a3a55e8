"""The listener. Envoy ends the streams of a listener that is updated, so nothing of a pool may show in it."""

from datetime import timedelta

from envoy_data_plane.envoy.config.common.mutation_rules.v3 import HeaderMutation, HeaderMutationRemoveOnMatch
from envoy_data_plane.envoy.config.core.v3 import (
    Address,
    CidrRange,
    Http2ProtocolOptions,
    SocketAddress,
    TypedExtensionConfig,
)
from envoy_data_plane.envoy.config.listener.v3 import Filter, FilterChain, Listener
from envoy_data_plane.envoy.extensions.filters.http.buffer.v3 import Buffer
from envoy_data_plane.envoy.extensions.filters.http.cors.v3 import Cors
from envoy_data_plane.envoy.extensions.filters.http.router.v3 import Router, RouterUpstreamAccessLogOptions
from envoy_data_plane.envoy.extensions.filters.network.http_connection_manager.v3 import (
    HttpConnectionManager,
    HttpConnectionManagerInternalAddressConfig,
    HttpFilter,
    Rds,
)
from envoy_data_plane.envoy.extensions.http.early_header_mutation.header_mutation.v3 import (
    HeaderMutation as EarlyHeaderMutation,
)
from envoy_data_plane.envoy.type.matcher.v3 import StringMatcher
from envoy_data_plane.google.protobuf import Any

from trimtab.policy.model import Listen
from xds_server.config.body_attributes import json_to_metadata
from xds_server.config.config_sources import over_ads
from xds_server.config.fault_injection import fault_filter
from xds_server.config.local_replies import local_reply_config
from xds_server.config.routes import BUFFER_FILTER, CORS_FILTER, ROUTES_NAME
from xds_server.config.upstream_access_log import attempt_log

LISTENER_NAME = "trimtab"


def listener(listen: Listen) -> Listener:
    """The one listener, HTTP/1.1 and HTTP/2 without TLS. Of the policy only its address shows."""
    return Listener(
        name=LISTENER_NAME,
        address=Address(
            socket_address=SocketAddress(
                address=listen.address,
                port_value=listen.port,
                ipv4_compat=listen.address == "::",  # all addresses, of both kinds
            )
        ),
        filter_chains=[
            FilterChain(
                filters=[
                    Filter(
                        name="envoy.filters.network.http_connection_manager",
                        typed_config=Any.pack(_connection_manager()),
                    )
                ]
            )
        ],
        per_connection_buffer_limit_bytes=_CONNECTION_BUFFER,
    )


# Flow control only: how large a body may be is the routes' to say.
_CONNECTION_BUFFER = 1 << 20

# Where no range of internal addresses is given, Envoy trusts loopback and private ones.
_NO_CLIENT = CidrRange(address_prefix="255.255.255.255", prefix_len=32)

_WITHOUT_ENVOYS_OWN = HeaderMutation(
    remove_on_match=HeaderMutationRemoveOnMatch(key_matcher=StringMatcher(prefix="x-envoy-"))
)


def _connection_manager() -> HttpConnectionManager:
    return HttpConnectionManager(
        stat_prefix="trimtab",
        # Rather no open port than one that knows no route.
        rds=Rds(config_source=over_ads(give_up_after=timedelta(0)), route_config_name=ROUTES_NAME),
        http_filters=[
            HttpFilter(name=CORS_FILTER, typed_config=Any.pack(Cors())),
            # An endpoint is chosen when the whole request is here, so a slow upload costs no engine anything,
            # a body can be sent again, and its length is known, also of one that came in chunks. The routes
            # say the limit.
            HttpFilter(name=BUFFER_FILTER, typed_config=Any.pack(Buffer(max_request_bytes=1 << 20))),
            HttpFilter(name="envoy.filters.http.json_to_metadata", typed_config=Any.pack(json_to_metadata())),
            fault_filter(),
            HttpFilter(
                name="envoy.filters.http.router",
                typed_config=Any.pack(
                    Router(
                        suppress_envoy_headers=True,
                        upstream_log=[attempt_log()],
                        upstream_log_options=RouterUpstreamAccessLogOptions(flush_upstream_log_on_upstream_stream=True),
                    )
                ),
            ),
        ],
        http2_protocol_options=Http2ProtocolOptions(max_concurrent_streams=1000),
        request_headers_timeout=timedelta(seconds=10),
        # The edge: no client is trusted, not even one on a private address. Its x-request-id is replaced,
        # because observations are joined by it, and its x-envoy- headers are dropped, because they would
        # change retries. Envoy by itself drops those that it obeys; the others would be passed on to engines.
        use_remote_address=True,
        early_header_mutation_extensions=[
            TypedExtensionConfig(
                name="envoy.http.early_header_mutation.header_mutation",
                typed_config=Any.pack(EarlyHeaderMutation(mutations=[_WITHOUT_ENVOYS_OWN])),
            )
        ],
        internal_address_config=HttpConnectionManagerInternalAddressConfig(cidr_ranges=[_NO_CLIENT]),
        always_set_request_id_in_response=True,
        server_name="trimtab",
        normalize_path=True,
        merge_slashes=True,
        local_reply_config=local_reply_config(),
    )
