"""The demo as a user runs it."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.integration, pytest.mark.alone]


async def demo(folder: Path, arms: list[str], seconds: float, seed: int) -> dict[str, Any]:
    report = folder / f"report-{seed}.json"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "trimtab.cli", "demo", "--seconds", str(seconds), "--seed", str(seed)),
        *("--arms", ",".join(arms), "--report", str(report)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said = (await process.communicate())[0].decode()
    assert process.returncode == 0, said
    found: dict[str, Any] = json.loads(report.read_text())
    return found


def check_win(arms: dict[str, Any]) -> None:
    for other in arms.keys() - {"trimtab"}:
        assert arms["trimtab"]["ttft_ms"]["p99"] < arms[other]["ttft_ms"]["p99"]
        assert arms["trimtab"]["succeeded"] >= arms[other]["succeeded"]


async def test_the_report_and_the_comparison(tmp_path: Path) -> None:
    wanted = ["least_request", "trimtab"]
    report = await demo(tmp_path, wanted, 10, 0)
    assert list(report) == ["arms", "observed", "envoy_version"]
    arms = report["arms"]
    assert list(arms) == wanted
    for arm in arms.values():
        assert arm["requests"] == arms["trimtab"]["requests"] > 40
        assert arm["ttft_ms"].keys() == {"mean", "p50", "p99"}
        assert arm["output_tokens_per_s"] > 0
        assert arm["share"].keys() <= {"a100", "rtx4090", "cpu"}
    assert sum(arms["trimtab"]["share"].values()) >= arms["trimtab"]["succeeded"]
    observed = report["observed"]
    assert observed["ttft_samples"] == arms["trimtab"]["requests"]
    # The refused attempts were tried again, and one request asked for the list of models.
    assert observed["attempts"] == arms["trimtab"]["requests"] + observed["rejections"]["saturated"] + 1
    assert observed["rejections"]["saturated"] > 0
    check_win(arms)


@pytest.mark.soak
@pytest.mark.parametrize("seed", [0, 1, 2])
async def test_it_beats_least_request_and_capacity_weights_over_three_seeds(tmp_path: Path, seed: int) -> None:
    check_win((await demo(tmp_path, ["least_request", "capacity", "trimtab"], 45, seed))["arms"])
