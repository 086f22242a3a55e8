"""A bare Envoy that takes everything from one xDS server."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.harness import EnvoyProcess

_BOOTSTRAP = """
node: {{id: "{node}", cluster: test}}
admin: {{address: {{pipe: {{path: "{admin}"}}}}}}
dynamic_resources:
  ads_config:
    api_type: {api_type}
    transport_api_version: V3
    set_node_on_first_message_only: true
    grpc_services:
    - envoy_grpc:
        cluster_name: xds
        retry_policy: {{retry_back_off: {{base_interval: 0.1s, max_interval: 0.3s}}}}
  lds_config: {{ads: {{}}, resource_api_version: V3, initial_fetch_timeout: 2s}}
  cds_config: {{ads: {{}}, resource_api_version: V3, initial_fetch_timeout: 2s}}
layered_runtime:
  layers:
  - name: static
    static_layer: {{envoy.features.fail_on_any_deprecated_feature: {strict}}}
  - name: layer
    rtds_layer:
      name: layer
      rtds_config: {{ads: {{}}, resource_api_version: V3, initial_fetch_timeout: 2s}}
{load_reports}
static_resources:
  clusters:
  - name: xds
    type: STATIC
    connect_timeout: 1s
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config:
          # Far more often than in the bundled bootstrap: the server must not take offence.
          http2_protocol_options: {{connection_keepalive: {{interval: 0.1s, timeout: 10s}}}}
    load_assignment:
      cluster_name: xds
      endpoints:
      - lb_endpoints:
        - endpoint: {{address: {{socket_address: {{address: 127.0.0.1, port_value: {port}}}}}}}
"""


_LOAD_REPORTS = """
cluster_manager:
  load_stats_config:
    api_type: GRPC
    transport_api_version: V3
    grpc_services: [{envoy_grpc: {cluster_name: xds}}]
"""


@asynccontextmanager
async def envoy(
    node: str,
    xds_port: int,
    directory: Path,
    *,
    delta: bool,
    strict: bool = False,
    load_reports: bool = True,
) -> AsyncIterator[EnvoyProcess]:
    """A running Envoy. A `strict` one refuses resources with deprecated fields, which others accept."""
    own = directory / node
    own.mkdir()
    admin = own / "admin.sock"
    bootstrap = _BOOTSTRAP.format(
        node=node,
        admin=admin,
        api_type="DELTA_GRPC" if delta else "GRPC",
        port=xds_port,
        strict=str(strict).lower(),
        load_reports=_LOAD_REPORTS if load_reports else "",
    )
    process = EnvoyProcess(bootstrap, f"unix:{admin}", own)
    try:
        await process.start()
        yield process
    finally:
        await process.stop()


async def weights_in_force(process: EnvoyProcess, cluster: str) -> dict[int, int]:
    """Port → weight, as this Envoy balances now."""
    for status in json.loads(await process.admin_get("/clusters?format=json"))["cluster_statuses"]:
        if status["name"] == cluster:
            return {
                host["address"]["socket_address"]["port_value"]: host["weight"]
                for host in status.get("host_statuses", [])
            }
    return {}
