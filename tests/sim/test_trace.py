"""Reading and changing traces."""

from pathlib import Path

import pytest

from trimtab.sim.trace import Request, TraceError, bundled_trace, cut, load_trace, scale

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
    with pytest.raises(TraceError, match="there is azure23_conv"):
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
        (HEADER, ":1: no requests"),
        ("# one\n" + HEADER + "0,1,1\n# two\nx,1,1\n", ":5: arrival_s 'x' is not a number of seconds"),
        (HEADER + "nan,1,1\n", ":2: arrival_s 'nan' is not a number of seconds"),
        (HEADER + "inf,1,1\n", ":2: arrival_s 'inf' is not a number of seconds"),
        (HEADER + "-1,1,1\n", ":2: arrival_s '-1' is not a number of seconds"),
        (HEADER + "0,0,1\n", ":2: prompt_tokens '0' is not a positive whole number"),
        (HEADER + "0,1,1.5\n", ":2: output_tokens '1.5' is not a positive whole number"),
        (HEADER + "0,1,\n", ":2: output_tokens '' is not a positive whole number"),
        (HEADER + f"0,{'9' * 5000},1\n", "is not a positive whole number"),
        (HEADER + "0,1\n", ":2: 2 fields where the header has 3"),
        (HEADER + "2,1,1\n1,1,1\n", ":3: arrival_s 1 is before the line above, 2"),
        (b"\xff\xfe\x00", ": not a CSV file"),
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
