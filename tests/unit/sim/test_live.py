"""A simulated engine in real time."""

import asyncio

import pytest

from tests.unit.sim.conftest import QUICK
from trimtab.sim.live import LiveEngine
from trimtab.sim.requests import FinishReason


class Taker:
    """A client of an engine."""

    tokens = 3
    reason: FinishReason = "length"

    def __init__(self) -> None:
        self.got = 0

    def on_tokens(self, generated: int) -> None:
        self.got = generated


@pytest.mark.parametrize("steps", range(1, 7))
async def test_a_client_may_leave_at_the_very_moment_of_a_token(steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    engine, taker, looks = LiveEngine(QUICK, "tiny"), Taker(), iter(range(1_000))
    with monkeypatch.context() as clock:
        clock.setattr(asyncio.get_running_loop(), "time", lambda: 100.0 + next(looks) * QUICK.step0_ms / 1000)
        (sequence,) = engine.submit(10, [taker])
        for _ in range(steps):
            engine.refusal()
        engine.cancel(sequence)
        got = taker.got
        engine.refusal()
        engine.refusal()
    engine.close()
    assert (taker.got, engine.running) == (got, 0)
