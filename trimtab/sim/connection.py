"""Answering a client, writing to its connection, and breaking it."""

import asyncio
import socket
import struct
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from aiohttp import web

from trimtab.sim.answers import compact
from trimtab.sim.attempts import Attempt, End
from trimtab.sim.replies import frame

_PING = frame(": keep-alive\n\n")
_PING_INTERVAL_S = 0.5
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)

Write = Callable[[bytes], None]


def json_response(value: Any, *, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    """An answer as vLLM writes JSON: without spaces."""
    return web.Response(body=compact(value).encode(), status=status, headers=headers, content_type="application/json")


def writer(request: web.Request) -> Write:
    """Write to the connection of a request whose headers are sent; nothing if the client has left.

    Each step of an engine writes to all its streams from one callback. aiohttp's own `write` is a coroutine,
    and waking a task for each token would cost more than the token.
    """

    def write(data: bytes) -> None:
        transport = request.transport
        if transport is not None and not transport.is_closing():
            transport.write(data)

    return write


async def ping(write: Write, seconds: float) -> None:
    """Keep a stream alive without output for so long [s]."""
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    while (left := until - loop.time()) > 0:
        write(_PING)
        await asyncio.sleep(min(_PING_INTERVAL_S, left))


async def break_off(request: web.Request, attempt: Attempt, how: End) -> NoReturn:
    """Close the connection in the middle of things. aiohttp then cancels this handler."""
    attempt.end(how)
    transport = request.transport
    if transport is not None:
        if how == "reset":
            connection: socket.socket = transport.get_extra_info("socket")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
        transport.abort()
    await asyncio.get_running_loop().create_future()
    raise AssertionError("unreachable: nobody sets the future")
