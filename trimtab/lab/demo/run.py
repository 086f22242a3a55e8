"""The demo: real Envoys, simulated engines, a real trace, and one engine that becomes full half way."""

import asyncio
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console
from rich.live import Live

from trimtab.lab.demo.arms import ARMS, FLEET, MODEL, Arm, running
from trimtab.lab.demo.show import comparison, engine_table, live_view
from trimtab.observation.kinds import Verdict
from trimtab.process.envoy_binary import envoy_version, find_envoy
from trimtab.process.errors import PartFailedError, UserError
from trimtab.sim.client import Result, replay, summarise
from trimtab.sim.trace import Request, cut, scale

CUT_AFTER_LAST_S = 15.0
_FULL_ENGINE = 1  # the second engine, the 4090: the A100 alone can bear the load, with care
_FULL_FROM, _FULL_FOR = 0.5, 0.2  # of the demo's length
_REFRESH_S = 0.5
_LINE_PERIOD_S = 10.0  # where there is no terminal
_SETTLE_ROUNDS = 6
SPEED = 0.8  # about half of what the engines can do together


async def demo(
    trace: Sequence[Request],
    seconds: float,
    names: Sequence[str],
    seed: int,
    console: Console,
) -> dict[str, Any]:
    """Replay a piece of `trace` through every arm at the same time. Returns the report.

    `seed` chooses the piece and the texts. Raises PartFailedError, EnvoyFailedError, EnvoyNotFoundError.
    """
    binary = find_envoy()
    version = envoy_version(binary)
    piece = _piece(trace, seconds, seed)
    console.print(engine_table())
    console.print(
        f"{len(piece)} requests in {seconds:g} s, {sum(r.prompt_tokens for r in piece):,} prompt tokens; "
        f"Envoy {version}; all arms run at the same time. From {_FULL_FROM * seconds:g} s on the "
        f"{FLEET[_FULL_ENGINE][0].name} refuses everything with 429 for {_FULL_FOR * seconds:g} s.",
        highlight=False,
    )
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="trimtab-demo-")))
        session = await stack.enter_async_context(aiohttp.ClientSession())
        with console.status("starting engines and Envoys"):
            arms = [await stack.enter_async_context(running(name, folder)) for name in names]
        summaries = await _replay_all(session, arms, piece, seconds, seed, console)
        observed = await _observed(session, arms)
    result = {
        "arms": {
            name: {
                "requests": summary["requests"],
                "succeeded": summary["succeeded"],
                "ttft_ms": {key: summary["ttft_ms"][key] for key in ("mean", "p50", "p99")},
                "output_tokens_per_s": summary["output_tokens_per_s"],
                "share": summary["share"],
            }
            for name, summary in summaries.items()
        },
        "observed": observed,
        "envoy_version": version,
    }
    console.print(comparison(summaries))
    return result


def _piece(trace: Sequence[Request], seconds: float, seed: int) -> list[Request]:
    """`seconds` of the trace, another piece for each seed, and never less than two thirds of what was asked for."""
    slowed = scale(trace, speed=SPEED)
    length = slowed[-1].arrival_s
    start = (seed * seconds) % max(length - seconds, 1.0)
    moved = [replace(request, arrival_s=request.arrival_s - start) for request in slowed if request.arrival_s >= start]
    piece = cut(moved, seconds)
    if not piece:
        raise UserError(f"the trace has no request within {seconds:g} s")
    return piece


async def _replay_all(
    session: aiohttp.ClientSession,
    arms: Sequence[Arm],
    piece: Sequence[Request],
    seconds: float,
    seed: int,
    console: Console,
) -> dict[str, dict[str, Any]]:
    async with asyncio.TaskGroup() as tasks:
        replays = {arm.name: tasks.create_task(_replay(arm, piece, seed)) for arm in arms}
        faults = [tasks.create_task(_fill(session, arm, seconds)) for arm in arms]
        view = tasks.create_task(_show(session, arms, seconds, console))
        await asyncio.wait([*replays.values(), *faults])
        view.cancel()
    return {name: summarise(task.result()) for name, task in replays.items()}


async def _replay(arm: Arm, piece: Sequence[Request], seed: int) -> list[Result]:
    def note(result: Result) -> None:
        if not result.token_s and result.outcome is None:
            arm.results.append(result)

    return await replay(arm.url, piece, model=MODEL, seed=seed, cut_after_last_s=CUT_AFTER_LAST_S, on_event=note)


async def _fill(session: aiohttp.ClientSession, arm: Arm, seconds: float) -> None:
    """Make one engine refuse with 429 for a while."""
    await asyncio.sleep(_FULL_FROM * seconds)
    fault = {"kind": "saturate_429", "for_s": _FULL_FOR * seconds}
    async with session.post(f"http://{arm.engines[_FULL_ENGINE].address}/control/fault", json=fault) as answer:
        if answer.status != 200:
            raise PartFailedError(f"the engine refused the fault: {await answer.text()}")


async def _show(session: aiohttp.ClientSession, arms: Sequence[Arm], seconds: float, console: Console) -> None:
    loop = asyncio.get_running_loop()
    started = loop.time()
    watched = next((arm for arm in arms if arm.admin is not None), None)
    full = f"{watched.engines[_FULL_ENGINE].kind if watched else arms[0].engines[_FULL_ENGINE].kind}"
    if not console.is_terminal:
        while True:
            await asyncio.sleep(_LINE_PERIOD_S)
            console.print(_note(loop.time() - started, seconds, full), highlight=False)
    with Live(console=console, refresh_per_second=4, transient=True) as live:
        while True:
            elapsed = loop.time() - started
            endpoints = await _endpoints(session, watched) if watched else []
            live.update(live_view(arms, endpoints, elapsed, seconds, _note(elapsed, seconds, full)))
            await asyncio.sleep(_REFRESH_S)


async def _endpoints(session: aiohttp.ClientSession, arm: Arm) -> Sequence[Mapping[str, Any]]:
    (pool,) = (await arm.page(session, "/endpoints"))["pools"].values()
    found: Sequence[Mapping[str, Any]] = pool["endpoints"]
    return found


def _note(elapsed: float, seconds: float, full: str) -> str:
    if elapsed > seconds:
        return f"waiting for the last answers, {seconds + CUT_AFTER_LAST_S - elapsed:.0f} s at most"
    if 0 <= elapsed - _FULL_FROM * seconds < _FULL_FOR * seconds:
        return f'{full} answers every request with 429 "KV cache exhausted", in every arm'
    return f"{elapsed:.0f} of {seconds:g} s"


async def _observed(session: aiohttp.ClientSession, arms: Sequence[Arm]) -> dict[str, Any]:
    """What Trimtab saw, by its own metrics; zeros if its arm does not run."""
    sums = {"trimtab_attempts_total": 0, "trimtab_ttft_seconds_count": 0}
    rejections = dict.fromkeys((str(verdict) for verdict in Verdict), 0)
    for arm in arms:
        if arm.admin is None:
            continue
        # What the cut-off ended is told by Envoy's next access log.
        for _ in range(_SETTLE_ROUNDS):
            if not any(endpoint["in_flight"] for endpoint in await _endpoints(session, arm)):
                break
            await asyncio.sleep(_REFRESH_S)
        for family in text_string_to_metric_families(await arm.page(session, "/metrics")):
            for sample in family.samples:
                if sample.name in sums:
                    sums[sample.name] += int(sample.value)
                elif sample.name == "trimtab_rejections_total":
                    rejections[sample.labels["verdict"]] += int(sample.value)
    return {
        "attempts": sums["trimtab_attempts_total"],
        "ttft_samples": sums["trimtab_ttft_seconds_count"],
        "rejections": rejections,
    }


def known_arms(names: str) -> list[str]:
    """Split and check `--arms`. Raises UserError."""
    found = [name.strip() for name in names.split(",") if name.strip()]
    if not found or (unknown := [name for name in found if name not in ARMS]):
        raise UserError(
            f"--arms {names!r}: unknown {', '.join(unknown) if found else 'arm'}; there are {', '.join(ARMS)}"
        )
    return list(dict.fromkeys(found))
