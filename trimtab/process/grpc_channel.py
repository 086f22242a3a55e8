"""Connections between the processes of Trimtab."""

import grpc.aio

_OPTIONS = (
    # Else gRPC goes through the proxy that the environment names (http_proxy, https_proxy or grpc_proxy), even to a
    # loopback address, which at the proxy is another machine's.
    ("grpc.enable_http_proxy", 0),
    # A process that is started again is found again soon.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
)


def own_channel(target: str, *options: tuple[str, int]) -> grpc.aio.Channel:
    """A channel to another process of ours at `target` (`host:port` or `unix:/path`), straight and never by a proxy.

    `options` are those that only this channel needs.
    """
    return grpc.aio.insecure_channel(target, options=(*_OPTIONS, *options))
