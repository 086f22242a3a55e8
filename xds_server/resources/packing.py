"""Small builders that every resource needs: `Any`, typed extensions, sources, gRPC services."""

from datetime import timedelta

import betterproto2
from envoy_data_plane.envoy.config.core.v3 import (
    AggregatedConfigSource,
    ApiVersion,
    ConfigSource,
    GrpcService,
    GrpcServiceEnvoyGrpc,
    HeaderValue,
    TypedExtensionConfig,
)
from envoy_data_plane.google.protobuf import Any
from envoy_data_plane.message_pool import default_message_pool


def type_url(message: type[betterproto2.Message]) -> str:
    """The type URL under which `message` travels, as in `type.googleapis.com/envoy….Cluster`."""
    return default_message_pool.type_to_url[message]


def extension(name: str, config: betterproto2.Message) -> TypedExtensionConfig:
    """A typed extension for the fields that take one."""
    return TypedExtensionConfig(name=name, typed_config=Any.pack(config))


def over_ads() -> ConfigSource:
    """Fetched over the one ADS stream.

    After the time-out Envoy goes on with what it has, so a control plane that is away never holds up a warm
    Envoy.
    """
    return ConfigSource(
        ads=AggregatedConfigSource(),
        resource_api_version=ApiVersion.V3,
        initial_fetch_timeout=timedelta(seconds=2),
    )


def grpc_service(cluster: str, **metadata: str) -> GrpcService:
    """A gRPC service behind a cluster of the bootstrap, called with `metadata`."""
    return GrpcService(
        envoy_grpc=GrpcServiceEnvoyGrpc(cluster_name=cluster),
        initial_metadata=[HeaderValue(key=key, value=value) for key, value in metadata.items()],
    )
