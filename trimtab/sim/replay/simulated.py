"""What of a pool's sources a replay simulates: the engines' own pages and the streams, no other source of signals."""

from collections.abc import Iterator, Mapping

from trimtab.policy.engines import engine_tables
from trimtab.policy.model import Pool
from trimtab.scoring import BlendPolicy, Need, make_strategy

_SIGNALS = frozenset(
    {"waiting", "running", "kv_usage", "generated_tokens", "preemptions", "prompt_tokens", "process_start"}
)

# What is known from nothing but pages; the rest is seen in requests and streams, which are there in each replay.
_FROM_PAGES: Mapping[Need, str] = {
    Need.WAITING: "waiting",
    Need.RUNNING: "running",
    Need.KV_USAGE: "kv_usage",
    Need.PREEMPTIONS: "preemptions",
}

# What a custom signal's action does, where it is more than to be read.
_NEVER: Mapping[str, str] = {
    "drain": "drains",
    "no_long_prompts": "keeps long prompts away",
    "consolidate": "consolidates work",
}

_WHY = "a replay has the page of the pool's engine, not ORCA, nor Prometheus"


class NotSimulatedError(ValueError):
    """A strategy would run without what it goes by; the message is one line."""


def page_signals(pool: Pool) -> frozenset[str]:
    """The signals that the simulated engines show, as far as the page of the pool's engine has them and is read."""
    if not pool.signals.scrape:
        return frozenset()
    table, named = engine_tables()[pool.engine], pool.signals.names.named
    return frozenset(signal for signal in _SIGNALS if signal in named or getattr(table, signal))


def lost(pool: Pool) -> tuple[str, ...]:
    """What of a policy has no effect in a replay, a line for each. Raises NotSimulatedError if it is the strategy."""
    strategy, blend = make_strategy(pool.scoring), pool.scoring
    if isinstance(blend, BlendPolicy):
        terms = {
            term.name: term.custom is not None
            or _lacks(pool, make_strategy(blend.model_copy(update={"terms": (term,)})).required())
            for term in blend.terms
        }
        if all(terms.values()):
            raise NotSimulatedError(f"{_WHY}: no term of its blend is ever known; add one that is, such as in_flight")
        lines = [f"{_WHY}: the term {name} is never known" for name, is_lost in terms.items() if is_lost]
    elif lacking := _lacks(pool, strategy.required()):
        raise NotSimulatedError(
            f"{strategy.name} needs {' and '.join(lacking)}, and {_WHY}: "
            "set engine to one whose page shows it, with signals.scrape on, or choose another strategy"
        )
    else:
        lines = []
    if pool.signals.prometheus is not None or pool.signals.orca:
        lines += [f"{_WHY}: {need} is never known" for need in _lacks(pool, strategy.uses)]
    return (*lines, *_actions(pool))


def _lacks(pool: Pool, needs: frozenset[Need]) -> list[str]:
    shown = page_signals(pool)
    return [need for need in sorted(needs) if need in _FROM_PAGES and _FROM_PAGES[need] not in shown]


def _actions(pool: Pool) -> Iterator[str]:
    for signal in pool.signals.prometheus.custom if pool.signals.prometheus else ():
        if (missed := _NEVER.get(signal.action)) is not None:
            yield f"{_WHY}: the signal {signal.name} never {missed}"
