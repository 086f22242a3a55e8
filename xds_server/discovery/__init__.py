"""Where endpoints are found, and at which addresses."""

from xds_server.discovery.discovery import Discovery
from xds_server.discovery.follower import SourceStatus
from xds_server.discovery.metrics import DiscoveryCollector

__all__ = ["Discovery", "DiscoveryCollector", "SourceStatus"]
