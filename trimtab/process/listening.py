"""Binding our services to the policy's addresses, with errors for people."""

import asyncio
import errno
import socket
from pathlib import Path

import grpc.aio
from aiohttp import web

from trimtab.policy.model import split_host_port
from trimtab.process.errors import UserError

_FIXES = {
    errno.EADDRINUSE: "is another trimtab running, or the port taken?",
    errno.EADDRNOTAVAIL: "this machine has no such address; take one that `ip address` shows, or 0.0.0.0 for all",
    errno.EACCES: "the port needs privileges; take one from 1024 on, or grant CAP_NET_BIND_SERVICE",
}

# Bound and never listening: each keeps a port of `free_port` from being handed out again.
_kept: list[socket.socket] = []

_ANY = {"0.0.0.0": "127.0.0.1", "::": "::1"}


class CannotListenError(UserError):
    """A service's address cannot be bound; the message names the policy's key and the fix."""


def ensure_free(address: str, key: str) -> None:
    """See whether `address` (`host:port` or `unix:/path`), which the policy gives as `key`, can be bound.

    Asked before gRPC or Envoy is, because what those say of it is not for people. Raises CannotListenError.
    """
    if address.startswith("unix:"):
        path = Path(address.removeprefix("unix:"))
        if not path.parent.is_dir():
            raise CannotListenError(f"{key} {address}: the folder {path.parent} does not exist")
        # gRPC would take the place of a socket that another process serves.
        with socket.socket(socket.AF_UNIX) as probe:
            if probe.connect_ex(str(path)) == 0:
                raise CannotListenError(f"{key} {address} cannot be bound: is another trimtab running?")
        return
    host, port = split_host_port(address)
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(place)
            probe.listen()
    except OSError as error:
        fix = _FIXES.get(error.errno or 0, error.strerror)
        raise CannotListenError(f"{key} {address} cannot be bound: {fix}") from None


def bind(server: grpc.aio.Server, address: str, key: str) -> None:
    """Add `address`, which the policy gives as `key`, to a server that has not started. Raises CannotListenError."""
    ensure_free(address, key)
    try:
        server.add_insecure_port(address)
    except RuntimeError as error:
        raise CannotListenError(f"{key} {address} cannot be bound: {error}") from None


async def serve_http(app: web.Application, address: str, key: str) -> web.AppRunner:
    """Serve `app` at `host:port`; the caller ends it with `cleanup()`. Raises CannotListenError."""
    ensure_free(address, key)
    host, port = split_host_port(address)
    runner = web.AppRunner(app, access_log=None, handle_signals=False)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port).start()
    except OSError as error:
        await runner.cleanup()
        raise CannotListenError(f"{key} {address} cannot be bound: {error.strerror or error}") from None
    return runner


def reach(address: str) -> tuple[str, int]:
    """The host and port at which this machine reaches what listens at `address`, be it on all addresses."""
    host, port = split_host_port(address)
    return _ANY.get(host, host), port


async def takes_connections(address: str) -> bool:
    """Whether anything listens at `address`."""
    try:
        _, writer = await asyncio.open_connection(*reach(address))
    except OSError:
        return False
    writer.close()
    return True


def free_port() -> int:
    """A loopback port that nobody has, and that the kernel gives to nobody else while this process lives.

    A server that sets SO_REUSEADDR, as all do that are to be started again, can listen on it.
    """
    keeper = socket.socket()
    keeper.bind(("127.0.0.1", 0))
    # Only now: before, the kernel might choose a port that is kept in this way already.
    keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    _kept.append(keeper)
    return int(keeper.getsockname()[1])
