"""The compose file against the code: there is no Docker engine in the tests."""

from pathlib import Path
from typing import Any

import pytest
import typer.main
from ruamel.yaml import YAML

from trimtab.cli.commands import app
from trimtab.policy import Policy, parse_policy
from trimtab.sim import server
from xds_server.config.bootstrap import bundled_bootstrap, render_bootstrap

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = YAML(typ="safe").load((ROOT / "docker-compose.yml").read_text())
    return loaded


@pytest.fixture(scope="module")
def policy(compose: dict[str, Any]) -> Policy:
    return parse_policy(compose["configs"]["policy"]["content"], "docker-compose.yml")


def test_our_commands_are_ones_that_we_have(compose: dict[str, Any]) -> None:
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    ours = [service for service in compose["services"].values() if "build" in service and "entrypoint" not in service]
    assert {service["command"][0] for service in ours} == {"xds", "ext-proc"}
    for service in ours:
        name, *arguments = service["command"]
        parsed = commands[name].make_context(name, list(arguments))
        (config,) = service["configs"]
        assert str(parsed.params["policy"]) == config["target"]
        assert config["source"] in compose["configs"]


def test_the_engines_are_the_policys_endpoints(compose: dict[str, Any], policy: Policy) -> None:
    engines = {}
    for name, service in compose["services"].items():
        if name.startswith("engine-"):
            _, _, module, *arguments = service["entrypoint"]
            assert module == server.__name__
            parsed = server._arguments([*arguments, *service["command"]])
            assert parsed.model == policy.pools[0].name
            engines[f"{name}:{parsed.port[0]}"] = parsed
    assert engines.keys() == {endpoint.address for endpoint in policy.pools[0].endpoints}


def test_envoy_runs_the_bundled_bootstrap_with_the_policys_addresses(compose: dict[str, Any], policy: Policy) -> None:
    envoy = compose["services"]["envoy"]
    source, target, mode = envoy["volumes"][0].split(":")
    assert (ROOT / source).read_text() == bundled_bootstrap()
    assert mode == "ro"
    assert target in envoy["command"]
    yaml = YAML(typ="safe")
    plain, rendered = yaml.load(bundled_bootstrap()), yaml.load(render_bootstrap(policy))
    assert rendered["static_resources"] == plain["static_resources"]
    for name in ("envoy", "xds", "ext-proc", "prometheus"):
        assert compose["services"][name]["network_mode"] == "service:edge"


def test_what_is_published_is_listened_on(compose: dict[str, Any], policy: Policy) -> None:
    published = dict(port.split(":")[-2:] for port in compose["services"]["edge"]["ports"])
    admin_port = policy.services.admin.rpartition(":")[2]
    assert published.items() >= {(str(policy.listen.port), str(policy.listen.port)), (admin_port, admin_port)}
    assert policy.listen.address == "0.0.0.0"
    prometheus = YAML(typ="safe").load(compose["configs"]["prometheus"]["content"])
    (target,) = prometheus["scrape_configs"][0]["static_configs"][0]["targets"]
    assert target.rpartition(":")[2] == admin_port


def test_the_image_runs_trimtab_and_keeps_its_state(compose: dict[str, Any]) -> None:
    dockerfile = (ROOT / "Dockerfile").read_text()
    assert 'ENTRYPOINT ["trimtab"]' in dockerfile
    (volume,) = compose["services"]["xds"]["volumes"]
    assert f"STATE_DIRECTORY={volume.partition(':')[2]}\n" in dockerfile


def test_the_namespace_is_of_a_container_that_is_never_restarted_for_another(compose: dict[str, Any]) -> None:
    edge = compose["services"]["edge"]
    assert edge["entrypoint"] == ["sleep", "infinity"]
    assert "depends_on" not in edge


def test_who_is_waited_for_has_a_health_check(compose: dict[str, Any]) -> None:
    for service in compose["services"].values():
        for name, wanted in service.get("depends_on", {}).items():
            assert wanted == {"condition": "service_healthy"}
            assert "healthcheck" in compose["services"][name]


def test_health_checks_ask_where_something_answers(compose: dict[str, Any], policy: Policy) -> None:
    services = policy.services
    asked = {
        "xds": services.admin.rpartition(":")[2] + "/readyz",
        "ext-proc": services.ext_proc,
        "envoy": services.envoy_admin.replace(":", "/"),
        "engine-cpu": "127.0.0.1:8000/health",
    }
    for name, place in asked.items():
        kind, *command = compose["services"][name]["healthcheck"]["test"]
        assert kind == "CMD"
        assert place in command[-1]
        if command[0] == "python":
            compile(command[-1], name, "exec")
