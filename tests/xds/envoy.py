"""A bare Envoy that takes everything from one xDS server."""

from pathlib import Path

from tests.harness import EnvoyProcess

_BOOTSTRAP = """
node: {{id: {node}, cluster: test}}
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
  - name: layer
    rtds_layer:
      name: layer
      rtds_config: {{ads: {{}}, resource_api_version: V3, initial_fetch_timeout: 2s}}
cluster_manager:
  load_stats_config:
    api_type: GRPC
    transport_api_version: V3
    grpc_services: [{{envoy_grpc: {{cluster_name: xds}}}}]
static_resources:
  clusters:
  - name: xds
    type: STATIC
    connect_timeout: 1s
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config:
          http2_protocol_options: {{connection_keepalive: {{interval: {ping_s}s, timeout: 5s}}}}
    load_assignment:
      cluster_name: xds
      endpoints:
      - lb_endpoints:
        - endpoint: {{address: {{socket_address: {{address: 127.0.0.1, port_value: {port}}}}}}}
"""


def envoy(node: str, xds_port: int, directory: Path, *, delta: bool, ping_s: float = 5) -> EnvoyProcess:
    """An Envoy that is not yet started; `directory` is its own."""
    directory.mkdir(parents=True, exist_ok=True)
    admin = directory / "admin.sock"
    api_type = "DELTA_GRPC" if delta else "GRPC"
    bootstrap = _BOOTSTRAP.format(node=node, admin=admin, api_type=api_type, port=xds_port, ping_s=ping_s)
    return EnvoyProcess(bootstrap, f"unix:{admin}", directory)
