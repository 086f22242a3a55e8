"""The picture of a replay."""

from array import array
from pathlib import Path

import pytest

from trimtab.lab.replay import plot
from trimtab.process.errors import UserError
from trimtab.sim.replay.jobs import Made


def test_a_folder_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist"):
        plot.check_plot(tmp_path / "no" / "plot.png")


def test_a_format_that_no_picture_has_is_told_before_the_replay(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"cannot be \.doc, only one of .*png"):
        plot.check_plot(tmp_path / "plot.doc")


def test_a_picture_is_drawn(tmp_path: Path) -> None:
    made = Made(0, {}, array("d", [0.0, 1.0, 2.0]), array("d", [0.1, 0.0, 30.0]))
    plot.plot({"one": [made], "other": [made, made]}, "a title", tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
