"""The figures of a replay, in the words of `trimtab.sim.client.summarise`."""

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean, pstdev
from typing import Any

from trimtab.sim.client import Outcome, error_name, spread_of
from trimtab.sim.replay.simulation import Replay, Served

_SPREAD = ("mean", "p50", "p90", "p99")
_SUCCESS = (Outcome.OK, Outcome.UNFINISHED)


def figures(replay: Replay) -> dict[str, Any]:
    """The figures of one replay, JSON-able. TTFT is over all requests, see `ttft_s`.

    Times are milliseconds; `success`, `busy` (the time in which an endpoint computed anything) and `utilisation` (its
    slots for sequences that were in use, on average) are 0..1.
    """
    served = replay.served
    ended_s = replay.ended_s or 1.0
    tokens = sum(one.tokens for one in served)
    share = Counter(replay.endpoints[one.endpoint].name for one in served if one.endpoint is not None)
    errors = Counter(error_name(one.outcome, one.status) for one in served if one.outcome not in _SUCCESS)
    utilisation = {endpoint.name: endpoint.mean_occupancy for endpoint in replay.endpoints}
    backlog = sum(endpoint.mean_backlog for endpoint in replay.endpoints)
    succeeded = sum(one.outcome in _SUCCESS for one in served)
    return {
        "requests": len(served),
        "succeeded": succeeded,
        "success": succeeded / len(served),
        "unfinished": sum(one.outcome is Outcome.UNFINISHED for one in served),
        "ttft_ms": spread_of([1e3 * ttft_s(one, replay.ended_s) for one in served], *_SPREAD),
        "tpot_ms": spread_of([1e3 * gap for one in served if (gap := _tpot_s(one)) is not None], *_SPREAD),
        "e2e_ms": spread_of(
            [1e3 * (one.ended_s - one.arrived_s) for one in served if one.ended_s is not None], *_SPREAD
        ),
        "output_tokens_per_s": tokens / ended_s,
        "seconds": ended_s,
        "retries": sum(one.attempts - 1 for one in served),
        "refused": sum(endpoint.refused for endpoint in replay.endpoints),
        "preemptions": sum(one.preemptions for one in served),
        "share": {endpoint.name: share.get(endpoint.name, 0) for endpoint in replay.endpoints},
        "busy": {endpoint.name: endpoint.busy_s / ended_s for endpoint in replay.endpoints},
        "utilisation": utilisation,
        "utilisation_spread": pstdev(utilisation.values()),
        "backlog_share": {
            endpoint.name: endpoint.mean_backlog / backlog if backlog else 0.0 for endpoint in replay.endpoints
        },
        "errors": dict(sorted(errors.items())),
        "pushes": replay.pushes,
    }


def ttft_s(served: Served, ended_s: float) -> float:
    """From its arrival to its first token.

    Without one it is the time that the client waited in vain; a quick error counts as a wait until `ended_s`, when the
    replay ended or was cut off, for it must not look like a quick answer.
    """
    if served.first_token_s is not None:
        return served.first_token_s - served.arrived_s
    if served.ended_s is None or served.outcome is Outcome.HTTP_ERROR:
        return ended_s - served.arrived_s
    return served.ended_s - served.arrived_s


def over_seeds(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The mean of every figure over the runs with each seed, and the standard deviation of the TTFTs.

    An error that a run does not have counts as none there; what it cannot tell (no answer was whole) is left out.
    """
    errors = dict.fromkeys(sorted({error for run in runs for error in run["errors"]}), 0)
    mean: dict[str, Any] = _mean([{**run, "errors": errors | run["errors"]} for run in runs])
    mean["ttft_ms_deviation"] = {name: pstdev(run["ttft_ms"][name] for run in runs) for name in _SPREAD}
    return mean


def _mean(values: Sequence[Any]) -> Any:
    if isinstance(values[0], Mapping):
        keys = dict.fromkeys(key for value in values for key in value)
        return {key: _mean([value[key] for value in values if key in value]) for key in keys}
    return fmean(values)


def _tpot_s(served: Served) -> float | None:
    """Mean time between the tokens of an answer that is complete."""
    if served.outcome is not Outcome.OK or served.first_token_s is None or served.ended_s is None or served.tokens < 2:
        return None
    return (served.ended_s - served.first_token_s) / (served.tokens - 1)
