"""The drills: what is done to the stack, how it is undone, and what must be seen of it."""

import asyncio
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trimtab.lab.drill.stack import ENGINES, Part, Stack

Deed = Callable[[Stack], Awaitable[None]]

DEADLINE_MS = 2000
"""The first-token deadline of the drilled pool."""

_ALL = tuple(range(ENGINES))
_FLAP_S = 1.0


@dataclass(frozen=True, slots=True)
class Bounds:
    """What is promised of a drill; None: nothing."""

    lost: int | None = 0  # requests without a whole and right answer, those not counted that `spares` names
    added_ms: float | None = None  # the worst time to first token, above the median of the calm before
    drain_s: float | None = None  # until the struck endpoints get no more attempts
    return_s: float | None = None  # from the healing until they have half of their share again
    attempts: float | None = None  # per request, from the blow on
    stampede: float | None = None  # the largest share in the 5 s after the healing, in fair shares


@dataclass(frozen=True, slots=True)
class Drill:
    """One blow: it falls after the calm, lasts `for_s`, and is undone, under load all the time."""

    about: str
    strike: Deed
    heal: Deed
    bounds: Bounds
    struck: tuple[int, ...] = ()  # the engines that must lose their work
    spares: str = ""  # an outcome that is no loss, because it is what is promised: "cut", "http 429"
    for_s: float = 8.0
    after_s: float = 20.0  # watched after the healing
    pool: Mapping[str, Any] = field(default_factory=dict)  # policy fields of the drilled pool, beside those of all


def _fault(kind: str, *engines: int, **numbers: float | str) -> tuple[Deed, Deed]:
    """A fault that the engines know themselves."""

    async def strike(stack: Stack) -> None:
        await asyncio.gather(*(stack.fault(number, kind, **numbers) for number in engines))

    async def heal(stack: Stack) -> None:
        await asyncio.gather(*(stack.fault(number, "none") for number in engines))

    return strike, heal


def _stopped(part: Callable[[Stack], Part]) -> tuple[Deed, Deed]:
    async def strike(stack: Stack) -> None:
        part(stack).send(signal.SIGSTOP)

    async def heal(stack: Stack) -> None:
        part(stack).send(signal.SIGCONT)

    return strike, heal


def _killed(part: Callable[[Stack], Part]) -> tuple[Deed, Deed]:
    async def strike(stack: Stack) -> None:
        await part(stack).kill()

    async def heal(stack: Stack) -> None:
        await part(stack).start()

    return strike, heal


def _control_plane(stack: Stack) -> Part:
    return stack.control_plane


def _worker(stack: Stack) -> Part:
    return stack.worker


async def _kill_engine(stack: Stack) -> None:
    await stack.engines[0].kill()


async def _black_hole(stack: Stack) -> None:
    await stack.black_hole(0)


async def _start_engine(stack: Stack) -> None:
    await stack.start_engine(0)


async def _flap(stack: Stack) -> None:
    for _ in range(3):
        await stack.engines[0].kill()
        await asyncio.sleep(_FLAP_S)
        await stack.start_engine(0)
        await asyncio.sleep(_FLAP_S)
    await stack.engines[0].kill()


async def _restart_control_plane(stack: Stack) -> None:
    await stack.control_plane.stop()
    await stack.control_plane.start()


async def _restart_envoy_alone(stack: Stack) -> None:
    await stack.control_plane.kill()
    await stack.stop_envoy()
    await stack.start_envoy()


async def _nothing(stack: Stack) -> None:
    pass


_ONE_LEFT_OUT = Bounds(added_ms=DEADLINE_MS + 100, drain_s=5, return_s=20)
_UNNOTICED = Bounds(added_ms=1500)

DRILLS: Mapping[str, Drill] = {
    "hang-before-headers": Drill(
        "one engine takes requests and says nothing",
        *_fault("hang_before_headers", 0),
        _ONE_LEFT_OUT,
        struck=(0,),
    ),
    "hang-after-headers": Drill(
        "one engine answers 200 and its headers, and then nothing",
        *_fault("hang_after_headers", 0),
        _ONE_LEFT_OUT,
        struck=(0,),
    ),
    "hung-engine": Drill(
        "one engine generates nothing more; its /health and /metrics answer",
        *_fault("mute", 0),
        _ONE_LEFT_OUT,
        struck=(0,),
    ),
    "die-before-first-token": Drill(
        "one engine resets each connection before it answers",
        *_fault("reset_before_headers", 0),
        _ONE_LEFT_OUT,
        struck=(0,),
    ),
    "die-mid-stream": Drill(
        "one engine breaks each stream after five tokens",
        *_fault("die_mid_stream", 0),
        Bounds(drain_s=5, return_s=20),
        struck=(0,),
        spares="cut",
        after_s=25,
    ),
    "truncated": Drill(
        "one engine ends each stream in good order after five tokens, without its end mark",
        *_fault("end_mid_stream", 0),
        Bounds(drain_s=12, return_s=25),
        struck=(0,),
        spares="cut",
        for_s=15,
        after_s=30,
    ),
    "stalled": Drill(
        "one engine says nothing more after five tokens of each stream, and keeps the connection",
        *_fault("stall_mid_stream", 0),
        Bounds(drain_s=18, return_s=20),
        struck=(0,),
        for_s=20,
        pool={"failure_signals": {"stalled_after_s": 3}},
    ),
    "slow": Drill("one engine is ten times slower", *_fault("slow", 0, factor=10), Bounds()),
    "saturated-429": Drill(
        "one engine is full and says so with 429", *_fault("saturate_429", 0), _ONE_LEFT_OUT, struck=(0,)
    ),
    "saturated-503": Drill(
        "one engine is full and says so with vLLM's 503", *_fault("saturate_503", 0), _ONE_LEFT_OUT, struck=(0,)
    ),
    "quota-429": Drill(
        "every second caller of one engine is over his own quota",
        *_fault("quota_429", 0, share=0.5),
        Bounds(attempts=1.02),
        spares="http 429",
    ),
    "error-event": Drill(
        "one engine answers 200, and its first event is an error", *_fault("error_event", 0), _ONE_LEFT_OUT, struck=(0,)
    ),
    "leaving": Drill(
        "one engine answers 500 as vLLM does while it drains; that it comes back is not expected for a minute",
        *_fault("error_500", 0),
        Bounds(added_ms=DEADLINE_MS + 100, drain_s=5),
        struck=(0,),
    ),
    "refuse": Drill(
        "one engine is killed: connections to it are refused",
        _kill_engine,
        _start_engine,
        _ONE_LEFT_OUT,
        struck=(0,),
        spares="cut",
    ),
    "black-hole": Drill(
        "one engine is killed, and connections to it are neither accepted nor refused",
        _black_hole,
        _start_engine,
        _ONE_LEFT_OUT,
        struck=(0,),
        spares="cut",
    ),
    "flap": Drill(
        "one engine is killed and started again three times in 6 s, and killed",
        _flap,
        _start_engine,
        Bounds(return_s=30),
        struck=(0,),
        spares="cut",
        for_s=3,
        after_s=25,
    ),
    "all-saturated": Drill(
        "all engines are full for 20 s",
        *_fault("saturate_503", *_ALL),
        Bounds(attempts=1.2, stampede=1.5),
        spares="http 503",
        for_s=20,
    ),
    "ext-proc-stopped": Drill("the ext_proc service is stopped for 10 s", *_stopped(_worker), _UNNOTICED, for_s=10),
    "ext-proc-killed": Drill("the ext_proc service is killed, and back after 8 s", *_killed(_worker), _UNNOTICED),
    "control-plane-stopped": Drill("the control plane is stopped", *_stopped(_control_plane), _UNNOTICED),
    "control-plane-killed": Drill("the control plane is killed", *_killed(_control_plane), _UNNOTICED),
    "control-plane-restarted": Drill("the control plane is started anew", _restart_control_plane, _nothing, _UNNOTICED),
    "envoy-restarted-alone": Drill(
        "Envoy is started anew while the control plane is down; what it had under way is cut",
        _restart_envoy_alone,
        _killed(_control_plane)[1],
        Bounds(lost=40),  # 2 s of the load
        spares="cut",
    ),
}


def in_order(names: Sequence[str]) -> list[str]:
    """The named drills, in the order of `DRILLS`; all if none is named. Raises ValueError, with the fix."""
    if unknown := [name for name in names if name not in DRILLS]:
        raise ValueError(f"unknown drill {', '.join(unknown)}; there are {', '.join(DRILLS)}")
    return [name for name in DRILLS if not names or name in names]
