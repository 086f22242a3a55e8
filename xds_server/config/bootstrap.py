"""The bootstrap file: what an Envoy must know before it can ask the control plane for the rest."""

from importlib.resources import files
from io import StringIO
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from trimtab.policy.model import OwnAddress, Policy, ServiceAddress, is_name, split_host_port

_CHECKOUT = Path(__file__).parents[2] / "envoy" / "bootstrap.yaml"

# A gRPC connection stays with the worker process that accepted it, so several workers need several
# connections: enough of them that the kernel's draw is even.
_CONNECTIONS_PER_WORKER = 8

# At its start Envoy waits for the first answer or the timeout; one failure counts then, later it takes two.
_HEALTH_CHECK: dict[str, Any] = {
    "grpc_health_check": {},
    "interval": "1s",
    "no_traffic_interval": "1s",
    "timeout": "0.5s",
    "unhealthy_threshold": 2,
    "healthy_threshold": 1,
}


def bundled_bootstrap() -> str:
    """The bootstrap as it is shipped, with the default addresses."""
    packaged = files("trimtab") / "data" / "bootstrap.yaml"
    return (packaged if packaged.is_file() else _CHECKOUT).read_text(encoding="utf-8")


def render_bootstrap(
    policy: Policy, *, node_id: str = "trimtab-envoy", admin: OwnAddress | None = None, delta: bool = True
) -> str:
    """The bundled bootstrap with the policy's addresses, as YAML, its comments kept.

    `node_id` names the Envoy to the control plane, and `admin` is used in place of the policy's
    `services.envoy_admin`: give each Envoy its own. `delta` chooses incremental xDS, else the state of the world is
    sent with each change.
    """
    yaml = YAML()
    yaml.width = 120
    config = yaml.load(bundled_bootstrap())
    config["node"]["id"] = node_id
    config["dynamic_resources"]["ads_config"]["api_type"] = "DELTA_GRPC" if delta else "GRPC"
    config["admin"]["address"] = _address(admin or policy.services.envoy_admin, mode=0o600)
    clusters = {cluster["name"]: cluster for cluster in config["static_resources"]["clusters"]}
    connections = _CONNECTIONS_PER_WORKER * policy.ext_proc.workers if policy.ext_proc.workers > 1 else 1
    _set_endpoint(clusters["trimtab_xds"], policy.services.xds)
    _set_endpoint(clusters["trimtab_ext_proc"], policy.services.ext_proc, connections)
    if policy.services.standby is not None:
        _add_standby(clusters["trimtab_xds"], policy.services.standby)
    out = StringIO()
    yaml.dump(config, out)
    return out.getvalue()


def _set_endpoint(cluster: dict[str, Any], address: ServiceAddress, connections: int = 1) -> None:
    # Envoy keeps one connection to each endpoint it is given, also to one that is given twice.
    endpoints = [{"endpoint": {"address": _address(address)}} for _ in range(connections)]
    cluster["load_assignment"]["endpoints"] = [{"lb_endpoints": endpoints}]
    cluster["type"] = "STRICT_DNS" if is_name(address) else "STATIC"


def _add_standby(cluster: dict[str, Any], address: OwnAddress) -> None:
    """Let Envoy take the standby while the control plane is not well, as a second choice of the same cluster."""
    cluster["load_assignment"]["endpoints"].append(
        {"priority": 1, "lb_endpoints": [{"endpoint": {"address": _address(address)}}]}
    )
    cluster["health_checks"] = [_HEALTH_CHECK]


def _address(address: ServiceAddress, *, mode: int | None = None) -> dict[str, Any]:
    if address.startswith("unix:"):
        return {"pipe": {"path": address.removeprefix("unix:")} | ({} if mode is None else {"mode": mode})}
    host, port = split_host_port(address)
    return {"socket_address": {"address": host, "port_value": port}}
