"""gRPC's health service, which Envoy asks whether, and where, to send."""

from collections.abc import Callable

import grpc
import grpc.aio

# HealthCheckResponse with its status: a dependency for two messages would be too much.
_SERVING = b"\x08\x01"
_NOT_SERVING = b"\x08\x02"


def add_health(server: grpc.aio.Server, is_serving: Callable[[], bool]) -> None:
    """Let `server` answer for all of its services together."""

    async def check(request: bytes, context: grpc.aio.ServicerContext) -> bytes:
        return _SERVING if is_serving() else _NOT_SERVING

    methods = {"Check": grpc.unary_unary_rpc_method_handler(check)}
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("grpc.health.v1.Health", methods)])
