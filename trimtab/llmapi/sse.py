"""Server-sent events out of bytes that arrive in any pieces."""

from typing import NamedTuple

_BOM = b"\xef\xbb\xbf"


class SseEvent(NamedTuple):
    """One event: its name (`event:`, empty if it has none) and its `data:` lines joined by line feeds."""

    name: bytes
    data: bytes


class SseParser:
    """Incremental parser of one event stream.

    Lines may end in LF, CRLF or CR, also with the pair split over two chunks. An event is given as soon as
    its blank line is seen: a CR that ends a chunk is not held back to see whether an LF follows. Comments,
    `id:` and `retry:` are passed over. An event or line above `max_event_bytes` is dropped and counted in
    `oversized`; the stream goes on.
    """

    def __init__(self, max_event_bytes: int = 1 << 20) -> None:
        self.oversized = 0
        self._max = max_event_bytes
        self._line = bytearray()  # the line that has not ended yet
        self._after_cr = False
        self._at_start = True
        self._name = b""
        self._data: list[bytes] = []
        self._size = 0  # of the data so far, one byte per line included
        self._dropping = False

    def feed(self, chunk: bytes, end: bool = False) -> list[SseEvent]:
        """Take the next piece of the stream; with `end`, also the event that no blank line follows."""
        events: list[SseEvent] = []
        if self._after_cr and chunk:
            self._after_cr = False
            if chunk.startswith(b"\n"):
                chunk = chunk[1:]
        if b"\n" in chunk or b"\r" in chunk:
            if self._line:
                self._line += chunk
                chunk = bytes(self._line)
                self._line.clear()
            lines = chunk.splitlines()
            if chunk.endswith(b"\r"):
                self._after_cr = True
            elif not chunk.endswith(b"\n"):
                self._hold(lines.pop())
            self._read(lines, events)
        elif chunk:
            self._hold(chunk)
        if end:
            lines = [bytes(self._line), b""] if self._line else [b""]
            self._line.clear()
            self._read(lines, events)
        return events

    def _hold(self, piece: bytes) -> None:
        if len(self._line) + len(piece) > self._max:
            self._drop_event()
            self._line[:] = b":"  # the rest of the line is read as a comment
        else:
            self._line += piece

    def _read(self, lines: list[bytes], events: list[SseEvent]) -> None:
        if self._at_start and lines:
            self._at_start = False
            lines[0] = lines[0].removeprefix(_BOM)
        for line in lines:
            if line.startswith(b"data:"):
                self._add_data(line[6:] if line.startswith(b" ", 5) else line[5:])
            elif not line:
                self._end_event(events)
            elif not line.startswith(b":"):
                self._read_field(line)

    def _read_field(self, line: bytes) -> None:
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"event":
            self._name = value[: self._max]
        elif field == b"data":
            self._add_data(value)
        elif field == b"error":
            # Older llama.cpp servers write an error as a field of this name, without `data:`.
            self._name = b"error"
            self._add_data(value)

    def _add_data(self, value: bytes) -> None:
        self._size += len(value) + 1
        if self._size > self._max:
            self._drop_event()
        elif not self._dropping:
            self._data.append(value)

    def _end_event(self, events: list[SseEvent]) -> None:
        if self._data:
            events.append(SseEvent(self._name, b"\n".join(self._data)))
            self._data.clear()
        self._name = b""
        self._size = 0
        self._dropping = False

    def _drop_event(self) -> None:
        if not self._dropping:
            self.oversized += 1
        self._dropping = True
        self._data.clear()
        self._size = self._max  # nothing more is taken before the blank line
