import os
import shutil
from pathlib import Path

import pytest

from trimtab.policy import Policy, PolicyError, PolicyFile, parse_policy


def text(pool: str) -> str:
    return f"version: 1\npools:\n- name: {pool}\n  endpoints:\n  - address: gpu-1:8000\n"


def name(policy: Policy | None) -> str | None:
    return policy.pools[0].name if policy else None


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "policy.yaml"
    path.write_text(text("first"))
    return path


@pytest.fixture
def file(path: Path) -> PolicyFile:
    file = PolicyFile(path)
    file.load()
    return file


def refused(file: PolicyFile) -> str:
    with pytest.raises(PolicyError) as raised:
        file.poll()
    return str(raised.value)


def test_unchanged_content_is_no_news(file: PolicyFile, path: Path) -> None:
    assert file.current == parse_policy(text("first"), "")
    path.write_text(text("first"))
    os.utime(path, (1, 1))
    assert file.poll() is None


def test_changed_content_is_taken_once(file: PolicyFile, path: Path) -> None:
    path.write_text(text("second"))
    assert name(file.poll()) == name(file.current) == "second"
    assert file.poll() is None


def test_a_change_that_keeps_size_and_time(file: PolicyFile, path: Path) -> None:
    before = path.stat()
    path.write_text(text("third"))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert name(file.poll()) == "third"


def test_an_atomic_rename(file: PolicyFile, path: Path) -> None:
    new = path.with_suffix(".new")
    new.write_text(text("second"))
    new.replace(path)
    assert name(file.poll()) == "second"


def test_a_bad_file_is_said_once_and_the_last_good_stays(file: PolicyFile, path: Path) -> None:
    path.write_text("version: 1\npools: []\n")
    assert refused(file).startswith(f"{path}:2:8: pools: ")
    assert file.poll() is None
    assert name(file.current) == "first"

    path.write_text("version: 1\npools: {}\n")
    assert "not an empty mapping" in refused(file)
    assert file.poll() is None

    path.write_text(text("second"))
    assert name(file.poll()) == "second"


def test_going_back_to_the_last_good_is_news_after_a_bad_one(file: PolicyFile, path: Path) -> None:
    path.write_text("")
    refused(file)
    path.write_text(text("first"))
    assert name(file.poll()) == "first"
    assert file.poll() is None


def test_a_write_in_pieces_does_not_stick(file: PolicyFile, path: Path) -> None:
    whole = text("second")
    for end in (0, 5, len(whole) - 12):
        path.write_text(whole[:end])
        refused(file)
        assert name(file.current) == "first"
    path.write_text(whole)
    assert name(file.poll()) == "second"


def test_deleted_and_made_again(file: PolicyFile, path: Path) -> None:
    path.unlink()
    assert refused(file) == f"{path}:1:1: the file cannot be read: no such file or directory"
    assert file.poll() is None
    assert name(file.current) == "first"

    path.write_text(text("second"))
    assert name(file.poll()) == "second"


def test_a_directory_in_its_place(file: PolicyFile, path: Path) -> None:
    path.unlink()
    path.mkdir()
    assert "is a directory" in refused(file)
    path.rmdir()
    assert "no such file" in refused(file)
    assert file.poll() is None


def test_a_config_map_swaps_its_symlink(tmp_path: Path) -> None:
    """Kubernetes mounts `policy.yaml -> ..data/policy.yaml`, and renames a new `..data` over the old one."""

    def publish(version: str, pool: str) -> None:
        (tmp_path / version).mkdir()
        (tmp_path / version / "policy.yaml").write_text(text(pool))
        (tmp_path / "..tmp").symlink_to(version)
        (tmp_path / "..tmp").replace(tmp_path / "..data")

    publish("..v1", "first")
    (tmp_path / "policy.yaml").symlink_to("..data/policy.yaml")
    file = PolicyFile(tmp_path / "policy.yaml")
    assert name(file.load()) == "first"

    publish("..v2", "second")
    shutil.rmtree(tmp_path / "..v1")
    assert name(file.poll()) == "second"
    assert file.poll() is None


def test_a_bad_file_at_start(path: Path) -> None:
    path.write_text("nonsense")
    file = PolicyFile(path)
    with pytest.raises(PolicyError):
        file.load()
    assert file.current is None
    assert file.poll() is None

    path.write_text(text("second"))
    assert name(file.poll()) == "second"


def test_load_reads_again_whatever_was_seen(file: PolicyFile, path: Path) -> None:
    assert name(file.load()) == "first"
    path.write_text("")
    refused(file)
    with pytest.raises(PolicyError):
        file.load()
    assert name(file.current) == "first"
