"""Whether the sources of a pool can give its strategy what it needs."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trimtab.policy.engines import engine_tables
from trimtab.policy.prometheus import bundled_queries
from trimtab.policy.words import listed, quoted
from trimtab.scoring import BlendPolicy, Need, make_strategy
from trimtab.strict import Flaw

if TYPE_CHECKING:
    from trimtab.policy.model import ExtProc, Pool

# Which signal of the engine's page meets a need.
_ON_THE_PAGE: Mapping[Need, str] = {
    Need.WAITING: "waiting",
    Need.RUNNING: "running",
    Need.KV_USAGE: "kv_usage",
    Need.PREEMPTIONS: "preemptions",
    Need.INTER_TOKEN: "inter_token",
    Need.TOKENS_PER_S: "generated_tokens",
}
# Which number of a Prometheus server does. It is asked for no histogram, so gaps between tokens are not among them.
_ASKED: Mapping[Need, str] = {
    Need.WAITING: "waiting",
    Need.RUNNING: "running",
    Need.KV_USAGE: "kv_usage",
    Need.PREEMPTIONS: "preemptions_per_s",
    Need.TOKENS_PER_S: "tokens_per_s",
}
# Engines whose pages may show more than their tables say: what an application exports itself.
_OPEN_PAGES = frozenset({"custom", "ray-serve"})
# What is seen in streams that are read to their end.
_IN_STREAMS = frozenset({Need.INTER_TOKEN, Need.TOKENS_PER_S})


@dataclass(frozen=True, slots=True)
class _Source:
    """What could meet a need."""

    is_on: bool
    fix: str  # how it is switched on


def unmet_needs(pool: "Pool", ext_proc: "ExtProc") -> Iterator[str]:
    """A sentence, with the fix, for each need of the pool's strategy that nothing can meet.

    First tokens, errors and the leases are always there: at the worst they come from the access log.
    """
    strategy = make_strategy(pool.scoring)
    for need in sorted(strategy.required()):
        sources = list(_sources(need, pool, ext_proc))
        if sources and not any(source.is_on for source in sources):
            fixes = ", or ".join(source.fix for source in sources)
            yield f"{strategy.name} needs {need}, which no source of this pool has: {fixes}, or choose another strategy"


def unreadable_terms(pool: "Pool") -> Iterator[Flaw]:
    """A flaw for each term of a `blend` that names no custom signal for terms."""
    if not isinstance(pool.scoring, BlendPolicy):
        return
    custom = pool.signals.prometheus.custom if pool.signals.prometheus else ()
    actions = {signal.name: signal.action for signal in custom}
    for index, term in enumerate(pool.scoring.terms):
        if term.custom is None or actions.get(term.custom) == "term":
            continue
        at = ("scoring", "terms", index, "custom")
        if term.custom in actions:
            yield Flaw(f"{quoted(term.custom)} has another action: terms read signals with action: term", at)
            continue
        names = sorted(name for name, action in actions.items() if action == "term")
        there = f"there are {listed(names)}" if names else "there are none with action: term"
        yield Flaw(f"{quoted(term.custom)} is no signal of signals.prometheus.custom; {there}", at)


def idle_sources(pool: "Pool") -> Iterator[Flaw]:
    """A flaw for each setting of a source that can bring nothing."""
    signals = pool.signals
    if signals.orca and not engine_tables()[pool.engine].orca:
        yield Flaw(f"{pool.engine} tells nothing in its answers' headers: remove it", ("signals", "orca"))
    if (server := signals.prometheus) is not None and server.select:
        bundled = bundled_queries().engines.get(pool.engine, {}) if server.bundled else {}
        if not any("$select" in query for query in (bundled | server.queries).values()):
            yield Flaw(
                "select goes where a query says $select, and none does: write it there, or remove it",
                ("signals", "prometheus", "select"),
            )


def _sources(need: Need, pool: "Pool", ext_proc: "ExtProc") -> Iterator[_Source]:
    signals, table = pool.signals, engine_tables()[pool.engine]
    if signal := _ON_THE_PAGE.get(need):
        if signal in signals.names.named or getattr(table, signal):
            yield _Source(signals.scrape, "set signals.scrape to true")
        elif pool.engine in _OPEN_PAGES:
            yield _Source(False, f"name its metric in signals.names.{signal}")
        if signal in table.orca:
            yield _Source(signals.orca, "set signals.orca to true")
    if asked := _ASKED.get(need):
        server = signals.prometheus
        is_asked = server is not None and asked in server.texts(pool.engine)
        yield _Source(is_asked, f"ask Prometheus for {asked} in signals.prometheus")
    if need in _IN_STREAMS:
        shares = {"sample_percent": ext_proc.sample_percent, "full_stream_percent": ext_proc.full_stream_percent}
        unread = [f"ext_proc.{name}" for name, percent in shares.items() if percent == 0]
        yield _Source(not unread, f"set {' and '.join(unread)} above 0")
