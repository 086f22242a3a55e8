"""From an engine's metrics page to signals."""

import functools
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from trimtab.endpoint.engine_readings import SIGNALS, fault_of
from trimtab.observation.kinds import Adapters, Histogram, Signals
from trimtab.policy.metric import Metric, Series
from xds_server.signals.names import HISTOGRAMS, PageNames, histogram_parts

MAX_PAGE_BYTES = 10 * 2**20

# A signal has a series per model and data-parallel rank, some 70 bytes each; a histogram twenty of them. The
# library's parser is quadratic in the length of a label value, so what goes into it is bounded.
_MAX_METRIC_BYTES = 64 * 2**10

# Several series are several ranks or models behind one address: their queues and tokens add up, the fullest cache is
# the one that preempts, the shortest context is the one that refuses, and the youngest process tells of a restart.
_COMBINE: Mapping[str, Callable[[Iterable[float]], float]] = {
    "kv_usage": max,
    "prefix_hit_rate": min,
    "max_model_len": min,
    "process_start": max,
}

_SLOTS = re.compile("[0-9]{1,6}")

_Labels = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class PageRead:
    """What a page says: each signal is known, with the metric that it was read from, or unknown, with the reason."""

    signals: Signals
    origins: Mapping[str, str]
    unknown: Mapping[str, str]


class _UnknownError(Exception):
    """A signal is not known; the message is the reason."""


def read_page(names: PageNames, page: bytes) -> PageRead:
    """Read signals from a metrics page, in the classic or the OpenMetrics text format.

    A signal is unknown if its metric is missing, malformed, not finite or out of range, or if a series is there twice
    with different values. A page above `MAX_PAGE_BYTES` is not read at all.
    """
    if len(page) > MAX_PAGE_BYTES:
        return PageRead(Signals(), {}, dict.fromkeys(SIGNALS, f"the page is above {MAX_PAGE_BYTES} bytes"))
    samples = _Samples(names, page)
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    unknown = dict(names.not_shown)
    for signal, metrics in names.signals:
        try:
            metric = next(filter(functools.partial(samples.has, signal), metrics), None)
            if metric is None:
                raise _UnknownError(f"{' or '.join(map(str, metrics))} is not on the page")
            value = _read(signal, metric, samples)
            if fault := fault_of(signal, value):
                raise _UnknownError(f"{metric}: {fault}")
            values[signal], origins[signal] = value, names.place(metric)
        except _UnknownError as why:
            unknown[signal] = str(why)
    return PageRead(Signals(**values), origins, unknown)


class _Samples:
    """The samples of a page that count. What is asked for is parsed, once."""

    def __init__(self, names: PageNames, page: bytes) -> None:
        self._select = names.select
        self._lines: defaultdict[str, list[bytes]] = defaultdict(list)
        if names.signals:
            for name, rest in names.sample_line.findall(b"\n" + page):
                self._lines[name.decode()].append(rest)
        self._parsed: dict[str, Sequence[tuple[_Labels, float]]] = {}

    def has(self, signal: str, metric: Metric) -> bool:
        """Whether every term of a metric is on the page."""
        for series in metric.terms:
            name = histogram_parts(series.name)[0] if signal in HISTOGRAMS else series.name
            if name not in self._lines:
                return False
            if series.labels and not any(map(functools.partial(_fits, series), self._all(name))):
                return False
        return True

    def of(self, series: Series, name: str | None = None) -> Sequence[tuple[_Labels, float]]:
        """The samples of a series that the policy selects, at least one; `name` in place of its own."""
        found = [sample for sample in self._all(name or series.name) if _fits(series, sample)]
        selected = [
            sample for sample in found if all(sample[0].get(label, value) == value for label, value in self._select)
        ]
        if not selected:
            if not found:
                raise _UnknownError(f"{name or series.name} is not on the page")
            wanted = ",".join(f'{label}="{value}"' for label, value in self._select)
            raise _UnknownError(f"no series of {series.name} has {wanted}")
        return selected

    def newest(self, name: str) -> _Labels:
        """The labels of the sample whose value is largest: of metrics that say in their labels what holds now."""
        best = max(self._lines[name], key=_value_of)
        return _parse(name, [best])[0][0]

    def _all(self, name: str) -> Sequence[tuple[_Labels, float]]:
        if name not in self._parsed:
            self._parsed[name] = _parse(name, self._lines.get(name, ()))
        return self._parsed[name]


def _fits(series: Series, sample: tuple[_Labels, float]) -> bool:
    return all(sample[0].get(label) == value for label, value in series.labels)


def _value_of(line: bytes) -> float:
    try:
        return float(line[line.rindex(b"}") + 1 :].split()[0])
    except (ValueError, IndexError):
        return -math.inf


def _parse(name: str, lines: Sequence[bytes]) -> Sequence[tuple[_Labels, float]]:
    """The samples of one metric, each series once. Raises _UnknownError if one of them is not to be trusted."""
    start = name.encode()
    text = b"\n".join(start + line for line in lines)
    if len(text) > _MAX_METRIC_BYTES:
        raise _UnknownError(f"{name} has more than {_MAX_METRIC_BYTES >> 10} KiB of series")
    series: dict[frozenset[tuple[str, str]], tuple[_Labels, float]] = {}
    try:
        for family in text_string_to_metric_families(text.decode("utf-8", "replace")):
            for sample in family.samples:
                found = (sample.labels, float(sample.value))
                first = series.setdefault(frozenset(sample.labels.items()), found)
                # NaN differs from itself, and is unknown either way.
                if first is not found and first[1] != found[1]:
                    raise _UnknownError(f"{name} has a series twice, with different values")
    except (ValueError, OverflowError, IndexError):
        # A malformed line; an integer beyond any float; an empty term.
        raise _UnknownError(f"{name} has a malformed line") from None
    return tuple(series.values())


def _read(signal: str, metric: Metric, samples: _Samples) -> float | Histogram | Adapters:
    if signal in HISTOGRAMS:
        return _histogram(metric, samples)
    if signal == "adapters":
        return _adapters(samples.newest(metric.terms[0].name))
    combine = _COMBINE.get(signal, sum)
    total = 0.0
    for series in metric.terms:
        values = [value / metric.divisor for _, value in samples.of(series)]
        for value in values:
            if fault := fault_of(signal, value):
                raise _UnknownError(f"{metric}: {fault}")
        total += combine(values)
    return total


def _histogram(metric: Metric, samples: _Samples) -> Histogram:
    (series,) = metric.terms
    buckets, total = histogram_parts(series.name)
    counts: defaultdict[float, list[float]] = defaultdict(list)
    for labels, value in samples.of(series, buckets):
        try:
            counts[float(labels["le"])].append(value)
        except (KeyError, ValueError):
            raise _UnknownError(f"{buckets} has a series without a bound") from None
    if len({len(values) for values in counts.values()}) > 1:
        raise _UnknownError(f"the series of {buckets} have different bounds")
    bounds = sorted(counts)
    return Histogram(
        _shared(tuple(bound / metric.divisor for bound in bounds)),
        tuple(sum(counts[bound]) for bound in bounds),
        sum(value for _, value in samples.of(series, total)) / metric.divisor,
    )


@functools.lru_cache(maxsize=64)
def _shared(bounds: tuple[float, ...]) -> tuple[float, ...]:
    """One object for all histograms with these bounds: every reading that is kept has some."""
    return bounds


def _adapters(labels: _Labels) -> Adapters:
    """vLLM's way: names and the number of slots in labels, and a new series at each change."""
    slots = labels.get("max_lora", "")
    return Adapters(
        _names(labels.get("running_lora_adapters", "")),
        _names(labels.get("waiting_lora_adapters", "")),
        int(slots) if _SLOTS.fullmatch(slots) else None,
    )


def _names(text: str) -> tuple[str, ...]:
    return tuple(sorted({name.strip() for name in text.split(",")} - {""}))
