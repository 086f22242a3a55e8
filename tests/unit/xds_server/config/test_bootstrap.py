"""The bootstrap: valid for the real Envoy in every form, with the cures of the crash that belong in it."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from trimtab.policy.model import Policy
from trimtab.process.envoy_binary import find_envoy
from xds_server.config.bootstrap import bundled_bootstrap, render_bootstrap


def policy(**changes: Any) -> Policy:
    return Policy.model_validate(
        {"version": 1, "pools": [{"name": "p", "endpoints": [{"address": "127.0.0.1:8000"}]}], **changes}
    )


def parsed(text: str) -> Any:
    return YAML(typ="safe").load(text)


def clusters(text: str) -> dict[str, Any]:
    return {cluster["name"]: cluster for cluster in parsed(text)["static_resources"]["clusters"]}


def endpoints(cluster: dict[str, Any]) -> list[Any]:
    return [
        entry["endpoint"]["address"]
        for locality in cluster["load_assignment"]["endpoints"]
        for entry in locality["lb_endpoints"]
    ]


UNIX = {"xds": "unix:/run/xds.sock", "ext_proc": "unix:/run/ext.sock", "envoy_admin": "unix:/run/admin.sock"}
PROTOCOLS = {
    "bundled": bundled_bootstrap,
    "default": lambda: render_bootstrap(policy()),
    "unix sockets": lambda: render_bootstrap(policy(services=UNIX)),
    "state of the world": lambda: render_bootstrap(policy(), delta=False),
    "workers": lambda: render_bootstrap(policy(ext_proc={"workers": 3})),
    "names": lambda: render_bootstrap(policy(services={"xds": "xds.internal:18000"})),
    "standby": lambda: render_bootstrap(policy(services={"standby": "127.0.0.1:18002"})),
    "standby beside a name": lambda: render_bootstrap(
        policy(services={"xds": "xds.internal:18000", "standby": "127.0.0.1:18002"})
    ),
    "standby on unix sockets": lambda: render_bootstrap(policy(services={**UNIX, "standby": "unix:/run/standby.sock"})),
    "IPv6": lambda: render_bootstrap(policy(services={"xds": "[::1]:18000", "ext_proc": "[::1]:18001"})),
}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_first_cure_is_in_a_layer_that_nothing_overrides(protocol: str) -> None:
    layers = parsed(PROTOCOLS[protocol]())["layered_runtime"]["layers"]
    static = next(layer["static_layer"] for layer in layers if layer["name"] == "static")
    assert static["envoy.reloadable_features.grpc_side_stream_flow_control"] is False


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_second_cure_is_on_the_cluster_of_ext_proc(protocol: str) -> None:
    cluster = clusters(PROTOCOLS[protocol]())["trimtab_ext_proc"]
    assert cluster["per_connection_buffer_limit_bytes"] >= 64 << 20
    assert cluster["circuit_breakers"]["thresholds"][0]["max_requests"] >= 100_000


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_an_observer_that_stopped_is_noticed_within_a_second_and_a_half(protocol: str) -> None:
    """What the gate holds waits so long."""
    cluster = clusters(PROTOCOLS[protocol]())["trimtab_ext_proc"]
    (options,) = cluster["typed_extension_protocol_options"].values()
    pings = options["explicit_http_config"]["http2_protocol_options"]["connection_keepalive"]
    assert sum(float(pings[key].removesuffix("s")) for key in ("interval", "timeout")) <= 1.5
    assert cluster["common_lb_config"]["healthy_panic_threshold"]["value"] == 0
    (check,) = cluster["health_checks"]
    assert "grpc_health_check" in check


@pytest.mark.integration
@pytest.mark.parametrize("protocol", PROTOCOLS)
async def test_envoy_takes_it(protocol: str, tmp_path: Path) -> None:
    file = tmp_path / "bootstrap.yaml"
    file.write_text(PROTOCOLS[protocol]())
    process = await asyncio.create_subprocess_exec(
        find_envoy(),
        "--mode",
        "validate",
        "-c",
        file,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output = (await process.communicate())[0].decode()
    assert process.returncode == 0, output
    assert "OK" in output
    assert "warning" not in output


def test_the_bundled_file_has_the_default_addresses() -> None:
    assert parsed(bundled_bootstrap()) == parsed(render_bootstrap(policy()))


def test_addresses_node_and_protocol_are_the_callers() -> None:
    text = render_bootstrap(
        policy(services={"xds": "10.0.0.1:1", "ext_proc": "unix:/e.sock", "envoy_admin": "unix:/a.sock"}),
        node_id="edge-7",
        delta=False,
    )
    config = parsed(text)
    assert config["node"]["id"] == "edge-7"
    assert config["dynamic_resources"]["ads_config"]["api_type"] == "GRPC"
    assert config["admin"]["address"] == {"pipe": {"path": "/a.sock", "mode": 0o600}}
    assert endpoints(clusters(text)["trimtab_xds"]) == [{"socket_address": {"address": "10.0.0.1", "port_value": 1}}]
    assert endpoints(clusters(text)["trimtab_ext_proc"]) == [{"pipe": {"path": "/e.sock"}}]
    assert "# " in text


def test_a_host_name_is_resolved() -> None:
    found = clusters(render_bootstrap(policy(services={"xds": "trimtab:18000"})))
    assert found["trimtab_xds"]["type"] == "STRICT_DNS"
    assert found["trimtab_ext_proc"]["type"] == "STATIC"


def test_the_standby_is_a_second_choice_that_is_known_to_be_well() -> None:
    cluster = clusters(PROTOCOLS["standby"]())["trimtab_xds"]
    first, second = cluster["load_assignment"]["endpoints"]
    assert (first.get("priority", 0), second["priority"]) == (0, 1)
    assert [address["socket_address"]["port_value"] for address in endpoints(cluster)] == [18000, 18002]
    assert cluster["health_checks"]
    assert "health_checks" not in clusters(PROTOCOLS["default"]())["trimtab_xds"]


def test_workers_get_connections_of_their_own() -> None:
    one = endpoints(clusters(render_bootstrap(policy()))["trimtab_ext_proc"])
    four = endpoints(clusters(render_bootstrap(policy(ext_proc={"workers": 4})))["trimtab_ext_proc"])
    assert len(one) == 1
    assert len(four) >= 4 * 4
    assert set(map(str, four)) == set(map(str, one))
