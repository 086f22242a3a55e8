"""One HTTP/2 connection without TLS that can reset its streams, as browsers and Go's clients do; httpx never does."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Self

from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import DataReceived, Event

from tests.envoy.rig import Rig
from tests.harness import Call, until
from trimtab.observation.kinds import AttemptEnded, Outcome


class H2Client:
    """Made by `connected`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._http = H2Connection()
        self._http.initiate_connection()

    @classmethod
    @asynccontextmanager
    async def connected(cls, port: int) -> AsyncIterator[Self]:
        client = cls(*await asyncio.open_connection("127.0.0.1", port))
        try:
            yield client
        finally:
            client.leave()

    def post(self, path: str, body: Any, **headers: str) -> int:
        """Send a request; returns its stream."""
        stream = self._http.get_next_available_stream_id()
        head = {":method": "POST", ":path": path, ":scheme": "http", ":authority": "x"}
        self._http.send_headers(stream, [*head.items(), ("content-type", "application/json"), *headers.items()])
        self._http.send_data(stream, json.dumps(body).encode(), end_stream=True)
        self._send()
        return stream

    async def first_data(self, stream: int) -> None:
        """Wait for the first piece of an answer's body."""
        async with asyncio.timeout(5):
            while stream not in [event.stream_id for event in await self._read() if isinstance(event, DataReceived)]:
                pass

    def reset(self, stream: int) -> None:
        """RST_STREAM; the connection stays."""
        self._http.reset_stream(stream, ErrorCodes.CANCEL)
        self._send()

    def leave(self) -> None:
        """Close the connection without a word."""
        self._writer.close()

    async def _read(self) -> list[Event]:
        data = await self._reader.read(1 << 16)
        assert data, "Envoy closed the connection"
        events = self._http.receive_data(data)
        self._send()
        return events

    def _send(self) -> None:
        self._writer.write(self._http.data_to_send())


async def leave_and_free(client: H2Client, stream: int, rig: Rig, call: Call, *, reset: bool) -> None:
    """Leave a stream that `call` serves, by RST_STREAM or by closing the connection: its engine is free in a second."""
    left_at = time.time()
    client.reset(stream) if reset else client.leave()
    await until(lambda: call.over_at)
    (end,) = await rig.told(AttemptEnded, call.request_id)
    assert end.outcome is Outcome.ABORTED
    assert end.at < left_at + 1
    assert call.over_at is not None
    assert call.over_at < left_at + 1
