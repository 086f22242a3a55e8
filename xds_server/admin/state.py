"""What the metrics and the admin pages read."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from trimtab.policy.model import Policy
from trimtab.pool import PoolDecision
from xds_server.ads.server import ClientRow
from xds_server.discovery import SourceStatus


@dataclass(slots=True)
class AdminState:
    """The control plane owns it and swaps its parts whole; pages and metrics only read."""

    policy: Policy
    decisions: dict[str, PoolDecision] = field(default_factory=dict)  # the latest one of each pool
    splits: dict[str, Mapping[str, float]] = field(default_factory=dict)  # who gets which part, of pools with fallbacks
    ready: bool = False  # a first snapshot was published
    draining: bool = False  # this process and its Envoy are about to end
    clients: Callable[[], Sequence[ClientRow]] = list  # the Envoys connected now
    sources: Callable[[], Mapping[str, SourceStatus]] = dict  # of the pools that are discovered
    unresolved: Callable[[str], Sequence[str]] = lambda pool: ()  # names of a pool's endpoints that have no address
