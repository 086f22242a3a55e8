"""Failure signals: what shows that an endpoint is dead, dying, slow or leaving, although it may call itself healthy."""

from dataclasses import dataclass
from enum import StrEnum

from trimtab.endpoint.snapshot import EndpointId


class FailureSignal(StrEnum):
    """By the word that metrics have for each. docs/concepts/health.md says what follows from it."""

    FAILURES = "failures"  # attempts failed one after the other
    ERROR_SHARE = "error-share"  # more of its attempts fail than of the others'
    SILENT = "silent"  # it was waited for, and gave neither a token nor an answer
    STALLED = "stalled"  # nothing more came of a stream that had begun
    TRUNCATED = "truncated"  # a stream ended in good order before its answer did
    NO_OUTPUT = "no-output"  # its answers carry nothing of a model, where those of others do
    SLOW = "slow"  # its first tokens come far later than was predicted
    LEAVING = "leaving"  # it says that it is going away


@dataclass(frozen=True, slots=True)
class Suspected:
    """An endpoint is taken for dead. What it answers to an attempt that was sent after `since` refutes that."""

    endpoint: EndpointId
    at: float
    since: float
    failure_signal: FailureSignal
    why: str  # for people
