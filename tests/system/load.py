"""Steady loads, and what became of them."""

from collections.abc import Sequence

from trimtab.sim.client import Result
from trimtab.sim.trace import Request


def steady(rate: float, seconds: float, *, prompt_tokens: int = 200, output_tokens: int = 30) -> list[Request]:
    """`rate` requests a second, evenly spaced."""
    return [
        Request(arrival_s=number / rate, prompt_tokens=prompt_tokens, output_tokens=output_tokens)
        for number in range(round(rate * seconds))
    ]


def share(results: Sequence[Result], engine: str, from_s: float, to_s: float) -> float:
    """The part of the requests that were sent in a stretch of time which `engine` answered."""
    sent = [result for result in results if from_s <= result.request.arrival_s < to_s]
    assert sent, f"nothing was sent from {from_s:g} to {to_s:g} s"
    return sum(result.engine == engine for result in sent) / len(sent)


def failures(results: Sequence[Result]) -> list[str]:
    """A line for each request that went wrong."""
    return [
        f"{result.number}: {result.outcome} {result.status} {result.detail}"
        for result in results
        if not result.succeeded
    ]
