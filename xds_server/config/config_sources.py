"""Where Envoy gets the rest from: the ADS stream, and the gRPC services of the bootstrap."""

from datetime import timedelta

from envoy_data_plane.envoy.config.core.v3 import (
    AggregatedConfigSource,
    ApiVersion,
    ConfigSource,
    GrpcService,
    GrpcServiceEnvoyGrpc,
    HeaderValue,
)


def over_ads(*, give_up_after: timedelta) -> ConfigSource:
    """Fetched over the one ADS stream.

    Until then what needs it is not used; after `give_up_after` Envoy goes on with what it has, which may be
    nothing. Zero waits for ever.
    """
    return ConfigSource(
        ads=AggregatedConfigSource(),
        resource_api_version=ApiVersion.V3,
        initial_fetch_timeout=give_up_after,
    )


def grpc_service(cluster: str, **metadata: str) -> GrpcService:
    """A gRPC service behind a cluster of the bootstrap, called with `metadata`."""
    return GrpcService(
        envoy_grpc=GrpcServiceEnvoyGrpc(cluster_name=cluster),
        initial_metadata=[HeaderValue(key=key, value=value) for key, value in metadata.items()],
    )
