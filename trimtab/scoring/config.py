"""Kinds of numbers that strategies have, and what must hold between them."""

from collections.abc import Iterator
from typing import Annotated

from pydantic import Field

from trimtab.strict import Flaw, Strict

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]


def sum_to_one(config: Strict, *names: str) -> Iterator[Flaw]:
    """A flaw, shown at any of the fields, unless they sum to 1."""
    total = sum(getattr(config, name) for name in names)
    if abs(total - 1) > 1e-6:
        yield Flaw(f"{' + '.join(names)} must be 1, not {total:g}", *((name,) for name in names))


def remembered(value: object) -> float | None:
    """A number that a strategy remembered, as it may come back from a file; None if it is none that can be used."""
    return float(value) if isinstance(value, int | float) and abs(value) <= 1e300 else None
