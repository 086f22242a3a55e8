"""Reading and changing traces."""

import gzip
import time
from pathlib import Path

import pytest

from trimtab import sim
from trimtab.sim.trace import Request, TraceError, bundled_trace, bundled_traces, cut, load_trace, scale

TRACES = Path(sim.__file__).parents[1] / "data" / "traces"
HEADER = "arrival_s,prompt_tokens,output_tokens\n"


def write(directory: Path, text: str | bytes) -> Path:
    path = directory / "trace.csv"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def test_the_bundled_trace_is_the_one_described_beside_it() -> None:
    trace = bundled_trace("azure23_conv")
    assert len(trace) == 2834
    assert trace[0] == Request(0.0, 4074, 38)
    assert max(request.prompt_tokens for request in trace) == 5380
    with pytest.raises(TraceError, match="there are azure23_code, azure23_conv, mooncake_conversation"):
        bundled_trace("nope")


def test_comments_other_columns_and_their_order_do_not_matter(tmp_path: Path) -> None:
    header = "output_tokens, arrival_s ,prompt_tokens,prefix_ids\n"
    text = f"\ufeff# a trace\n{header}\n# more\n5,0.5,10,1;2\r\n6,0.5,11,\n"
    assert load_trace(write(tmp_path, text)) == [Request(0.5, 10, 5), Request(0.5, 11, 6)]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", ":1: the header has no column arrival_s and no prompt_tokens and no output_tokens"),
        ("arrival_s,prompt_tokens\n0,1\n", ":1: the header has no column output_tokens"),
        (HEADER, ": no requests"),
        ("# one\n" + HEADER + "0,1,1\n# two\nx,1,1\n", ":5: arrival_s 'x' is not a time"),
        (HEADER + "nan,1,1\n", ":2: arrival_s 'nan' is not a time"),
        (HEADER + "inf,1,1\n", ":2: arrival_s 'inf' is not a time"),
        (HEADER + "-1,1,1\n", ":2: arrival_s '-1' is not a time"),
        (HEADER + "0,0,1\n", ":2: prompt_tokens '0' is not a positive whole number"),
        (HEADER + "0,1,1.5\n", ":2: output_tokens '1.5' is not a positive whole number"),
        (HEADER + "0,1,\n", ":2: output_tokens '' is not a positive whole number"),
        (HEADER + f"0,{'9' * 5000},1\n", "is not a positive whole number"),
        (HEADER + "0,1\n", ":2: 2 fields where the header has 3"),
        (HEADER + "2,1,1\n1,1,1\n", ":3: it arrives 1 s before the line above: sort the trace"),
        (HEADER + f"0,{'9' * 400},1\n", "…' is not a positive whole number up to 10,000,000"),
        (b"\xff\xfe\x00", ":1: not UTF-8 text: a trace is a CSV file, or .jsonl"),
        (gzip.compress(b"arrival_s\n", mtime=0), ":1: compressed with gzip: unpack it"),
    ],
)
def test_what_is_wrong_is_said_in_one_line_with_its_place(text: str | bytes, problem: str, tmp_path: Path) -> None:
    path = write(tmp_path, text)
    with pytest.raises(TraceError) as caught:
        load_trace(path)
    message = str(caught.value)
    assert message.startswith(str(path))
    assert problem in message
    assert "\n" not in message


def test_scaling_and_cutting() -> None:
    trace = [Request(0.0, 100, 5), Request(3.0, 4000, 6), Request(6.0, 1, 7)]
    faster = scale(trace, speed=3, prompt_factor=0.3, max_prompt=900)
    assert faster == [Request(0.0, 30, 5), Request(1.0, 900, 6), Request(2.0, 1, 7)]
    assert cut(faster, 2.0) == faster[:2]
    assert scale(trace) == trace


@pytest.mark.parametrize("numbers", [{"speed": 0}, {"prompt_factor": -1}, {"max_prompt": 0}])
def test_scaling_by_nothing_is_an_error(numbers: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="positive"):
        scale([Request(0.0, 1, 1)], **numbers)


def test_a_trace_keeps_its_own_zero_unless_that_is_far_away(tmp_path: Path) -> None:
    assert load_trace(write(tmp_path, HEADER + "600,1,1\n601,1,1\n")) == [Request(600, 1, 1), Request(601, 1, 1)]
    on_a_clock = write(tmp_path, HEADER + "1700000000.25,1,1\n1700000001.5,1,1\n")
    assert load_trace(on_a_clock) == [Request(0, 1, 1), Request(1.25, 1, 1)]


def test_an_azure_trace_is_read_as_published(tmp_path: Path) -> None:
    rows = "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n"
    text = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + rows
    assert load_trace(write(tmp_path, text)) == [Request(0.0, 374, 44), Request(4.314579, 396, 109)]
    later = "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00.009930+00:00,2162,5\n"
    assert load_trace(write(tmp_path, later)) == [Request(0.0, 2162, 5)]


def test_times_without_a_zone_do_not_follow_the_clocks_of_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-10-29 02:59:59,1,1\n2023-10-29 03:00:01,1,1\n"
    monkeypatch.setenv("TZ", "Europe/Berlin")
    try:
        time.tzset()
        assert [request.arrival_s for request in load_trace(write(tmp_path, text))] == [0.0, 2.0]
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_burstgpt_trace_is_read_without_its_failures(tmp_path: Path) -> None:
    text = (
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "5,ChatGPT,472,18,490,Conversation log\n"
        "6,ChatGPT,0,0,0,Conversation log\n"
        "45,GPT-4,1087,230,1317,API log\n"
    )
    assert load_trace(write(tmp_path, text)) == [Request(0.0, 472, 18), Request(40.0, 1087, 230)]


def test_a_mooncake_trace_is_read_as_published(tmp_path: Path) -> None:
    path = tmp_path / "conversation_trace.jsonl"
    path.write_text(
        '{"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47]}\n'
        '{"timestamp": 30535, "input_length": 6472, "output_length": 26, "hash_ids": [46]}\n'
    )
    assert load_trace(path) == [Request(0.0, 6955, 52), Request(3.053, 6472, 26)]


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("a.csv", "TIMESTAMP,ContextTokens\n", ":1: the header has no column GeneratedTokens"),
        ("a.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\nnoon,1,1\n", ":2: TIMESTAMP 'noon' is not a time"),
        (
            "a.csv",
            "Timestamp,Request tokens,Response tokens\n5,7,1\n4,7,1\n",
            ":3: it arrives 1 s before the line above",
        ),
        ("a.jsonl", "{}\n", ":1: not an object with timestamp, input_length and output_length"),
        ("a.jsonl", "[1]\n", ":1: not an object with timestamp"),
        ("a.jsonl", "{\n", ":1: not an object with timestamp"),
        ("a.jsonl", "[" * 100_000 + "\n", ":1: not an object with timestamp"),
        (
            "a.jsonl",
            '{"timestamp": 5, "input_length": 0, "output_length": 1}\n',
            ":1: input_length '0' is not a positive",
        ),
        ("a.jsonl", "\n", ": no requests"),
    ],
)
def test_what_is_wrong_with_a_published_format_is_told_with_its_line(
    tmp_path: Path, name: str, text: str, problem: str
) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(TraceError) as caught:
        load_trace(path)
    assert problem in str(caught.value)


def test_every_bundled_trace_has_its_origin_beside_it() -> None:
    assert bundled_traces() == ["azure23_code", "azure23_conv", "mooncake_conversation"]
    for name in bundled_traces():
        assert "Licence: " in (TRACES / f"{name}.md").read_text()
        assert len(bundled_trace(name)) > 2000
