"""What a source of endpoints is."""

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import ClassVar, Protocol


class SourceError(Exception):
    """A source is down, or what it says makes no sense; the message is one line."""


@dataclass(frozen=True, slots=True)
class Listed:
    """One endpoint as a source lists it. `host` may be a name, which is then resolved."""

    host: str
    port: int
    name: str  # of its own within the pool
    capacity: float | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    uid: str = ""  # of the process behind it, where the source knows
    out: str = ""  # why it is to take no new work; empty if it may


Answer = tuple[Listed, ...]


class Source(Protocol):
    """One of the sources that a policy can name."""

    longest_retry_s: ClassVar[float]
    """How long it may be left alone after failures."""

    def answers(self) -> AsyncGenerator[Answer]:
        """Ask, and go on: all endpoints at once, then all again whenever they may have changed, without end.

        Raises SourceError, AccessError or OSError when it does not work; the caller then asks anew. The caller closes
        the generator, which frees what it holds.
        """
        ...


def socket_address(host: str, port: int) -> str:
    """The two as one text, such as `[::1]:8000`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def capacity(labels: Mapping[str, str], label: str) -> float | None:
    """The number that a label holds; None if it holds none above 0."""
    try:
        number = float(labels[label])
    except (KeyError, ValueError):
        return None
    return number if number > 0 and isfinite(number) else None


def one_line(error: BaseException) -> str:
    """What an error says, without line breaks, and not too long."""
    return " ".join(str(error).split())[:200] or type(error).__name__
