from pathlib import Path

import pytest

from trimtab.policy import Policy, PolicyError, Problem, load_policy, parse_policy
from trimtab.policy.load import MAX_BYTES

MINIMAL = "version: 1\npools:\n- name: chat\n  endpoints:\n  - address: gpu-1:8000\n"


def failure(source: str | Path) -> str:
    with pytest.raises(PolicyError) as raised:
        load_policy(source)
    (problem,) = raised.value.problems
    assert str(raised.value) == str(problem)
    return str(problem)


def parse(*lines: str) -> Policy:
    return parse_policy("\n".join((MINIMAL, *lines, "")), "policy.yaml")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "policy.yaml"


def test_loads_a_file(file: Path) -> None:
    file.write_text(MINIMAL)
    assert load_policy(file) == load_policy(str(file)) == parse_policy(MINIMAL, "elsewhere")


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_takes_a_byte_order_mark_and_line_ends_of_windows(file: Path, end: str) -> None:
    file.write_bytes(b"\xef\xbb\xbf" + MINIMAL.replace("\n", end).encode())
    assert load_policy(file).pools[0].name == "chat"


def test_a_missing_file(file: Path) -> None:
    assert failure(file) == f"{file}:1:1: the file cannot be read: no such file or directory"


def test_a_directory(tmp_path: Path) -> None:
    assert failure(tmp_path) == f"{tmp_path}:1:1: the file cannot be read: is a directory"


def test_a_path_that_no_file_can_have() -> None:
    assert failure("a\0b") == r"a\x00b:1:1: the file cannot be read: embedded null byte"


def test_a_huge_file(file: Path) -> None:
    file.write_bytes(b"#" * (MAX_BYTES + 1))
    assert failure(file) == f"{file}:1:1: the file is larger than 4 MiB"


@pytest.mark.parametrize("text", ["", "\n\n", "# only a comment\n", "---\n", "~\n"])
def test_an_empty_file(file: Path, text: str) -> None:
    file.write_text(text)
    assert failure(file) == f"{file}:1:1: the file is empty: a policy has at least version and pools"


def test_bytes_that_are_not_utf_8(file: Path) -> None:
    file.write_bytes(MINIMAL.encode() + "  models: [caf\u00e9]\n".encode("latin-1"))
    assert failure(file) == f"{file}:6:15: byte 0xe9 is not UTF-8: save the file as UTF-8"


def test_utf_16(file: Path) -> None:
    file.write_bytes(MINIMAL.encode("utf-16"))
    assert failure(file) == f"{file}:1:1: byte 0xff is not UTF-8: save the file as UTF-8"


def test_a_control_character(file: Path) -> None:
    file.write_text("version: 1\npools: \x1b[31m\n")
    assert failure(file) == f"{file}:2:8: the character U+001B cannot be in a YAML file"


def test_half_a_surrogate_pair() -> None:
    with pytest.raises(PolicyError, match="half of a surrogate pair"):
        parse(r'state_file: "\ud800"')


def test_an_error_has_all_its_problems_in_the_order_of_the_file() -> None:
    with pytest.raises(PolicyError) as raised:
        parse_policy("version: 2\nlisten: {port: 0}\npools: []\n", "p.yaml")

    assert raised.value.problems == (
        Problem("p.yaml", 1, 10, "version", "must be 1, not 2"),
        Problem("p.yaml", 2, 16, "listen.port", "must be a whole number of 1 to 65535, not 0"),
        Problem("p.yaml", 3, 8, "pools", "must be a list with at least one entry, not an empty list"),
    )
    assert str(raised.value).count("\n") == 2


def test_a_message_is_one_line_whatever_it_quotes() -> None:
    problem = Problem("a\nb", 1, 1, 'labels["\x1b[2J"]', "not \u2028 this")
    assert str(problem) == r'a\nb:1:1: labels["\x1b[2J"]: not \u2028 this'


def test_yaml_is_1_2() -> None:
    pool = parse("  models: [no, on, 2024-01-01, 1:30, =]", "  engine: !!str vllm").pools[0]
    assert pool.models == ("no", "on", "2024-01-01", "1:30", "=")


def test_whole_numbers_are_numbers_too() -> None:
    weighting = parse("  weighting: {cool_down_min_s: 1, cool_down_cap_s: 1e2}").pools[0].weighting
    assert (weighting.cool_down_min_s, weighting.cool_down_cap_s) == (1.0, 100.0)


def test_zero_is_zero_and_not_the_default() -> None:
    pool = parse(
        "  weighting: {hysteresis: 0, floor_share: 0, kv_limit: 0}",
        "  balancing: {active_request_bias: 0}",
        "  retries: {attempts: 0, status_codes: []}",
        "ext_proc: {sample_percent: 0, full_stream_percent: 0}",
        "listen: {cors_allow_origins: []}",
    )
    weighting, retries = pool.pools[0].weighting, pool.pools[0].retries
    assert (weighting.hysteresis, weighting.floor_share, weighting.kv_limit) == (0, 0, 0)
    assert (pool.pools[0].balancing.active_request_bias, retries.attempts, retries.status_codes) == (0, 0, ())
    assert (pool.ext_proc.sample_percent, pool.ext_proc.full_stream_percent) == (0, 0)
    assert pool.listen.cors_allow_origins == ()


def test_aliases_and_merges() -> None:
    policy = parse(
        "  weighting: &calm {hysteresis: 0.2, kv_limit: 0.9}",
        "  models: [one]",
        "- name: two",
        "  models: [two]",
        "  endpoints: [&gpu {address: gpu-2:8000, capacity: 2}, {<<: *gpu, address: gpu-3:8000}]",
        "  weighting: *calm",
        "- name: three",
        "  models: [three]",
        "  endpoints: [*gpu]",
        "  weighting: {<<: [{kv_limit: 0.5}, *calm], hysteresis: 0.3}",
    )
    assert policy.pools[0].weighting == policy.pools[1].weighting
    assert [endpoint.capacity for endpoint in policy.pools[1].endpoints] == [2, 2]
    assert (policy.pools[2].weighting.kv_limit, policy.pools[2].weighting.hysteresis) == (0.5, 0.3)


def nested_aliases(link: str) -> str:
    """Ten lines that stand for 9 to the power of 9 values; `link` holds nine aliases of the line before."""
    lines = (f"n{i}: &n{i} {link.format(', '.join([f'*n{i - 1}'] * 9))}\n" for i in range(1, 10))
    return "n0: &n0 {x: 1}\n" + "".join(lines)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (nested_aliases("[{}]"), "repeat too much"),
        (nested_aliases("{{<<: [{}]}}"), "repeat too much"),
        ("a: &a {<<: [*a, *a]}\n", "repeat themselves"),
        ("a: &a\n  b: *a\n", "repeat themselves"),
        ("[" * 10_000, "nested too deeply"),
        ("- " * 10_000, "nested too deeply"),
        ("".join("  " * depth + "a:\n" for depth in range(500)), "nested too deeply"),
    ],
    ids=["lists", "merges", "merge of itself", "alias of itself", "brackets", "dashes", "indentation"],
)
def test_bombs_are_refused(text: str, why: str) -> None:
    with pytest.raises(PolicyError, match=why):
        parse_policy(text, "bomb.yaml")


def test_the_same_endpoint_may_be_in_two_pools() -> None:
    policy = parse("  models: [chat]", "- {name: embed, models: [embed], endpoints: [{address: gpu-1:8000}]}")
    assert policy.pools[0].endpoints == policy.pools[1].endpoints


@pytest.mark.parametrize(
    ("first", "second", "reached"),
    [
        ("llama", "llama-70b", True),
        ("llama-70b", "llama*", True),
        ("llama*", "qwen", True),
        ("llama*", "llama-70b", False),
        ("*", "anything*", False),
        ("llama-?b", "llama-7b", False),
        ("llama-?b", "llama-*b", True),
        ("[lq]*", "l*", True),
        ("[lq]*", "[lq]*", False),
        ("*b", "[ab]", True),
        ("Llama", "llama", True),
    ],
)
def test_a_pool_that_is_never_reached_is_refused(first: str, second: str, reached: bool) -> None:
    lines = (
        f'  models: ["{first}"]',
        f'- {{name: two, models: ["{second}"], endpoints: [{{address: gpu-2:8000}}]}}',
    )
    if reached:
        assert len(parse(*lines).pools) == 2
    else:
        with pytest.raises(PolicyError, match="is never reached"):
            parse(*lines)


@pytest.mark.parametrize(
    ("listen", "services", "clash"),
    [
        ("", "", False),
        ("port: 18000", "", True),
        ("address: 0.0.0.0, port: 18000", "", True),
        ("address: 10.0.0.1, port: 18000", "", False),
        ('address: "::", port: 18000', 'xds: "[::1]:18000"', True),
        ("", "admin: localhost:18000", True),
        ("", "xds: unix:/run/a, ext_proc: unix:/run/a", True),
        ("", "xds: unix:/run/a, ext_proc: unix:/run/b", False),
    ],
)
def test_sockets_that_cannot_both_listen(listen: str, services: str, clash: bool) -> None:
    lines = f"listen: {{{listen}}}", f"services: {{{services}}}"
    if clash:
        with pytest.raises(PolicyError, match="cannot share an address"):
            parse(*lines)
    else:
        parse(*lines)
