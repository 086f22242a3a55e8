"""Where a retry could only go back to the endpoint that it comes from."""

from collections.abc import Mapping
from typing import Any

import pytest

from tests.unit.xds_server.made import endpoint
from trimtab.policy.model import Pool
from trimtab.pool import PoolDecision
from xds_server.config.retry_limits import retry_limits

LIMIT = {"circuit_breakers.chat.default.max_retries": 1}
WORKS: dict[str, Any] = {"takes_work": True}
OUT: dict[str, Any] = {"takes_work": False}


def limits_of(endpoints: list[dict[str, Any]]) -> Mapping[str, object]:
    made = tuple(endpoint(f"10.0.0.{i}:80", "gpu", **changes) for i, changes in enumerate(endpoints, 1))
    pool = Pool.model_validate({"name": "chat", "endpoints": [{"address": one.id.address} for one in made]})
    return retry_limits(pool, PoolDecision("chat", 1.0, made, changed=True))


@pytest.mark.parametrize(
    ("endpoints", "limits"),
    [
        ([WORKS, WORKS], {}),
        ([WORKS], LIMIT),
        ([WORKS, OUT], LIMIT),
        ([WORKS, OUT, OUT], LIMIT),
    ],
)
def test_a_limit_stands_while_one_endpoint_has_all_work(
    endpoints: list[dict[str, Any]], limits: dict[str, int]
) -> None:
    assert limits_of(endpoints) == limits


def test_what_waits_at_an_endpoint_that_is_out_has_somewhere_to_go() -> None:
    assert limits_of([WORKS, OUT | {"in_flight": 1}]) == {}
    assert limits_of([WORKS | {"in_flight": 1}, OUT]) == LIMIT
