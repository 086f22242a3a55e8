"""From an engine's metrics page to signals."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

from prometheus_client.parser import text_string_to_metric_families

from trimtab.fleet.observation import Signals
from xds_server.sources.names import engine_names

MAX_PAGE_BYTES = 10 * 2**20

# A signal has a series per model and data-parallel rank, some 70 bytes each. The library's parser is
# quadratic in the length of a label value, so what goes into it is bounded.
_MAX_SIGNAL_BYTES = 64 * 2**10

# Several series are several ranks or models behind one address: their queues and tokens add up, the
# fullest cache is the one that preempts, and the youngest process tells of a restart.
_COMBINE: Mapping[str, Callable[[Iterable[float]], float]] = {
    "waiting": math.fsum,
    "running": math.fsum,
    "kv_usage": max,
    "generated_tokens": math.fsum,
    "preemptions": math.fsum,
    "process_start": max,
}


def read_page(engine: str, page: bytes | str) -> Signals:
    """Read the signals of `engine` from its metrics page, in the classic or the OpenMetrics text format.

    A signal is unknown (None) if its metric is missing, malformed, not finite or out of range, or if a
    series is there twice with different values. A page above `MAX_PAGE_BYTES` is not read at all.

    Raises KeyError for an engine without a table of names.
    """
    names = engine_names()[engine]
    raw = page if isinstance(page, bytes) else page.encode("utf-8", "replace")
    if len(raw) > MAX_PAGE_BYTES:
        return Signals()
    lines: defaultdict[str, list[bytes]] = defaultdict(list)
    for name, rest in names.sample_line.findall(b"\n" + raw):
        lines[name.decode()].append(name + rest)
    read = {}
    for signal, combine in _COMBINE.items():
        present = next((lines[name] for name in getattr(names, signal) if name in lines), None)
        if present is not None:
            read[signal] = _in_range(signal, _combined(present, combine))
    return Signals(**read)


def _combined(lines: Sequence[bytes], combine: Callable[[Iterable[float]], float]) -> float | None:
    """The combined value of one metric's sample lines; None if any of them is not to be trusted."""
    text = b"\n".join(lines)
    if len(text) > _MAX_SIGNAL_BYTES:
        return None
    series: dict[frozenset[tuple[str, str]], float] = {}
    try:
        for family in text_string_to_metric_families(text.decode("utf-8", "replace")):
            for sample in family.samples:
                value = float(sample.value)
                if not math.isfinite(value) or value < 0:
                    return None
                if series.setdefault(frozenset(sample.labels.items()), value) != value:
                    return None
        return combine(series.values()) if series else None
    except (
        ValueError,
        OverflowError,
        IndexError,
    ):  # a malformed line; an integer beyond any float; an empty term
        return None


def _in_range(signal: str, value: float | None) -> float | None:
    return None if value is None or (signal == "kv_usage" and value > 1) else value
