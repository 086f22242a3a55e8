"""The gRPC server of the ext_proc workers."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
from envoy.service.accesslog.v3 import als_pb2_grpc
from envoy.service.ext_proc.v3 import external_processor_pb2_grpc

from ext_proc.access_log import AccessLogService
from ext_proc.service import ExtProcService
from trimtab.process.grpc_health import add_health

_MIB = 1 << 20
_NO_LIMIT = 1_000_000


@asynccontextmanager
async def serve_ext_proc(
    address: str,
    ext_proc: ExtProcService,
    access_log: AccessLogService,
    *,
    shared_port: bool = False,
    grace_s: float = 1.0,
) -> AsyncIterator[int]:
    """Serve both on `address` (`host:port` or `unix:/path`) while the context lasts; it gives the port.

    `shared_port` lets several processes listen on the same TCP address. At the end no new streams are taken,
    and those that Envoy keeps open are cut after `grace_s`; it opens them anew elsewhere.

    Raises RuntimeError if the address cannot be bound.
    """
    server = grpc.aio.server(
        options=[
            ("grpc.so_reuseport", int(shared_port)),
            # A message holds a piece of a body or a batch of records: Envoy's buffers are 1 MiB.
            ("grpc.max_receive_message_length", 16 * _MIB),
            # Envoy pings several times a second to notice a stopped ext_proc worker; gRPC would take that for an
            # attack.
            ("grpc.http2.min_recv_ping_interval_without_data_ms", 50),
            ("grpc.http2.max_ping_strikes", 0),
            # gRPC cancels streams at random once a thousand wait to be taken up, and what they hold would pass. If the
            # service cannot keep up, Envoy's health check waits as they do, and keeps more from it.
            ("grpc.server.max_pending_requests", _NO_LIMIT),
            ("grpc.server.max_pending_requests_hard_limit", _NO_LIMIT),
        ]
    )
    add_health(server, lambda: True)  # what answers at all is well
    external_processor_pb2_grpc.add_ExternalProcessorServicer_to_server(ext_proc, server)
    als_pb2_grpc.add_AccessLogServiceServicer_to_server(access_log, server)
    port = server.add_insecure_port(address)
    await server.start()
    try:
        yield port
    finally:
        await server.stop(grace_s)
