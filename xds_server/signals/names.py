"""What to look for on an engine's page."""

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass

from trimtab.endpoint.engine_readings import SIGNALS
from trimtab.policy.engines import engine_tables
from trimtab.policy.metric import Metric, parse_metric
from trimtab.policy.model import Pool

HISTOGRAMS = frozenset({"ttft", "inter_token"})


@dataclass(frozen=True)
class PageNames:
    """What to look for on an engine's page: each signal with its metrics, and the labels of the series that count."""

    signals: tuple[tuple[str, tuple[Metric, ...]], ...]
    select: tuple[tuple[str, str], ...] = ()

    @functools.cached_property
    def sample_line(self) -> re.Pattern[bytes]:
        """Matches a newline and the sample line of any of the names; groups: name, rest of the line."""
        wanted: set[str] = set()
        for signal, metrics in self.signals:
            for series in (series for metric in metrics for series in metric.terms):
                wanted |= set(histogram_parts(series.name)) if signal in HISTOGRAMS else {series.name}
        names = b"|".join(re.escape(name.encode()) for name in sorted(wanted))
        # A last line without its newline is a page that was cut, maybe inside the value. The literal newline is
        # searched for with memchr: four times as fast as an anchor.
        return re.compile(rb"\n[ \t]*(%b)([{ \t][^\n]*)(?=\n)" % names)

    @functools.cached_property
    def not_shown(self) -> Mapping[str, str]:
        """The signals that are not looked for, with the reason."""
        shown = {signal for signal, _ in self.signals}
        return {signal: "the engine has no metric for it" for signal in SIGNALS if signal not in shown}

    def place(self, metric: Metric) -> str:
        """Where a signal is read, for people, and to tell readings of different places apart."""
        labels = ",".join(f'{label}="{value}"' for label, value in self.select)
        return f"{metric} where {labels}" if labels else str(metric)


def histogram_parts(name: str) -> tuple[str, str]:
    """The metrics of a histogram that are read: its buckets and the sum of its values."""
    return f"{name}_bucket", f"{name}_sum"


def page_names(pool: Pool) -> PageNames:
    """The names of the pool's engine, with those of its policy in their place."""
    signals = pool.signals
    return _page_names(pool.engine, tuple(signals.names.named.items()), tuple(sorted(signals.scrape_select.items())))


@functools.lru_cache(maxsize=256)
def _page_names(engine: str, own: tuple[tuple[str, str], ...], select: tuple[tuple[str, str], ...]) -> PageNames:
    table, named = engine_tables()[engine], dict(own)
    wanted = {signal: (named[signal],) if signal in named else getattr(table, signal) for signal in SIGNALS}
    return PageNames(
        tuple((signal, tuple(map(parse_metric, texts))) for signal, texts in wanted.items() if texts), select
    )
