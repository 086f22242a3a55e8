"""How a policy and our tables say which metric carries a signal: a small part of PromQL."""

import functools
import re
from dataclasses import dataclass
from math import inf

from trimtab.policy.words import quoted

_LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*\s*=\s*"(?:[^"\\]|\\.)*"'
_SERIES = rf"([a-zA-Z_:][a-zA-Z0-9_:]*)\s*(?:\{{\s*((?:{_LABEL}\s*(?:,\s*{_LABEL}\s*)*)?)\}})?"
_SERIES_SHAPE = re.compile(_SERIES)
_METRIC_SHAPE = re.compile(rf"\s*({_SERIES}(?:\s*\+\s*{_SERIES})*)\s*(?:/\s*([0-9]+(?:\.[0-9]+)?)\s*)?")
_LABEL_SHAPE = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"')
_ESCAPES = {r"\\": "\\", r"\"": '"', r"\n": "\n"}
_ESCAPED = str.maketrans({plain: escape for escape, plain in _ESCAPES.items()})


@dataclass(frozen=True, slots=True)
class Series:
    """The series of one metric whose labels have these values."""

    name: str
    labels: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        within = ",".join(f'{label}="{value.translate(_ESCAPED)}"' for label, value in self.labels)
        return f"{self.name}{{{within}}}" if within else self.name


@dataclass(frozen=True, slots=True)
class Metric:
    """A sum of metrics, divided by a number: 100 makes a share of a percentage, 1000 seconds of milliseconds."""

    terms: tuple[Series, ...]
    divisor: float = 1.0

    def __str__(self) -> str:
        whole = " + ".join(map(str, self.terms))
        return whole if self.divisor == 1 else f"{whole} / {self.divisor:g}"


@functools.cache
def parse_metric(text: str) -> Metric:
    """Read such as `queue_depth{queue="chat"} + swapped` or `cache_percent / 100`.

    The divisor belongs to the whole sum. Raises ValueError, with the fix, for anything else.
    """
    found = _METRIC_SHAPE.fullmatch(text)
    divisor = float(found[found.re.groups] or 1) if found else 0.0
    if found is None or not 0 < divisor < inf:
        raise ValueError(
            f"{quoted(text)} must be the name of a metric, with labels or a divisor above 0 if need be, "
            'as in queue_depth{queue="chat"} or cache_percent / 100'
        )
    return Metric(
        tuple(
            Series(term[1], tuple((label, _unescaped(value)) for label, value in _LABEL_SHAPE.findall(term[2] or "")))
            for term in _SERIES_SHAPE.finditer(found[1])
        ),
        divisor,
    )


def _unescaped(value: str) -> str:
    return re.sub(r"\\.", lambda escape: _ESCAPES.get(escape[0], escape[0]), value)
