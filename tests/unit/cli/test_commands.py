"""The command line as a user meets it: what is printed, and with which exit code."""

import json
import re
import socket
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
from ruamel.yaml import YAML

POLICY = """\
version: 1
pools:
- name: chat
  endpoints:
  - address: 127.0.0.1:8001
    capacity: 10
  - address: 127.0.0.1:8002
  scoring:
    strategy: health
  weighting:
    cool_down_min_s: 3
"""


def trimtab(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "trimtab.cli", *arguments], capture_output=True, text=True, timeout=30, check=False
    )


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    file = tmp_path / "policy.yaml"
    file.write_text(POLICY)
    return file


def test_a_good_policy_is_ok(policy: Path) -> None:
    done = trimtab("check", str(policy))
    assert (done.returncode, done.stdout) == (0, f"{policy}: ok: 1 pool, 2 endpoints\n")


@pytest.mark.parametrize(
    ("good", "bad", "place", "hint"),
    [
        ("endpoints:", "endpionts:", "4:3", 'did you mean "endpoints"?'),
        ("cool_down_min_s: 3", "cool_down_min_ms: 3000", "11:5", '"cool_down_min_s"'),
        ("127.0.0.1:8002", "127.0.0.1:8001", "7:14", "127.0.0.1:8001"),
        ("strategy: health", "strategy: healthy", "9:15", '"health"'),
    ],
)
def test_a_bad_policy_is_one_line_with_its_place(policy: Path, good: str, bad: str, place: str, hint: str) -> None:
    policy.write_text(POLICY.replace(good, bad))
    done = trimtab("check", str(policy))
    assert done.returncode == 2
    first, *others = done.stderr.splitlines()
    assert first.startswith(f"{policy}:{place}: ")
    assert hint in first
    assert all(line.startswith(f"{policy}:") for line in others)


def test_check_warns_of_files_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret")
    file = tmp_path / "policy.yaml"
    file.write_text(
        "version: 1\npools:\n- name: chat\n"
        f"  discovery: {{file: {{path: {tmp_path}/none.yaml}}}}\n"
        f"  signals: {{scrape_token_file: {tmp_path}/token}}\n"
        f"  probe: {{interval_s: 5, token_file: {tmp_path}}}\n"
    )
    done = trimtab("check", str(file))
    assert (done.returncode, done.stdout) == (0, f"{file}: ok: 1 pool, 0 endpoints listed, 1 pool with discovery\n")
    assert done.stderr.splitlines() == [
        f"{file}:{place}: warning: the file cannot be read now: {why}; put it there, or fix the path"
        for place, why in (
            ("4:28: pools[0].discovery.file.path", "no such file or directory"),
            ("6:38: pools[0].probe.token_file", "is a directory"),
        )
    ]


def test_an_empty_pool_is_one_line_with_its_place(policy: Path) -> None:
    policy.write_text("version: 1\npools:\n- name: chat\n  endpoints: []\n")
    done = trimtab("up", "-p", str(policy))
    assert done.returncode == 2
    assert re.fullmatch(rf"{re.escape(str(policy))}:4:14: pools\[0\]\.endpoints: .+\n", done.stderr)


def test_an_address_in_use_is_said_in_one_line(policy: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        policy.write_text(f"{POLICY}services:\n  xds: {address}\nstate_file: null\n")
        done = trimtab("serve", "-p", str(policy))
    assert done.returncode == 2
    assert f"services.xds {address} cannot be bound" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_standby_needs_an_address(policy: Path) -> None:
    done = trimtab("standby", "-p", str(policy))
    assert done.returncode == 2
    assert done.stderr.startswith(f"{policy}:1:1: services.standby: ")
    assert done.stderr.count("\n") == 1


def test_the_bootstrap_has_the_policys_addresses(policy: Path) -> None:
    policy.write_text(f"{POLICY}services:\n  xds: unix:/run/trimtab/xds.sock\n")
    done = trimtab("bootstrap", "-p", str(policy), "--node-id", "edge-1")
    bootstrap = YAML(typ="safe").load(done.stdout)
    assert done.returncode == 0
    assert bootstrap["node"]["id"] == "edge-1"
    clusters = {cluster["name"]: cluster for cluster in bootstrap["static_resources"]["clusters"]}
    (group,) = clusters["trimtab_xds"]["load_assignment"]["endpoints"]
    assert group["lb_endpoints"][0]["endpoint"]["address"] == {"pipe": {"path": "/run/trimtab/xds.sock"}}


def test_the_schema_takes_the_example(tmp_path: Path) -> None:
    schema = json.loads(trimtab("schema").stdout)
    example = trimtab("example").stdout
    jsonschema.validate(YAML(typ="safe", pure=True).load(example), schema)
    file = tmp_path / "example.yaml"
    file.write_text(example)
    assert trimtab("check", str(file)).returncode == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["up", "-p", "/nowhere.yaml"], "/nowhere.yaml:1:1: "),
        (["demo", "--arms", "least_requests"], "least_requests"),
        (["demo", "--trace", "/nowhere.csv"], "/nowhere.csv"),
    ],
)
def test_a_users_mistake_is_no_traceback(arguments: list[str], said: str) -> None:
    done = trimtab(*arguments)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_a_unix_socket_in_use_is_not_taken_over(tmp_path: Path, policy: Path) -> None:
    path = tmp_path / "xds.sock"
    with socket.socket(socket.AF_UNIX) as taken:
        taken.bind(str(path))
        taken.listen()
        policy.write_text(f"{POLICY}services:\n  xds: unix:{path}\nstate_file: null\n")
        done = trimtab("serve", "-p", str(policy))
    assert done.returncode == 2
    assert f"services.xds unix:{path} cannot be bound" in done.stderr


def test_check_takes_the_policy_as_other_commands_do(policy: Path) -> None:
    assert trimtab("check", "-p", str(policy)).stdout == trimtab("check", str(policy)).stdout
    for arguments in ([], [str(policy), "-p", str(policy)]):
        done = trimtab("check", *arguments)
        assert (done.returncode, done.stderr) == (2, "name one policy: trimtab check POLICY.yaml\n")


def test_each_of_several_envoys_has_its_own_admin_pages(policy: Path) -> None:
    done = trimtab("bootstrap", "-p", str(policy), "--admin", "127.0.0.1:9902")
    bootstrap = YAML(typ="safe").load(done.stdout)
    assert bootstrap["admin"]["address"] == {"socket_address": {"address": "127.0.0.1", "port_value": 9902}}
    done = trimtab("bootstrap", "-p", str(policy), "--admin", "localhost:9902")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith('--admin "localhost" must be an IP address')


def test_an_address_of_another_machine_is_said_with_its_fix(policy: Path) -> None:
    policy.write_text(f"{POLICY}services:\n  xds: 203.0.113.9:18000\nstate_file: null\n")
    done = trimtab("serve", "-p", str(policy))
    assert done.returncode == 2
    assert "services.xds 203.0.113.9:18000 cannot be bound: this machine has no such address; take one" in done.stderr
