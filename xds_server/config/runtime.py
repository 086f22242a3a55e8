"""The runtime layer: numbers that Envoy reads anew for each request."""

from collections.abc import Mapping

from envoy_data_plane.envoy.service.runtime.v3 import Runtime
from envoy_data_plane.google.protobuf import Struct

from trimtab.datapath import WATCH_SHARE_KEY
from xds_server.config.upstream_filters import fraction

RUNTIME_NAME = "trimtab"


def runtime(watch_percent: float, entries: Mapping[str, object]) -> Runtime:
    """The layer of the bootstrap's name, with the share of streamed attempts that are watched (0 to 100).

    `entries` are those of pools.
    """
    share = fraction(watch_percent)
    return Runtime(
        name=RUNTIME_NAME,
        layer=Struct.from_dict(
            {WATCH_SHARE_KEY: {"numerator": share.numerator, "denominator": share.denominator.name}, **entries}
        ),
    )
