"""The drills themselves; `trimtab drill` runs them at their full length."""

from dataclasses import replace

import pytest

from trimtab.lab.drill.drills import DRILLS
from trimtab.lab.drill.run import run_one

pytestmark = pytest.mark.integration


async def test_an_error_in_place_of_the_first_token_reaches_no_client() -> None:
    seen = await run_one(replace(DRILLS["error-event"], for_s=3, after_s=1), seed=0)
    assert (seen.lost, seen.outcomes) == (0, {})
    assert seen.requests > 60
    assert seen.attempts is not None
    assert seen.attempts < 1.3


@pytest.mark.soak
async def test_a_killed_engine_breaks_what_it_has_and_no_more() -> None:
    seen = await run_one(replace(DRILLS["refuse"], for_s=3, after_s=3), seed=0)
    assert seen.lost == 0
    assert set(seen.outcomes) <= {"cut"}
    assert seen.drain_s is not None
