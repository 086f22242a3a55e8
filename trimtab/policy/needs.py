"""Whether the sources of a pool can give its law what it needs."""

from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

from ruamel.yaml import YAML

from trimtab.scoring import Need, make_law

if TYPE_CHECKING:
    from trimtab.policy.model import ExtProc, Pool

# What is read from the engines' metrics, and which of the engine's tables names it.
_ON_THE_PAGE: Mapping[Need, str] = {
    Need.WAITING: "waiting",
    Need.RUNNING: "running",
    Need.KV_USAGE: "kv_usage",
    Need.PREEMPTIONS: "preemptions",
    Need.TOKENS_PER_S: "generated_tokens",
}
# What is seen in streams that are read to their end.
_IN_STREAMS = {Need.INTER_TOKEN, Need.TOKENS_PER_S}


def unmet_needs(pool: "Pool", ext_proc: "ExtProc") -> Iterator[str]:
    """A sentence, with the mend, for each need of the pool's law that nothing can meet.

    First tokens, errors and the ledger are always there: at the worst they come from the access log.
    """
    law, told = make_law(pool.scoring), _signals()[pool.engine]
    shares = {"sample_percent": ext_proc.sample_percent, "full_stream_percent": ext_proc.full_stream_percent}
    unread = [f"ext_proc.{name}" for name, percent in shares.items() if percent == 0]
    for need in sorted(law.required()):
        sources = []  # each with: where it comes from, whether it does, and how it is switched on
        if _ON_THE_PAGE.get(need) in told:
            sources.append((f"the metrics of {pool.engine}", pool.signals.scrape, "set signals.scrape to true"))
        if need in _IN_STREAMS:
            mend = f"set {' and '.join(unread)} above 0"
            sources.append(("streams that are read to their end", not unread, mend))
        if any(is_on for _, is_on, _ in sources) or not (need in _ON_THE_PAGE or sources):
            continue
        if sources:
            yield (
                f"{law.name} needs {need}, which comes from {' or from '.join(where for where, _, _ in sources)}: "
                f"{', or '.join(mend for _, _, mend in sources)}"
            )
        else:
            yield f"{law.name} needs {need}, which the metrics of {pool.engine} do not tell: choose another law"


@cache
def _signals() -> Mapping[str, frozenset[str]]:
    """The signals that each engine's metrics tell."""
    text = files("trimtab").joinpath("data/engines.yaml").read_text(encoding="utf-8")
    tables = YAML(typ="safe").load(text)
    return {engine: frozenset(signal for signal, names in table.items() if names) for engine, table in tables.items()}
