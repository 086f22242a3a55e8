import logging
from pathlib import Path

import pytest

from xds_server.kept_file import default_state_path
from xds_server.state_file import StateFile


def test_what_is_written_is_read(tmp_path: Path) -> None:
    file = StateFile(tmp_path / "new" / "state.json")
    file.write({"chat": {"at": 1.0}})
    assert file.read() == {"chat": {"at": 1.0}}
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["state.json"]


def test_no_file_is_no_memory(tmp_path: Path) -> None:
    assert StateFile(tmp_path / "state.json").read() == {}


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"format": 99, "pools": {}}', '{"format": 1, "pools": []}', "\x00\xff", "[" * 100_000]
)
def test_what_cannot_be_used_is_said_and_done_without(
    tmp_path: Path, content: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "state.json"
    path.write_bytes(content.encode("latin-1"))
    assert StateFile(path).read() == {}
    assert str(path) in caplog.text


def test_a_file_that_cannot_be_written_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    (tmp_path / "file").write_text("")
    file = StateFile(tmp_path / "file" / "state.json")
    file.write({})
    file.write({})
    assert len(caplog.records) == 1


def test_each_policy_has_a_file_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path))
    first, second = default_state_path(Path("a.yaml")), default_state_path(Path("b.yaml"))
    assert first != second
    assert first.is_relative_to(tmp_path)
