"""Binding our services to the policy's addresses, with errors for people."""

import socket
from pathlib import Path

import grpc.aio
from aiohttp import web

from trimtab.cli.errors import UserError
from trimtab.policy.model import split_host_port


class CannotListenError(UserError):
    """A service's address cannot be bound; the message names the policy's key and the mend."""


def bind(server: grpc.aio.Server, address: str, key: str) -> None:
    """Add `address` (`host:port` or `unix:/path`), which the policy gives as `key`, to a server that has not started.

    Raises CannotListenError.
    """
    if address.startswith("unix:"):
        folder = Path(address.removeprefix("unix:")).parent
        if not folder.is_dir():
            raise CannotListenError(f"{key} {address}: the folder {folder} does not exist")
    try:
        server.add_insecure_port(address)
    except RuntimeError:
        raise CannotListenError(
            f"{key} {address} cannot be bound: is another trimtab running, or the port taken?"
        ) from None


async def serve_http(app: web.Application, address: str, key: str) -> web.AppRunner:
    """Serve `app` at `host:port`; the caller ends it with `cleanup()`. Raises CannotListenError."""
    host, port = split_host_port(address)
    runner = web.AppRunner(app, access_log=None, handle_signals=False)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
    except OSError as error:
        await runner.cleanup()
        raise CannotListenError(f"{key} {address} cannot be bound: {error.strerror or error}") from None
    return runner


def free_port() -> int:
    """A loopback port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
