"""The model beside the measured engine."""

from pathlib import Path

from trimtab.sim.calibration import compare, table

DOCUMENT = Path(__file__).parents[3] / "docs" / "results" / "engine-model.md"


def test_every_measured_number_is_met_within_25_percent() -> None:
    far_off = [row for row in compare() if abs(row.error) > 0.25]
    assert not far_off


def test_the_document_shows_the_table_of_today() -> None:
    assert table(compare()) in DOCUMENT.read_text()
