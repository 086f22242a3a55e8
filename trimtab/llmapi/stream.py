"""What a streamed answer says as it comes: tokens, errors, its end."""

import json
import re
from dataclasses import dataclass
from enum import StrEnum

from trimtab.llmapi.encoding import CorruptBody, Decoder, UnknownCoding
from trimtab.llmapi.formats import Interpreter, Meaning
from trimtab.llmapi.sse import SseEvent, SseParser

# What decoding may add to a chunk, in bytes. Text does not grow a thousandfold; bombs do.
_MAX_EXPANSION = 1 << 20

# A key whose value is generated text, with that value, if it is written without escapes.
_TEXT = re.compile(rb'"(?:content|text|reasoning_content|reasoning|thinking)"\s*:\s*"([^"\\\x00-\x1f]+)"')
_PLAIN_STRING = re.compile(rb'[^"\\\x00-\x1f]+')


class EventKind(StrEnum):
    """What one event of a stream means to an ext_proc worker."""

    TOKEN = "token"  # it carries generated content
    ERROR = "error"  # the engine reports a failure
    DONE = "done"  # the answer is complete; may come more than once, and usage may follow
    UNREADABLE = "unreadable"  # the stream cannot be decoded; nothing more will be read from it


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """One thing said. `data` is the event's text (JSON as a rule) for an ERROR, empty for the others."""

    kind: EventKind
    data: bytes = b""


_TOKEN = StreamEvent(EventKind.TOKEN)
_DONE = StreamEvent(EventKind.DONE)
_UNREADABLE = StreamEvent(EventKind.UNREADABLE)


class StreamReader:
    """Reads one answer. An answer that is no event stream (`is_stream`) gives no events.

    What counts as a token is told in `dialects.Interpreter`. Of an SSE event that says several things, TOKEN
    is given first. Events that are no JSON, or above 1 MiB, are passed over. `foreign` is set once one was, or was of
    no protocol that is known: then it cannot be said that there was no token.
    """

    def __init__(self, content_type: str, content_encoding: str, count_reasoning: bool = True) -> None:
        self.is_stream = content_type.partition(";")[0].strip().lower() == "text/event-stream"
        self._ended = False
        self._sse = SseParser()
        self._interpreter = Interpreter(count_reasoning)
        self._unparsable = 0
        self.foreign = False
        self._is_understood = False
        self._decoder: Decoder | None
        try:
            self._decoder = Decoder(content_encoding)
        except UnknownCoding:
            self._decoder = None
        # Tokens of one stream mostly differ in one string only. An event that equals an earlier token but for
        # a plain, non-empty string in the place of its text is a token too, and need not be parsed.
        self._head = self._tail = b""
        self._head_name = b""

    @property
    def is_unfinished(self) -> bool:
        """Whether an answer that ends here without DONE is not whole: its protocol has a mark for that, and nothing was
        passed over in which it may have been."""
        return self._interpreter.marks_end and not self.malformed

    @property
    def is_understood(self) -> bool:
        """Whether an event of a known protocol came."""
        return self._is_understood

    @property
    def malformed(self) -> int:
        """Events that were passed over so far."""
        return self._unparsable + self._sse.oversized

    def feed(self, chunk: bytes, end: bool = False) -> list[StreamEvent]:
        """Take the next piece of the body as it came over the wire; with `end`, the last. Never raises."""
        if self._ended or not self.is_stream:
            return []
        if self._decoder is None:
            self._ended = True
            return [_UNREADABLE]
        try:
            plain = self._decoder.feed(chunk, len(chunk) + _MAX_EXPANSION)
            readable = not self._decoder.overflowed
        except CorruptBody:
            plain, readable = b"", False
        said: list[StreamEvent] = []
        for event in self._sse.feed(plain, end):
            self._read(event, said)
        self.foreign = self.foreign or self._sse.oversized > 0
        if not readable:
            said.append(_UNREADABLE)
        self._ended = end or not readable
        return said

    def _read(self, event: SseEvent, said: list[StreamEvent]) -> None:
        name, data = event
        if self._is_like_last_token(name, data):
            said.append(_TOKEN)
            return
        if name == b"error":
            said.append(StreamEvent(EventKind.ERROR, data))
            return
        if not (text := data.strip()):
            return
        if text == b"[DONE]":
            said.append(_DONE)
            return
        meaning = self._understand(data)
        self.foreign = self.foreign or meaning.foreign
        self._is_understood = self._is_understood or not meaning.foreign
        if meaning.token:
            said.append(_TOKEN)
        if meaning.failed:
            said.append(StreamEvent(EventKind.ERROR, data))
        elif meaning.done:
            said.append(_DONE)
        elif meaning.token and (generated := _TEXT.search(data)):
            self._head, self._tail = data[: generated.start(1)], data[generated.end(1) :]
            self._head_name = name

    def _is_like_last_token(self, name: bytes, data: bytes) -> bool:
        head, tail = self._head, self._tail
        return (
            len(head) > 0
            and data.startswith(head)
            and data.endswith(tail)
            and name == self._head_name
            and _PLAIN_STRING.fullmatch(data, len(head), len(data) - len(tail)) is not None
        )

    def _understand(self, data: bytes) -> Meaning:
        try:
            event = json.loads(data.decode("utf-8", "replace"))
        except (ValueError, RecursionError):
            self._unparsable += 1
            return Meaning(foreign=True)
        return self._interpreter.read(event) if isinstance(event, dict) else Meaning(foreign=True)
