"""The access log of attempts, sent to our services: one record at the start, one at the end."""

from datetime import timedelta

from envoy_data_plane.envoy.config.accesslog.v3 import AccessLog
from envoy_data_plane.envoy.config.core.v3 import ApiVersion
from envoy_data_plane.envoy.extensions.access_loggers.grpc.v3 import (
    CommonGrpcAccessLogConfig,
    HttpGrpcAccessLogConfig,
)
from envoy_data_plane.envoy.type.tracing.v3 import CustomTag
from envoy_data_plane.google.protobuf import Any

from trimtab.datapath import EXT_PROC_CLUSTER, FIRST_BYTE_TAG
from xds_server.config.config_sources import grpc_service

# What is in flight is known this late at most. At the rates of inference nearly every record is a message of its own
# already, and under a flood the buffer fills sooner.
_FLUSH_INTERVAL = timedelta(milliseconds=20)
_BUFFER_BYTES = 16384

# In the upstream log DS_RX_BEG is the start of the attempt, not of the request.
_FIRST_BYTE = "%COMMON_DURATION(DS_RX_BEG:US_RX_BODY_BEG:us)%"


def attempt_log() -> AccessLog:
    """The router's upstream log."""
    return AccessLog(
        name="envoy.access_loggers.http_grpc",
        typed_config=Any.pack(
            HttpGrpcAccessLogConfig(
                common_config=CommonGrpcAccessLogConfig(
                    log_name="attempts",
                    transport_api_version=ApiVersion.V3,
                    grpc_service=grpc_service(EXT_PROC_CLUSTER),
                    buffer_flush_interval=_FLUSH_INTERVAL,
                    buffer_size_bytes=_BUFFER_BYTES,
                    custom_tags=[CustomTag(tag=FIRST_BYTE_TAG, value=_FIRST_BYTE)],
                ),
                additional_request_headers_to_log=["content-length"],
                additional_response_headers_to_log=["content-type"],
            )
        ),
    )
