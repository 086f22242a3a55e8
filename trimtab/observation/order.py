"""The order in which a batch of observations is applied: by time, then by kind, then by every field."""

from collections.abc import Callable, Iterable
from typing import Any

from trimtab.observation.kinds import (
    AnswerRead,
    AttemptEnded,
    AttemptStarted,
    ClusterChanged,
    FirstToken,
    LoadReported,
    Observation,
    Probed,
    PrometheusSample,
    Rejected,
    SignalsRead,
    StreamRead,
    WorkerMissed,
)

# The ext_proc workers and the control plane share a clock; what is further ahead than this would freeze every average.
MAX_AHEAD_S = 5.0


def _maybe(number: float | None) -> float:
    return -1.0 if number is None else number


def _asked(o: AttemptStarted) -> tuple[float | str, ...]:
    return _maybe(o.prompt_bytes), _maybe(o.streamed), o.path, o.caller


def _answer(o: AttemptEnded) -> tuple[float, ...]:
    return o.streamed, _maybe(o.first_byte_s), _maybe(o.prompt_bytes), o.body_bytes


# At one instant an engine's restart comes first, and an attempt starts before anything else happens to it.
# Starts and ends spell out their fields because they come by the thousand, and reads because they are long:
# `repr` is several times as slow.
_KEYS: dict[type, Callable[[Any], tuple[Any, ...]]] = {
    SignalsRead: lambda o: (o.at, 0, o.address, repr(o)),
    PrometheusSample: lambda o: (o.at, 0, o.address, repr(o)),
    Probed: lambda o: (o.at, 1, "probe", o.address, repr(o)),
    ClusterChanged: lambda o: (o.at, 1, "cluster"),
    WorkerMissed: lambda o: (o.at, 1, "worker"),
    LoadReported: lambda o: (o.at, 1, "report", o.node, repr(o)),
    AttemptStarted: lambda o: (o.at, 2, o.address, o.request_id, *_asked(o)),
    FirstToken: lambda o: (o.at, 3, o.address, o.request_id),
    Rejected: lambda o: (o.at, 4, o.address, o.request_id, repr(o)),
    AnswerRead: lambda o: (o.at, 3, o.address, o.request_id, repr(o)),
    StreamRead: lambda o: (o.at, 5, o.address, o.request_id, o.gaps_s, o.finished, o.verdict or "", o.truncated),
    AttemptEnded: lambda o: (
        o.at,
        6,
        o.address,
        o.request_id,
        o.started_at,
        o.status,
        o.outcome,
        *_answer(o),
        o.content_type,
        o.path,
        o.caller,
    ),
}


def in_order(now: float, observations: Iterable[Observation]) -> list[Observation]:
    """Sort a batch. Observations without a time, or with one that is still to come, are left out."""
    return sorted((o for o in observations if o.at <= now + MAX_AHEAD_S), key=lambda o: _KEYS[type(o)](o))
