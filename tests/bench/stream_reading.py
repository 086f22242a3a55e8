"""What reading a streamed answer costs: `python -m tests.bench.stream_reading`."""

import gzip
import json
import time
from collections.abc import Iterator

from trimtab.llmapi.rejections import RejectionReader
from trimtab.llmapi.stream import StreamReader
from trimtab.policy.model import Rejections

_EVENTS = 20_000
_ROUNDS = 5


def _vllm(i: int) -> bytes:
    choice = {
        "index": 0,
        "delta": {"content": f" word{i}"},
        "logprobs": None,
        "finish_reason": None,
        "token_ids": None,
    }
    chunk = {"id": "chatcmpl-896edd977533ad11", "object": "chat.completion.chunk", "created": 1795972338}
    return _event(chunk | {"model": "tiny", "choices": [choice]})


def _escaped(i: int) -> bytes:
    return _vllm(i).replace(b" word", b"\\n\\u00fc")


def _responses(i: int) -> bytes:
    return b"event: response.output_text.delta\n" + _event(
        {
            "type": "response.output_text.delta",
            "sequence_number": i,
            "item_id": "msg_1",
            "output_index": 0,
            "delta": "x",
        }
    )


def _anthropic(i: int) -> bytes:
    delta = {"type": "text_delta", "text": f" word{i}"}
    return b"event: content_block_delta\n" + _event({"type": "content_block_delta", "index": 0, "delta": delta})


def _event(document: object) -> bytes:
    return b"data: " + json.dumps(document, separators=(",", ":")).encode() + b"\n\n"


def _cases() -> Iterator[tuple[str, str, list[bytes]]]:
    for name, make in (
        ("chat chunks as vLLM sends them", _vllm),
        ("the same, text with escapes", _escaped),
        ("OpenAI Responses", _responses),
        ("Anthropic messages", _anthropic),
        ("keep-alive comments", lambda i: b": keep-alive\n\n"),
    ):
        yield name, "", [make(i) for i in range(_EVENTS)]
    stream = b"".join(_vllm(i) for i in range(_EVENTS))
    yield "chat chunks, 7 bytes at a time", "", [stream[i : i + 7] for i in range(0, len(stream), 7)]
    encoded = gzip.compress(stream)
    yield (
        "chat chunks, gzip in pieces of 200 bytes",
        "gzip",
        [encoded[i : i + 200] for i in range(0, len(encoded), 200)],
    )


def _seconds(coding: str, chunks: list[bytes]) -> float:
    reader = StreamReader("text/event-stream", coding)
    started = time.perf_counter()
    for chunk in chunks:
        reader.feed(chunk)
    return time.perf_counter() - started


def _seconds_to_judge(rejections: RejectionReader, body: bytes) -> float:
    started = time.perf_counter()
    for _ in range(1000):
        rejections.judge(503, {"retry-after": "3", "content-type": "application/json"}, body, 0.0)
    return (time.perf_counter() - started) / 1000


def main() -> None:
    """Print the best of several rounds for each kind of stream, and for one rejection."""
    print(f"{'reading a stream':44}{'events/s':>12}{'µs/event':>10}")
    for name, coding, chunks in _cases():
        best = min(_seconds(coding, chunks) for _ in range(_ROUNDS))
        print(f"{name:44}{_EVENTS / best:12,.0f}{best / _EVENTS * 1e6:10.2f}")
    rejections = RejectionReader.from_policy(Rejections())
    busy = b'{"error":{"message":"The engine is currently busy","type":"Service Unavailable","code":503}}'
    for name, body in (
        ("judging vLLM's 503", busy),
        ("judging a body that no rule knows", b'{"detail":"..."}'),
    ):
        best = min(_seconds_to_judge(rejections, body) for _ in range(_ROUNDS))
        print(f"{name:44}{1 / best:12,.0f}{best * 1e6:10.2f}")


if __name__ == "__main__":
    main()
