"""What discovery says of an endpoint."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class EndpointSpec:
    """One endpoint as discovery found it."""

    address: str  # ip:port, as Envoy will report it
    name: str  # as written in the policy, or as its source calls it
    capacity: float | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    uid: str = ""  # of the process behind the address, such as a pod's; another one is another endpoint
    out: str = ""  # why it is to take no new work, e.g. "terminating"; empty if it may
