"""What is said of long work where no terminal shows its progress."""

import pytest
from rich.console import Console

from trimtab.lab.progress import told


def test_lines_go_to_standard_error_unless_a_terminal_shows_progress(capsys: pytest.CaptureFixture[str]) -> None:
    with told("hang", "an engine hangs", Console(force_terminal=True)):
        pass
    assert capsys.readouterr() == ("", "")
    with told("hang", "an engine hangs", Console(force_terminal=False)):
        assert capsys.readouterr() == ("", "hang: an engine hangs\n")
    assert capsys.readouterr() == ("", "hang: ended after 0 s\n")
