"""Virtual time beside real Envoy."""

import io

import pytest
from rich.console import Console

from trimtab.lab import validate


@pytest.mark.integration
@pytest.mark.alone
def test_both_sides_are_run_and_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(validate, "ARMS", {"trimtab": "predicted_ttft"})
    monkeypatch.setattr(validate, "CUT_AFTER_LAST_S", 8.0)
    screen = io.StringIO()
    report = validate.validate(5, 1, Console(file=screen, width=120))
    row = report["strategies"]["predicted_ttft"]
    for side in ("real", "virtual"):
        assert row[side]["success"] == 1.0
        assert sum(row[side]["share"].values()) == pytest.approx(31, abs=3)
    # A few requests on a busy machine: the medians must be of one kind, no more.
    assert 0.3 < row["real"]["ttft_ms"]["p50"] / row["virtual"]["ttft_ms"]["p50"] < 3
    assert report["ranking_agrees"]
    assert "predicted_ttft virtual" in screen.getvalue()
    chances = row["runs_ms"]["p99"]
    assert (len(chances["real"]), len(chances["virtual"])) == (1, 20)
    assert chances["virtual"] == sorted(chances["virtual"])
    assert report["in_range"]["p99"] == row["in_range"]["p99"]
