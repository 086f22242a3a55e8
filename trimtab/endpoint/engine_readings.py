"""What an engine says of itself, and what its numbers say of a restart."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from math import inf, isfinite
from typing import Any

from trimtab.endpoint.engine_rates import Rates, RateWindow
from trimtab.observation.kinds import SCRAPE, Adapters, Histogram, Signals, SignalsRead

# A kernel reckons a process's start from its boot time, which follows corrections of the clock by a second.
PROCESS_START_JITTER_S = 2.0

SIGNALS = tuple(each.name for each in fields(Signals))
NOT_READ = "not read yet"
_TELL_OF_RESTARTS = ("process_start", "generated_tokens", "preemptions")


# Up to here each whole number is a float of its own, and whatever is reckoned with a few of them stays finite.
_MOST = 2.0**53
# No clock of a machine is there yet (year 2286), and it is far from where calendars end.
_LATEST_S = 1e10


def _within(value: float, most: float) -> str:
    if not isfinite(value):
        return f"{value:g} is no number"
    if value < 0:
        return f"{value:g} is below 0"
    return "" if value <= most else f"{value:g} is above all that can be"


def _count(value: float) -> str:
    return _within(value, _MOST)


def _share(value: float) -> str:
    return _count(value) or ("" if value <= 1 else f"{value:g} is no share of 0 to 1; is it a percentage?")


def _time(value: float) -> str:
    return _within(value, _LATEST_S)


def _histogram(value: Histogram) -> str:
    bounds, counts = value.bounds, value.counts
    if len(bounds) < 2 or bounds[-1] != inf or len(bounds) != len(counts):
        return "the histogram lacks buckets"
    if not all(low < high for low, high in pairwise(bounds)):
        return "the histogram's bounds do not rise"
    if not isfinite(bounds[0]):
        return "the histogram's bounds are no numbers"
    if not all(low <= high for low, high in pairwise((0.0, *counts, inf))):
        return "the histogram's counts do not rise"
    return _count(counts[-1]) or _count(value.total)


def _always(value: Adapters) -> str:
    return ""


_FAULTS: Mapping[str, Callable[[Any], str]] = {
    "kv_usage": _share,
    "process_start": _time,
    "prefix_hit_rate": _share,
    "ttft": _histogram,
    "inter_token": _histogram,
    "adapters": _always,
}


def fault_of(signal: str, value: object) -> str:
    """Why a value of a signal cannot be true; empty if it can."""
    return _FAULTS.get(signal, _count)(value)


def plausible(read: SignalsRead) -> SignalsRead:
    """The same reading, with what cannot be true as UNKNOWN."""
    faults = {
        name: fault
        for name in SIGNALS
        if (value := getattr(read.signals, name)) is not None and (fault := fault_of(name, value))
    }
    if not faults:
        return read
    return replace(
        read,
        signals=replace(read.signals, **dict.fromkeys(faults)),
        origins={name: metric for name, metric in read.origins.items() if name not in faults},
        unknown={**read.unknown, **faults},
    )


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a signal was read, and when."""

    source: str
    metric: str  # its name there, or another word for the place; empty if the source does not say
    at: float  # Unix seconds


@dataclass(frozen=True, slots=True)
class ReadingsView:
    """What is known of an engine from all its sources."""

    signals: Signals = field(default_factory=Signals)
    rates: Rates = field(default_factory=Rates)
    origins: Mapping[str, Origin] = field(default_factory=dict)  # of each known signal
    unknown: Mapping[str, str] = field(default_factory=dict)  # of each other signal, why it is not known


class _Origins(Mapping[str, Origin]):
    """Where the signals of a reading were read, put together when asked for: there are a dozen, and few ask."""

    __slots__ = ("_read", "_said")

    def __init__(self, read: SignalsRead, said: tuple[str, ...]) -> None:
        self._read = read
        self._said = said

    def __getitem__(self, signal: str) -> Origin:
        if signal not in self._said:
            raise KeyError(signal)
        return Origin(self._read.source, self._read.origins.get(signal, ""), self._read.at)

    def __iter__(self) -> Iterator[str]:
        return iter(self._said)

    def __len__(self) -> int:
        return len(self._said)


class _Source:
    """The latest readings of one source."""

    __slots__ = ("at", "error", "known", "rates", "read", "said", "window")

    def __init__(self) -> None:
        self.at: float | None = None
        self.read: SignalsRead | None = None  # the last good one, without its histograms: they are in the window
        self.said: tuple[str, ...] = ()  # the signals that it had
        self.rates = Rates()
        self.error = ""  # of a failure since then
        self.window = RateWindow()
        # The last that was known of what tells a restart, and where it was read (None: anywhere); it outlives readings
        # that lack it.
        self.known: dict[str, tuple[float, str | None]] = {}

    def take(self, at: float, read: SignalsRead) -> None:
        self.error = read.error
        if read.error:
            return
        if self.read is not None and any(self.read.origins.get(n, place) != place for n, place in read.origins.items()):
            self.window = RateWindow()  # a counter of other series has nothing to do with the one before
        self.said = tuple(name for name in SIGNALS if getattr(read.signals, name) is not None)
        self.at, self.read = at, replace(read, signals=replace(read.signals, ttft=None, inter_token=None))
        self.rates = self.window.add(at, read.signals)
        for name in _TELL_OF_RESTARTS:
            if (value := getattr(read.signals, name)) is not None:
                self.known[name] = value, read.origins.get(name)

    def view(self) -> ReadingsView:
        """What the last good reading says, without regard to its age."""
        if self.read is None:
            return ReadingsView()
        return ReadingsView(self.read.signals, self.rates, _Origins(self.read, self.said), self.read.unknown)

    def why_unknown(self, signal: str, fresh: bool) -> str:
        """Why a signal is not known from here; empty if it was never meant to be."""
        if self.read is None:
            return self.error or NOT_READ
        if not fresh:
            return f"the last reading is too old{f': {self.error}' if self.error else ''}"
        return self.read.unknown.get(signal, "")


class Readings:
    """The latest readings of one incarnation, from any number of sources.

    Of several sources that know a signal, the freshest counts.
    """

    __slots__ = ("_sources", "_view", "_view_of")

    def __init__(self) -> None:
        self._sources: dict[str, _Source] = {}
        self._view = ReadingsView()
        self._view_of: tuple[str, ...] | None = None  # the fresh sources that it was made of

    def known(self, signal: str) -> float | None:
        """The last known reading of what tells a restart, by the engine's own metrics."""
        source = self._sources.get(SCRAPE)
        return source.known[signal][0] if source and signal in source.known else None

    def restore(self, **known: float | None) -> None:
        """Begin with what earlier readings of the engine's own metrics told of restarts."""
        source = self._source(SCRAPE)
        source.known |= {name: (value, None) for name, value in known.items() if value is not None}

    def is_news(self, read: SignalsRead) -> bool:
        """Whether a reading is newer than the latest of its source."""
        source = self._sources.get(read.source)
        return source is None or source.at is None or read.at > source.at

    def show_restart(self, read: SignalsRead) -> bool:
        """Whether a reading comes from another process than the earlier ones of its source.

        A process start that moves back is no restart: several workers behind one port answer in turn. Nor is a counter
        that is lower in another place, where a policy has come to select other series.
        """
        source = self._sources.get(read.source)

        def moved(name: str) -> float:
            after = getattr(read.signals, name)
            if source is None or name not in source.known or after is None:
                return 0.0
            before, place = source.known[name]
            return after - before if place in (None, read.origins.get(name)) else 0.0

        return (
            moved("generated_tokens") < 0 or moved("preemptions") < 0 or moved("process_start") > PROCESS_START_JITTER_S
        )

    def generated_since(self, read: SignalsRead) -> float | None:
        """When its source was last read, if the engine has generated tokens between then and a new reading."""
        source = self._sources.get(read.source)
        if source is None or source.at is None or source.read is None:
            return None
        before, after = source.read.signals.generated_tokens, read.signals.generated_tokens
        return source.at if before is not None and after is not None and after > before else None

    def take(self, at: float, read: SignalsRead) -> None:
        """Take in a reading of `at`. A failed one leaves the last good one."""
        self._source(read.source).take(at, read)
        self._view_of = None

    def tokens_per_s_held(self, source: str) -> float | None:
        """The tokens per second that were kept up until a source's last reading; None where too little was read."""
        return self._sources[source].window.tokens_per_s_held

    def age(self, now: float) -> float | None:
        """Age of the newest good reading [s]."""
        taken = [source.at for source in self._sources.values() if source.at is not None]
        return max(0.0, now - max(taken)) if taken else None

    def view(self, now: float, stale_after_s: float) -> ReadingsView:
        """All readings that are not stale."""
        fresh = tuple(
            name for name, source in self._sources.items() if source.at is not None and now - source.at <= stale_after_s
        )
        if self._view_of != fresh:
            self._view, self._view_of = self._seen_by(fresh), fresh
        return self._view

    def _source(self, name: str) -> _Source:
        if (source := self._sources.get(name)) is None:
            source = self._sources[name] = _Source()
        return source

    def _seen_by(self, fresh: tuple[str, ...]) -> ReadingsView:
        seen = [source for name in fresh if (source := self._sources[name]).read is not None]
        if len(seen) == len(self._sources) == 1:
            return seen[0].view()
        seen.sort(key=lambda source: source.at or 0.0, reverse=True)
        values: dict[str, Any] = {}
        origins: dict[str, Origin] = {}
        for view in (source.view() for source in seen):
            for name, origin in view.origins.items():
                if name not in values:
                    values[name], origins[name] = getattr(view.signals, name), origin
        return ReadingsView(
            Signals(**values),
            _first_known([source.rates for source in seen]),
            origins,
            {name: self._why_unknown(name, fresh) for name in SIGNALS if name not in values},
        )

    def _why_unknown(self, signal: str, fresh: tuple[str, ...]) -> str:
        whys = {
            name: why for name, source in self._sources.items() if (why := source.why_unknown(signal, name in fresh))
        }
        if len(whys) == 1:
            return next(iter(whys.values()))
        return "; ".join(f"{name}: {why}" for name, why in whys.items()) or NOT_READ


def _first_known(rates: list[Rates]) -> Rates:
    if len(rates) == 1:
        return rates[0]
    return Rates(
        **{
            each.name: next((value for one in rates if (value := getattr(one, each.name)) is not None), None)
            for each in fields(Rates)
        }
    )
