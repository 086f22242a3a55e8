"""How `trimtab signals` shows what is known of an endpoint: a row for each signal, known or not."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any

from rich.box import SIMPLE
from rich.table import Table
from rich.text import Text

from trimtab.endpoint.engine_rates import Spread
from trimtab.endpoint.engine_readings import NOT_READ, SIGNALS
from trimtab.endpoint.prometheus_readings import CustomReading
from trimtab.endpoint.snapshot import EndpointView
from trimtab.health.state import ProbeView
from trimtab.observation.kinds import Adapters

_SHARES = frozenset({"kv_usage", "prefix_hit_rate"})
_PER_S = {
    "generated_tokens": "tokens_per_s",
    "prompt_tokens": "prompt_tokens_per_s",
    "preemptions": "preemptions_per_s",
}
_OF_LATE = {"ttft": "engine_ttft_s", "inter_token": "engine_inter_token_s", "prefix_hit_rate": "prefix_hit_rate"}
_NOTHING_NEW = {
    "ttft": "no first token in the last seconds",
    "inter_token": "no token in the last seconds",
    "prefix_hit_rate": "no prompt in the last seconds",
}


@dataclass(frozen=True, slots=True)
class Row:
    """One signal. A value of None is UNKNOWN, and `why` says why."""

    signal: str
    value: object
    text: str = ""
    age_s: float | None = None
    source: str = ""
    metric: str = ""
    why: str = ""


def rows(view: EndpointView, now: float, why_not_read: str = "", probe: ProbeView | None = None) -> Iterator[Row]:
    """A row for each signal, each custom signal, and the last probe, if there are any.

    `why_not_read`: why none of the engine's signals will ever be read.
    """
    for signal in SIGNALS:
        value = _value(signal, view)
        origin = view.signal_origins.get(_read_for(signal, view))
        if value is None or origin is None:
            why = _NOTHING_NEW.get(signal, "") if origin else view.signals_unknown.get(signal, NOT_READ)
            yield Row(signal, None, why=why_not_read or why if why == NOT_READ else why)
        else:
            text = _text(signal, value, view)
            yield Row(signal, value, text, max(0.0, now - origin.at), origin.source, origin.metric)
    yield from (_custom(name, reading, now) for name, reading in view.custom.items())
    if probe is not None:
        yield _probe(probe, now)


def as_json(
    view: EndpointView, now: float, why_not_read: str = "", probe: ProbeView | None = None
) -> Mapping[str, Any]:
    """The rows of an endpoint for programs; null is UNKNOWN."""
    return {
        "name": view.name,
        "address": view.id.address,
        "incarnation": view.id.incarnation,
        "signals": {
            row.signal: (
                {"value": None, "why": row.why}
                if row.value is None
                else {"value": _plain(row.value), "age_s": row.age_s, "source": row.source, "metric": row.metric}
            )
            for row in rows(view, now, why_not_read, probe)
        },
        "rates": {name: getattr(view, name) for name in _PER_S.values()},
    }


def table(pool: str, view: EndpointView, now: float, why_not_read: str = "", probe: ProbeView | None = None) -> Table:
    """The rows of an endpoint for people."""
    title = view.name if view.name == view.id.address else f"{view.name} ({view.id.address})"
    shown = _table(f"pool {pool}: {title}", ("signal", "value", "age", "read from, or why it is not known"))
    listed = list(rows(view, now, why_not_read, probe))
    if all(row.value is None for row in listed) and len({row.why for row in listed}) == 1:
        listed = [replace(listed[0], signal="every signal")]
    for row in listed:
        if row.value is None:
            shown.add_row(row.signal, Text("unknown", style="yellow"), "", Text(row.why, style="dim"))
        else:
            place = " ".join(filter(None, (row.source, row.metric)))
            shown.add_row(row.signal, Text(row.text), f"{row.age_s or 0:.1f} s", Text(place))
    return shown


def missing(pool: str, why: Mapping[str, str]) -> Table:
    """What a pool lacks, and why."""
    shown = _table(f"pool {pool}", ("endpoint", "why nothing is known"))
    for name, reason in why.items():
        shown.add_row(Text(name), Text(reason))
    return shown


def _table(title: str, columns: Sequence[str]) -> Table:
    shown = Table(title=Text(title, style="bold"), title_justify="left", box=SIMPLE, pad_edge=False)
    for column in columns:
        shown.add_column(column, justify="right" if column in ("value", "age") else "left", overflow="fold")
    return shown


def _read_for(signal: str, view: EndpointView) -> str:
    """The signal whose reading a value rests on: a hit rate may come from counters."""
    counted = signal == "prefix_hit_rate" and "prefix_hits" in view.signal_origins
    return "prefix_hits" if counted else signal


def _value(signal: str, view: EndpointView) -> object:
    return getattr(view, _OF_LATE[signal]) if signal in _OF_LATE else getattr(view.signals, signal)


def _text(signal: str, value: object, view: EndpointView) -> str:
    match value:
        case Spread():
            return f"{_ms(value.p50)} / {_ms(value.p99)} (p50 / p99 of {value.count:,.0f})"
        case Adapters():
            of = "" if value.slots is None else f" of {value.slots}"
            return f"{_names(value.running)}{of}; waiting: {_names(value.waiting)}"
        case float() | int() if signal in _SHARES:
            return f"{value:.1%}"
        case float() | int() if signal == "process_start":
            return datetime.fromtimestamp(value, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        case float() | int():
            rate = getattr(view, _PER_S[signal]) if signal in _PER_S else None
            return f"{value:,.0f}" if rate is None else f"{value:,.0f} ({rate:,.1f}/s)"
    return str(value)


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:,.0f} ms" if seconds >= 0.1 else f"{seconds * 1000:.1f} ms"


def _names(names: Sequence[str]) -> str:
    return ", ".join(names) or "none"


def _plain(value: object) -> object:
    return asdict(value) if isinstance(value, Spread | Adapters) else value


def _custom(name: str, reading: CustomReading, now: float) -> Row:
    if reading.value is None:
        return Row(name, None, why=reading.why)
    age_s = None if reading.at is None else max(0.0, now - reading.at)
    return Row(name, reading.value, f"{reading.value:g}", age_s, "prometheus")


def _probe(probe: ProbeView, now: float) -> Row:
    if probe.at is None:
        return Row("probe", None, why="not probed, because it has work")
    if probe.ttft_s is None:
        return Row("probe", None, why=f"{probe.result}: {probe.reason}")
    return Row("probe", probe.ttft_s, f"token in {_ms(probe.ttft_s)}", max(0.0, now - probe.at), "probe")
