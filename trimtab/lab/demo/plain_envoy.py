"""An Envoy without Trimtab, for comparison: the same time-outs, retries and limits, but weights that never change."""

import json
from collections.abc import Sequence
from typing import Any

from trimtab.policy.model import Retries, split_host_port

_EXTENSIONS = "type.googleapis.com/envoy.extensions"
_NO_LIMIT = 1_000_000


def plain_bootstrap(
    *,
    port: int,
    admin_port: int,
    endpoints: Sequence[str],
    weights: Sequence[int],
    policy: str,
    retries: Retries,
) -> str:
    """A static bootstrap with one listener on loopback. `policy` is Envoy's name of the load-balancing policy."""
    thresholds = dict.fromkeys(("max_connections", "max_pending_requests", "max_requests", "max_retries"), _NO_LIMIT)
    cluster = {
        "name": "engines",
        "type": "STATIC",
        "lb_policy": policy.upper(),
        "connect_timeout": "1s",
        "circuit_breakers": {"thresholds": [thresholds]},
        "load_assignment": {
            "cluster_name": "engines",
            "endpoints": [
                {
                    "lb_endpoints": [
                        {
                            "endpoint": {"address": _address(*split_host_port(endpoint))},
                            "load_balancing_weight": weight,
                        }
                        for endpoint, weight in zip(endpoints, weights, strict=True)
                    ]
                }
            ],
        },
    }
    route = {
        "match": {"prefix": "/"},
        "route": {"cluster": "engines", "timeout": "0s", "retry_policy": _retry_policy(retries)},
    }
    connection_manager = {
        "@type": f"{_EXTENSIONS}.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "trimtab",
        "stream_idle_timeout": "0s",
        "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [route]}]},
        "http_filters": [
            {
                "name": "envoy.filters.http.router",
                "typed_config": {"@type": f"{_EXTENSIONS}.filters.http.router.v3.Router"},
            }
        ],
    }
    listener = {
        "name": "clients",
        "address": _address("127.0.0.1", port),
        "per_connection_buffer_limit_bytes": 16 << 20,
        "filter_chains": [
            {
                "filters": [
                    {
                        "name": "envoy.filters.network.http_connection_manager",
                        "typed_config": connection_manager,
                    }
                ]
            }
        ],
    }
    return json.dumps(
        {
            "admin": {"address": _address("127.0.0.1", admin_port)},
            "static_resources": {"listeners": [listener], "clusters": [cluster]},
        }
    )


def _retry_policy(retries: Retries) -> dict[str, Any]:
    return {
        "retry_on": "connect-failure,refused-stream,reset-before-request,reset,retriable-status-codes",
        "retriable_status_codes": list(retries.status_codes),
        "num_retries": retries.attempts,
        "retry_host_predicate": [
            {
                "name": "envoy.retry_host_predicates.previous_hosts",
                "typed_config": {"@type": f"{_EXTENSIONS}.retry.host.previous_hosts.v3.PreviousHostsPredicate"},
            }
        ],
        "host_selection_retry_max_attempts": 200,
        "retry_back_off": {
            "base_interval": f"{retries.back_off_base_ms / 1000}s",
            "max_interval": f"{retries.back_off_max_ms / 1000}s",
        },
    }


def _address(host: str, port: int) -> dict[str, Any]:
    return {"socket_address": {"address": host, "port_value": port}}
