"""What is observed, against what the simulated engines know of themselves."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import quantiles
from typing import Any

import pytest

from tests.harness import until
from tests.system.load import failures, steady
from tests.system.rig import observed
from tests.system.stack import Engines, policy_for, running
from trimtab.fleet.observation import AttemptEnded, AttemptStarted, FirstToken, Observation
from trimtab.sim.client import replay

pytestmark = [pytest.mark.integration, pytest.mark.alone]


def ttfts(seen: Sequence[Observation]) -> dict[tuple[str, str], float]:
    """TTFT by address and request id, from the start of the attempt to its first token."""
    starts = {(s.address, s.request_id): s.at for s in seen if isinstance(s, AttemptStarted)}
    return {
        (s.address, s.request_id): s.at - starts[s.address, s.request_id] for s in seen if isinstance(s, FirstToken)
    }


async def truth(engines: Engines) -> dict[tuple[str, str], Mapping[str, Any]]:
    """The engines' own account of all chats, by address and request id."""
    return {
        (address, attempt["request_id"]): attempt
        for number, address in enumerate(engines.addresses)
        for attempt in await engines.attempts(number)
        if attempt["path"] == "/v1/chat/completions"
    }


async def test_ttft_is_the_engines_own(tmp_path: Path) -> None:
    """At 50 req/s: median error at most 5 ms, P99 at most 50 ms, and every attempt counted."""
    engines = Engines(tmp_path, ["a100", "a100", "rtx4090"])
    async with running(engines), observed(tmp_path, policy_for(engines)) as (plane, observer, _):
        before = sum(isinstance(s, AttemptEnded) for s in plane.seen)
        results = await replay(observer.url, steady(50, 6), model="sim", seed=1)
        await until(lambda: sum(isinstance(s, AttemptEnded) for s in plane.seen) - before >= len(results), 5, "ends")
        known = await truth(engines)
        seen = ttfts(plane.seen)
        differences = [row.view.lease_difference for row in plane.decisions["sim"].endpoints]
    assert failures(results) == []
    assert seen.keys() == known.keys()
    errors = sorted(
        abs(seen[key] - (attempt["first_token_at"] - attempt["arrived_at"])) for key, attempt in known.items()
    )
    percentiles = quantiles(errors, n=100)
    assert percentiles[49] <= 0.005, f"median error {1000 * percentiles[49]:.1f} ms"
    assert percentiles[98] <= 0.050, f"P99 of the error {1000 * percentiles[98]:.1f} ms"
    assert differences == [0, 0, 0]


async def test_pings_and_the_role_are_no_tokens(tmp_path: Path) -> None:
    """Comments for 3 s, a role chunk, 0.3 s later a token: the TTFT is the token's. By its first byte it would be 0."""
    engines = Engines(tmp_path, ["a100"])
    async with running(engines), observed(tmp_path, policy_for(engines)) as (plane, observer, _):
        await engines.fault(0, "ping_first", seconds=3, role_lead_s=0.3)
        results = await replay(observer.url, steady(4, 1), model="sim", seed=1)
        await until(lambda: sum(isinstance(s, FirstToken) for s in plane.seen) == len(results), 5, "first tokens")
        known = await truth(engines)
        seen = ttfts(plane.seen)
        by_first_byte = [s.first_byte_s for s in plane.seen if isinstance(s, AttemptEnded) and s.streamed]
    assert failures(results) == []
    for key, attempt in known.items():
        assert seen[key] == pytest.approx(attempt["first_token_at"] - attempt["arrived_at"], abs=0.05)
        assert seen[key] > 3.3
    assert max(by_first_byte) < 1
