"""The /metrics page of a simulated engine.

A page that a real vLLM answered is the template: names, labels, buckets, help texts and order are its own,
only the values are ours. The `python_*` and `process_*` values are the template's, but for the start time.
"""

import bisect
import re
from collections.abc import Callable
from importlib import resources
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Histogram, Summary, generate_latest
from prometheus_client.utils import floatToGoString

from trimtab.sim.kinds import EngineKind

_TEMPLATE: Final = resources.files("trimtab.sim").joinpath("data/vllm_metrics.txt")
_SERIES: Final = re.compile(r"(?P<name>[\w:]+)(?:\{(?P<labels>.*)\})? (?P<value>\S+)")
_CONSTANT_LABELS: Final = re.compile(r'(?:engine|model_name)="[^"]*",?')
_FROM_1_TO_5: Final = [half / 2 for half in range(2, 11)]
_FINE_BUCKETS: Final = (0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, *_FROM_1_TO_5, 7.5, 10, 30, 60)
_BUCKET: Final = re.compile(r'(?P<family>.*)_bucket\{le="(?P<bound>[^"]*)"\}')
_number: Final[Callable[[float], str]] = floatToGoString


class _Buckets:
    """The counts of a histogram. It can take many equal values at once, which inter-token times are."""

    def __init__(self) -> None:
        self.bounds: list[float] = []
        self.counts: list[int] = []
        self.sum = 0.0

    def observe(self, value: float, times: int) -> None:
        self.counts[bisect.bisect_left(self.bounds, value)] += times
        self.sum += value * times


class MetricsPage:
    """Series are named as on the page, less the labels `engine` and `model_name`. Others are KeyErrors."""

    def __init__(self, model: str, kind: EngineKind, started_at: float) -> None:
        self._values: dict[str, float] = {}
        self._histograms: dict[str, _Buckets] = {}
        self._lines: list[tuple[str, str]] = []  # fixed text, and the series whose value follows ("": none)
        self._read_template(model, kind, started_at)
        self.http = HttpStatistics()

    def set(self, series: str, value: float) -> None:
        """Set a gauge."""
        self._check(series)
        self._values[series] = value

    def add(self, series: str, amount: float = 1) -> None:
        """Raise a counter."""
        self._check(series)
        self._values[series] += amount

    def observe(self, family: str, value: float, times: int = 1) -> None:
        """Add a value to a histogram."""
        self._histograms[family].observe(value, times)

    def render(self) -> bytes:
        """The page."""
        for family, histogram in self._histograms.items():
            total = 0
            for bound, count in zip(histogram.bounds, histogram.counts, strict=True):
                total += count
                self._values[f'{family}_bucket{{le="{_number(bound)}"}}'] = total
            self._values[f"{family}_count"] = total
            self._values[f"{family}_sum"] = histogram.sum
        values = self._values
        lines = [f"{text}{_number(values[key])}\n" if key else text for text, key in self._lines]
        return "".join(lines).encode() + self.http.render()

    def _check(self, series: str) -> None:
        if series not in self._values:
            raise KeyError(series)

    def _read_template(self, model: str, kind: EngineKind, started_at: float) -> None:
        for line in _TEMPLATE.read_text().splitlines():
            match = _SERIES.fullmatch(line)
            if match is None:
                self._lines.append((f"{line}\n", ""))
                continue
            name, labels = match["name"], match["labels"] or ""
            own = _CONSTANT_LABELS.sub("", labels).rstrip(",")
            key = f"{name}{{{own}}}" if own else name
            shown = _with_model(labels, model)
            if name == "vllm:cache_config_info":
                shown, key = _with_cache_config(shown, kind), name
            self._values[key] = _first_value(name, float(match["value"]), started_at)
            self._lines.append((f"{name}{{{shown}}} " if shown else f"{name} ", key))
            bucket = _BUCKET.fullmatch(key)
            if bucket is not None:
                histogram = self._histograms.setdefault(bucket["family"], _Buckets())
                histogram.bounds.append(float(bucket["bound"]))
                histogram.counts.append(0)


def _first_value(name: str, captured: float, started_at: float) -> float:
    return started_at if name.endswith("_created") or name == "process_start_time_seconds" else captured


def _with_model(labels: str, model: str) -> str:
    escaped = model.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    return re.sub(r'model_name="[^"]*"', lambda _: f'model_name="{escaped}"', labels)


def _with_cache_config(labels: str, kind: EngineKind) -> str:
    tokens = kind.kv_blocks * kind.block_size
    config = {
        "block_size": kind.block_size,
        "effective_attention_block_size": kind.block_size,
        "kv_cache_max_concurrency": tokens / kind.max_model_len,
        "kv_cache_size_tokens": tokens,
        "num_gpu_blocks": kind.kv_blocks,
    }
    for name, value in config.items():
        labels = re.sub(rf'\b{name}="[^"]*"', f'{name}="{value}"', labels)
    return labels


class HttpStatistics:
    """The families that vLLM's HTTP layer adds."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        help_size = "Only value of header is respected. Otherwise ignored. No percentile calculated. "
        self._requests = Counter(
            "http_requests_total",
            "Total number of requests by method, status and handler.",
            ["method", "status", "handler"],
            registry=self._registry,
        )
        self._request_bytes = Summary(
            "http_request_size_bytes",
            f"Content length of incoming requests by handler. {help_size}",
            ["handler"],
            registry=self._registry,
        )
        self._response_bytes = Summary(
            "http_response_size_bytes",
            f"Content length of outgoing responses by handler. {help_size}",
            ["handler"],
            registry=self._registry,
        )
        self._fine_latency = Histogram(
            "http_request_duration_highr_seconds",
            "Latency with many buckets but no API specific labels. Made for more accurate percentile calculations. ",
            buckets=_FINE_BUCKETS,
            registry=self._registry,
        )
        self._latency = Histogram(
            "http_request_duration_seconds",
            "Latency with only few buckets by handler. Made to be only used if aggregation by handler is important. ",
            ["method", "handler"],
            buckets=(0.1, 0.5, 1),
            registry=self._registry,
        )

    def count(
        self, method: str, handler: str, status: int, request_bytes: int, response_bytes: int, seconds: float
    ) -> None:
        """Count one answered request; sizes are those of the content-length headers, 0 without one."""
        self._requests.labels(method, f"{status // 100}xx", handler).inc()
        self._request_bytes.labels(handler).observe(request_bytes)
        self._response_bytes.labels(handler).observe(response_bytes)
        self._fine_latency.observe(seconds)
        self._latency.labels(method, handler).observe(seconds)

    def render(self) -> bytes:
        """The families as text."""
        return generate_latest(self._registry)
