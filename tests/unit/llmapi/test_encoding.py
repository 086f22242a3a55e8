import gzip
import random
import tracemalloc
import zlib
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trimtab.llmapi.encoding import CorruptBody, Decoder, UnknownCoding, decode_body

ENCODERS: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "gzip": ("gzip", gzip.compress),
    "x-gzip": ("X-GZip", gzip.compress),
    "members": (
        "gzip",
        lambda data: gzip.compress(data[: len(data) // 2]) + gzip.compress(data[len(data) // 2 :]),
    ),
    "list": (" gzip ,identity", gzip.compress),
    "identity": ("identity", bytes),
    "none": ("", bytes),
}
TEXT = b'data: {"choices":[{"delta":{"content":"hello"}}]}\n\n' * 40 + bytes(range(256))


@pytest.fixture(params=ENCODERS)
def encoded(request: pytest.FixtureRequest) -> tuple[str, bytes]:
    coding, encode = ENCODERS[request.param]
    return coding, encode(TEXT)


def feed(decoder: Decoder, chunks: list[bytes], limit: int = 1 << 20) -> bytes:
    return b"".join(decoder.feed(chunk, limit) for chunk in chunks)


def test_whole_and_byte_by_byte(encoded: tuple[str, bytes]) -> None:
    coding, body = encoded
    assert feed(Decoder(coding), [body]) == TEXT
    assert feed(Decoder(coding), [body[i : i + 1] for i in range(len(body))]) == TEXT
    assert decode_body(body, coding, 1 << 20) == TEXT


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(sorted(ENCODERS)),
    st.binary(max_size=600),
    st.lists(st.integers(0, 700), max_size=8),
)
def test_any_content_at_any_split(name: str, data: bytes, cuts: list[int]) -> None:
    coding, encode = ENCODERS[name]
    body = encode(data)
    bounds = [0, *sorted(min(cut, len(body)) for cut in cuts), len(body)]
    chunks = [body[a:b] for a, b in pairwise(bounds)]
    assert feed(Decoder(coding), chunks) == data


def test_a_flushed_event_comes_out_at_once() -> None:
    """Streaming servers flush each event on its own."""
    events = [f"data: {{{i}}}\n\n".encode() for i in range(20)]
    gz, decoder = zlib.compressobj(wbits=31), Decoder("gzip")
    flushed = [gz.compress(event) + gz.flush(zlib.Z_SYNC_FLUSH) for event in events]
    assert [decoder.feed(chunk, 1000) for chunk in flushed] == events


@pytest.mark.parametrize("coding", ["", "gzip"])
def test_an_empty_body_is_empty(coding: str) -> None:
    assert decode_body(b"", coding, 1000) == b""
    assert Decoder(coding).feed(b"", 1000) == b""


@pytest.mark.parametrize(
    "coding", ["compress", "deflate", "br", "zstd", "gzip, br", "gzip, gzip", "utf-8", "*", "gzip;q=1"]
)
def test_an_unknown_coding_is_said(coding: str) -> None:
    with pytest.raises(UnknownCoding):
        Decoder(coding)
    with pytest.raises(UnknownCoding):
        decode_body(b"x", coding, 1000)


def test_a_cut_body_gives_what_is_there(encoded: tuple[str, bytes]) -> None:
    coding, body = encoded
    for cut in range(0, len(body), 7):
        assert TEXT.startswith(decode_body(body[:cut], coding, 1 << 20))
    # The message of an error stands at its front: with most of the body there it must have come out.
    assert decode_body(body[: len(body) * 9 // 10], coding, 1 << 20).startswith(TEXT[:50])


def test_a_corrupt_body_gives_what_was_read_before() -> None:
    body = bytearray(gzip.compress(random.Random(1).randbytes(3000)))
    body[2000:2100] = b"\xff" * 100
    body[-4:] = b"\0\0\0\0"
    with pytest.raises(CorruptBody):
        feed(Decoder("gzip"), [bytes(body)])
    assert len(decode_body(bytes(body), "gzip", 1 << 20)) >= 1500


def test_a_wrong_checksum_costs_no_content() -> None:
    body = gzip.compress(b"overloaded")[:-8] + b"\0" * 8
    assert decode_body(body, "gzip", 1000) == b"overloaded"


def test_padding_and_junk_after_gzip_are_ignored() -> None:
    for tail in (b"\0" * 600, b"junk", b"\x1f"):
        assert feed(Decoder("gzip"), [gzip.compress(b"x"), tail, tail]) == b"x"
        assert decode_body(gzip.compress(b"x") + tail, "gzip", 1000) == b"x"


def test_a_member_that_goes_bad_is_no_padding() -> None:
    second = bytearray(gzip.compress(random.Random(1).randbytes(2000)))
    second[1000:1100] = b"\xff" * 100
    second[-8:] = bytes(8)
    decoder = Decoder("gzip")
    assert feed(decoder, [gzip.compress(b"x"), bytes(second[:900])]).startswith(b"x")
    with pytest.raises(CorruptBody):
        decoder.feed(bytes(second[900:]), 10_000)


ZEROS = bytes(1 << 20)


def test_a_bomb_is_cut_at_the_limit() -> None:
    z = zlib.compressobj(9, wbits=31)
    body = b"".join(z.compress(ZEROS) for _ in range(64)) + z.flush()
    decoder = Decoder("gzip")
    tracemalloc.start()
    assert decoder.feed(body, 100_000) == bytes(100_000)
    assert tracemalloc.get_traced_memory()[1] < 4 << 20
    tracemalloc.stop()
    assert decoder.overflowed
    assert decoder.feed(body, 100_000) == b""
    assert decode_body(body, "gzip", 65_536) == bytes(65_536)


@pytest.mark.parametrize("coding", ["gzip", "identity"])
def test_the_limit_itself_is_no_overflow(coding: str) -> None:
    encode = ENCODERS[coding][1]
    decoder = Decoder(coding)
    assert decoder.feed(encode(b"x" * 500), 500) == b"x" * 500
    assert not decoder.overflowed
    assert decode_body(encode(b"x" * 500), coding, 499) == b"x" * 499


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=300))
def test_noise_never_raises_from_a_body(noise: bytes) -> None:
    assert len(decode_body(noise, "gzip", 1000)) <= 1000
