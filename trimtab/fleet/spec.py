"""What discovery says of an endpoint."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class EndpointSpec:
    """One endpoint as discovery found it."""

    address: str  # ip:port, as Envoy will report it
    name: str  # as written in the policy
    capacity: float | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
