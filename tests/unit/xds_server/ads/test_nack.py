"""The reasons for a refusal as Envoy 1.40 wrote them, and the line that is left of each."""

import pytest

from xds_server.ads.nack import one_line

_WEIGHT = (
    'goo.gle/debugproto  \ncluster_name: "a"\nendpoints {\n  lb_endpoints {\n  }\n}\n: '
    "Proto constraint validation failed (ClusterLoadAssignmentValidationError.Endpoints[0]: "
    "embedded message failed validation | caused by LocalityLbEndpointsValidationError.LbEndpoints[0]: "
    "embedded message failed validation | caused by LbEndpointValidationError.LoadBalancingWeight: "
    "value must be greater than or equal to 1)"
)


@pytest.mark.parametrize(
    ("message", "line"),
    [
        (_WEIGHT, "LbEndpointValidationError.LoadBalancingWeight: value must be greater than or equal to 1"),
        (
            "Invalid duration: Expected positive duration: goo.gle/debugproto   \nseconds: -1\n",
            "Invalid duration: Expected positive duration: seconds: -1",
        ),
        (
            "Error adding/updating listener(s) x: Didn't find a registered implementation for 'nope' "
            "with type URL: 'foo.Bar'\n",
            "Error adding/updating listener(s) x: Didn't find a registered implementation for 'nope' "
            "with type URL: 'foo.Bar'",
        ),
        (
            "Only a single wildcard domain is permitted in route routes",
            "Only a single wildcard domain is permitted in route routes",
        ),
        ("", "no reason given"),
        (" \n ", "no reason given"),
        ("x" * 5_000, "x" * 299 + "…"),
    ],
)
def test_one_useful_line_is_left(message: str, line: str) -> None:
    assert one_line(message) == line
