"""Endpoints about which anything may be known."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from hypothesis import strategies as st

from trimtab.endpoint.snapshot import EndpointId, EndpointView, PoolSnapshot
from trimtab.observation.kinds import Signals
from trimtab.scoring.contract import Eligible, Score, Strategy

_seconds = st.floats(0, 120)
_shares = st.floats(0, 1)

# What a strategy may be shown, by a name, with its values from good to bad and how it is put in its place.
Put = Callable[[EndpointView, Any], EndpointView]


def _field(name: str) -> Put:
    return lambda view, value: replace(view, **{name: value})


def _signal(name: str) -> Put:
    return lambda view, value: replace(view, signals=replace(view.signals, **{name: value}))


READINGS: dict[str, tuple[st.SearchStrategy[Any], Put, bool]] = {  # values, where they go, whether more is worse
    "ttft": (_seconds, _field("ttft_s"), True),
    "ttft_recent": (_seconds, _field("ttft_recent_s"), True),
    "oldest_wait": (_seconds, _field("oldest_wait_s"), True),
    "errors": (_shares, _field("error_share"), True),
    "failures": (st.integers(0, 9), _field("failures_in_row"), True),
    "in_flight": (st.integers(0, 500), _field("in_flight"), True),
    "prompts": (st.floats(0, 1e6), _field("prompt_bytes_mean"), True),
    "waiting": (st.floats(0, 500), _signal("waiting"), True),
    "running": (st.floats(0, 500), _signal("running"), True),
    "kv_usage": (_shares, _signal("kv_usage"), True),
    "gaps": (st.floats(0, 5), _field("inter_token_p99_s"), True),
    "tokens": (st.integers(1, 50_000), _field("tokens_per_s_best"), False),
}


def _view(rng: Random, number: int) -> EndpointView:
    """An endpoint with any values, the extreme ones among them, each of which may be UNKNOWN."""

    def upto(most: float) -> float:
        return rng.choice([0.0, most, rng.uniform(0, most), most * rng.random() ** 6])

    def maybe(most: float) -> float | None:
        return None if rng.random() < 0.3 else upto(most)

    return EndpointView(
        EndpointId(f"10.0.0.{number}:8000"),
        f"gpu-{number}",
        None if rng.random() < 0.3 else 0.01 + upto(1000),
        ttft_s=maybe(120),
        ttft_recent_s=maybe(120),
        ttft_p99_s=maybe(120),
        inter_token_s=maybe(5),
        inter_token_p99_s=maybe(5),
        tokens_per_s=maybe(50_000),
        tokens_per_s_best=maybe(50_000),
        preemptions_per_s=maybe(100),
        prompt_bytes_mean=maybe(1e6),
        prompt_bytes_std=maybe(1e6),
        failures_in_row=round(upto(9)),
        error_share=upto(1),
        in_flight=round(upto(500)),
        outstanding_prompt_bytes=round(upto(1e8)),
        oldest_wait_s=upto(120),
        signals=Signals(waiting=maybe(500), running=maybe(500), kv_usage=maybe(1)),
    )


@dataclass(frozen=True)
class Case(PoolSnapshot):
    """A pool, with the endpoints that are not eligible."""

    held: frozenset[EndpointId] = frozenset()

    @property
    def eligible(self) -> Eligible:
        return Eligible(frozenset(view.id for view in self.endpoints) - self.held)


def step(strategy: Strategy, pool: PoolSnapshot, now: float | None = None) -> Mapping[EndpointId, Score]:
    """One step of a strategy, at `now` instead of the pool's own time."""
    pool = pool if now is None else replace(pool, at=now)
    eligible = pool.eligible if isinstance(pool, Case) else Eligible.everyone(pool)
    strategy.advance(pool, eligible)
    return strategy.score(pool, eligible)


def _pool(seed: int, least: int) -> PoolSnapshot:
    rng = Random(seed)
    found = tuple(_view(rng, number) for number in range(1, rng.randint(least, 4) + 1))
    held = rng.sample([view.id for view in found], rng.choice([0, rng.randrange(len(found))]))
    return Case("pool", 1000.0, found, held=frozenset(held))


def pools(least: int = 1) -> st.SearchStrategy[PoolSnapshot]:
    """Pools of up to four endpoints, of which some, but not all, are held back.

    Each comes from a seed: drawn field by field, the pools would take longer than the strategies.
    """
    return st.integers(0, 2**32).map(lambda seed: _pool(seed, least))


def with_view(pool: PoolSnapshot, view: EndpointView) -> PoolSnapshot:
    """The pool with one of its endpoints as `view` has it."""
    return replace(pool, endpoints=tuple(view if view.id == known.id else known for known in pool.endpoints))
