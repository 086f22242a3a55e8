"""Waiting for a condition with a deadline."""

import asyncio
import time
from collections.abc import Callable


async def until(condition: Callable[[], object], deadline_s: float = 10) -> None:
    """Return as soon as `condition()` is true; fail after `deadline_s`."""
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, "the condition did not come true in time"
        await asyncio.sleep(0.005)
