"""Run drills: each with a stack of its own, under a steady load."""

import asyncio
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from trimtab.lab.drill.drills import DEADLINE_MS, DRILLS, Drill
from trimtab.lab.drill.figures import Figures, Sample, Times, figures
from trimtab.lab.drill.stack import MODEL, Stack, running
from trimtab.lab.progress import told
from trimtab.sim.client import Result, replay
from trimtab.sim.trace import Request

RATE_PER_S = 20.0

_CALM_S = 4.0
_PERIOD_S = 0.1
_PATIENCE_S = 15.0  # what has no answer so long after the last request is lost
_PROMPT_TOKENS, _OUTPUT_TOKENS = 200, 30

# The defaults, but for times that would make a drill long.
_POOL: Mapping[str, Any] = {
    "gate": {"enabled": True, "first_token_deadline_ms": DEADLINE_MS},
    "weighting": {"breaker_open_s": 5, "slow_start_points_per_s": 50},
}


async def drill(names: Sequence[str], seed: int, console: Console) -> dict[str, Figures]:
    """Run the drills `names` one after the other. Raises PartFailedError, EnvoyFailedError, EnvoyNotFoundError."""
    found = {}
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        whole = bar.add_task("drills", total=sum(_length_s(DRILLS[name]) for name in names))
        for name in names:
            bar.update(whole, description=f"{name}: {DRILLS[name].about}")
            with told(name, DRILLS[name].about, console):
                found[name] = await run_one(DRILLS[name], seed, lambda seconds: bar.advance(whole, seconds))
    return found


def _length_s(drill: Drill) -> float:
    return _CALM_S + drill.for_s + drill.after_s


async def run_one(drill: Drill, seed: int, advance: Callable[[float], None] = lambda seconds: None) -> Figures:
    """Run one drill; `advance` is told how many seconds of it are over. Raises as `drill` does."""
    with tempfile.TemporaryDirectory(prefix="trimtab-drill-") as folder:
        async with running(Path(folder), {**_POOL, **drill.pool}) as stack:
            samples: list[Sample] = []
            began = time.monotonic()
            async with asyncio.TaskGroup() as tasks:
                load = tasks.create_task(_load(stack, _length_s(drill), seed))
                watch = tasks.create_task(_watch(stack, began, samples, advance))
                await asyncio.sleep(_CALM_S)
                struck_at = time.monotonic() - began
                await drill.strike(stack)
                await asyncio.sleep(drill.for_s)
                healed_at = time.monotonic() - began
                await drill.heal(stack)
                await asyncio.wait([load])
                watch.cancel()
            return figures(drill, Times(struck_at, healed_at), load.result(), samples, stack.addresses)


async def _load(stack: Stack, seconds: float, seed: int) -> list[Result]:
    trace = [
        Request(arrival_s=number / RATE_PER_S, prompt_tokens=_PROMPT_TOKENS, output_tokens=_OUTPUT_TOKENS)
        for number in range(round(RATE_PER_S * seconds))
    ]
    return await replay(stack.url, trace, model=MODEL, seed=seed, cut_after_last_s=_PATIENCE_S)


async def _watch(stack: Stack, began: float, samples: list[Sample], advance: Callable[[float], None]) -> None:
    """Envoy's counts, as they grow on over a restart of Envoy."""
    base: dict[str, int] = {}
    last: Mapping[str, int] = {}
    while True:
        await asyncio.sleep(_PERIOD_S)
        advance(_PERIOD_S)
        counts = await stack.attempts()
        if counts is None:
            continue
        if any(count < last.get(address, 0) for address, count in counts.items()):
            base = {address: base.get(address, 0) + count for address, count in last.items()}
        last = counts
        summed = {address: count + base.get(address, 0) for address, count in counts.items()}
        samples.append(Sample(time.monotonic() - began, summed))
