"""`trimtab replay` as a user meets it."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

POLICY = """\
version: 1
pools:
- name: chat
  endpoints: [{address: 127.0.0.1:8001}]
  scoring: {strategy: predicted_ttft}
  interval_ms: INTERVAL
"""


def trimtab(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "trimtab.cli", "replay", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_report_has_the_figures_of_every_strategy(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    small = ("--fleet", "fleet3", "--requests", "120", "--seeds", "2", "--strategies", "round_robin,predicted_ttft")
    done = trimtab(*small, "--report", str(report))
    assert (done.returncode, done.stderr) == (0, "")
    assert "round_robin" in done.stdout
    written = json.loads(report.read_text())
    assert list(written["strategies"]) == ["round_robin", "predicted_ttft"]
    assert (written["seeds"], written["fleet"]) == (2, "fleet3")
    for strategy in written["strategies"].values():
        assert strategy["ttft_ms"].keys() == {"mean", "p50", "p90", "p99"}
        assert strategy["success"] == 1.0
        assert sum(strategy["share"].values()) == 120
        assert strategy["output_tokens_per_s"] > 0
    again = json.loads(trimtab(*small, "--json", "--jobs", "1").stdout)
    assert again == written


def test_a_bundled_trace_is_replayed_faster_and_as_markdown() -> None:
    done = trimtab(
        *("--trace", "azure23_conv", "--requests", "100", "--speed", "2", "--fleet", "homog8"),
        *("--strategies", "round_robin,least_request", "--base", "least_request", "--markdown"),
    )
    assert done.returncode == 0
    assert "100 requests of azure23_conv × 2 on homog8 (8 engines)" in done.stdout
    assert "| `least_request` |" in done.stdout
    assert "| 1.00 | 1.00 | 1.00 | 1.00 |" in done.stdout, "the base by itself"
    *_, headings, _, row, _ = done.stdout.splitlines()
    engines = dict(zip(headings.split("|")[2:10], row.split("|")[2:10], strict=True))
    assert [name.strip() for name in engines] == [f"a100-{number}" for number in range(1, 9)]
    assert sum(float(cell.split("/")[0]) for cell in engines.values()) == pytest.approx(100, abs=0.5)


def test_a_large_fleet_is_shown_kind_by_kind_with_the_spread_within() -> None:
    done = trimtab("--fleet", "homog64", "--requests", "100", "--strategies", "round_robin", "--markdown")
    assert "| strategy | 64 a100 |" in done.stdout
    assert re.search(r"\| `round_robin` \| 100\.0 / \d+ ±\d+ \|", done.stdout)


def test_two_policies_are_compared(tmp_path: Path) -> None:
    for name, interval in (("old", "250"), ("new", "100")):
        (tmp_path / f"{name}.yaml").write_text(POLICY.replace("INTERVAL", interval))
    done = trimtab(
        *("--fleet", "fleet3", "--requests", "100", "--json"),
        *("--compare", str(tmp_path / "old.yaml"), str(tmp_path / "new.yaml")),
    )
    strategies = json.loads(done.stdout)["strategies"]
    assert list(strategies) == ["old", "new"]
    assert strategies["new"]["pushes"] > strategies["old"]["pushes"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ("--strategies", "health,nope"),
            "--strategies: unknown strategy 'nope'; there are round_robin, random, least_request",
        ),
        (("--strategies", ","), "--strategies: no strategy is named"),
        (("--fleet", "nope"), "no such file, and no bundled fleet; there are fleet3"),
        (("--trace", "nope"), "--trace nope: no such file, and no bundled trace; there are azure23_code"),
        (("--base", "nope", "--requests", "5"), "--base nope: it is none of round_robin"),
        (("--trace", "azure23_conv", "--rate", "5"), "--rate is for a fleet's own workload"),
        (("--fleet", "row_d6", "--rate", "5"), "--rate: the workload of row_d6 is a closed loop of clients"),
        (("--policy", "nope.yaml"), "nope.yaml:1:1: the file cannot be read"),
        (("--report", "/nope/report.json"), "--report /nope/report.json: the folder /nope does not exist"),
    ],
)
def test_a_mistake_is_one_line(arguments: tuple[str, ...], said: str) -> None:
    done = trimtab(*arguments)
    assert done.returncode == 2
    assert said in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
