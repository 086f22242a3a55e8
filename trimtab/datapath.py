"""Names that the configuration pushed to Envoy and the readers of what Envoy then reports have in common.

`xds_server` writes them and `ext_proc` reads them; neither imports the other, so they live here.
"""

from enum import StrEnum
from typing import Final

EXT_PROC_CLUSTER: Final = "trimtab_ext_proc"
"""The bootstrap's cluster of the ext_proc service, which receives the access log too."""

ROLE_HEADER: Final = "role"
"""The gRPC metadata by which the ext_proc service tells its filters apart; its values are `Role`."""

FIRST_BYTE_TAG: Final = "first_byte_us"
"""The access log's tag: microseconds from an attempt's start to the first byte of its answer's body."""

RETRY_HEADER: Final = "x-trimtab-retry"
"""The mark of an answer that is worth another attempt. The router obeys it; no client sees it."""

REASON_HEADER: Final = "x-trimtab-reason"
"""Why the gateway made an answer itself; one that an engine made has none."""

WATCH_SHARE_KEY: Final = "trimtab.watch"
"""The runtime key of the share of attempts with a streamed answer that are watched."""

ERROR_STATUS: Final = (429, 500, 502, 503, 504, 529)
"""The statuses that can mean that an endpoint is full, broken or leaving."""

METADATA_NAMESPACE: Final = "trimtab"
"""Where Envoy keeps what is known of a request: dynamic metadata."""

REFUSED_KEY: Final = "refused"
"""The key in it that is true of a request that ends with an engine's own error, though Envoy tells it."""


class Role(StrEnum):
    """Which of the upstream filters opened an ext_proc stream."""

    WATCH = "watch"  # a streamed answer, as it passes; replies are ignored
    WATCH_GATED = "watch-gated"  # the same, while the gate holds it
    GATE = "gate"  # the headers of a streamed answer; held until the stream is ended
    REJECT = "reject"  # an error answer with its body; held until the stream is ended
    REJECT_HEADERS = "reject-headers"  # the headers only of an error answer with a long body


class Asked(StrEnum):
    """What the body of a request asked for: the last part of a route's name, after the pool's."""

    STREAM = "stream"
    UNARY = "unary"
    UNKNOWN = "unknown"  # no JSON body that could be read


def cluster_name(pool: str, length_class: str | None = None) -> str:
    """The name of Envoy's cluster of a pool, or of one of its length classes; its assignment has the same."""
    return pool if length_class is None else f"{pool}/{length_class}"


def pool_of_cluster(name: str) -> str:
    """The pool of a cluster that `cluster_name` named."""
    return name.partition("/")[0]


def route_name(pool: str, asked: Asked) -> str:
    """The name of the route to `pool`, as the ext_proc workers will hear of it."""
    return f"{pool}/{asked}"


def pool_of_route(name: str) -> str:
    """The pool that the requests of a route ask for, whichever serves them."""
    return name.partition("/")[0]


def asked_by_route(name: str) -> Asked:
    """What the requests of a route asked for. Raises ValueError for a name that `route_name` did not make."""
    return Asked(name.rpartition("/")[2])
