"""The contract of a scoring strategy.

A strategy turns what is known of a pool's endpoints into a score with its breakdown, and a share of the next
interval's work, per endpoint. It is joint over the pool (water filling pours over all endpoints at once) and
may keep state between calls. It does no I/O, reads no clock and draws no randomness of its own.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar

from trimtab.endpoint.failure_signals import FailureSignal
from trimtab.endpoint.snapshot import EndpointId, PoolSnapshot, TokenSample


class Need(StrEnum):
    """An input that a strategy reads."""

    TTFT = "ttft"  # first tokens, from the watching filter
    ERRORS = "errors"
    LEASES = "leases"  # outstanding prompt work, from the access log
    WAITING = "waiting"  # this and what follows comes from sources that a pool may or may not have
    RUNNING = "running"
    KV_USAGE = "kv_usage"
    PREEMPTIONS = "preemptions"
    INTER_TOKEN = "inter_token"  # gaps between tokens
    TOKENS_PER_S = "tokens_per_s"


@dataclass(frozen=True, slots=True)
class Score:
    """What a strategy says of one endpoint."""

    score: float  # 0..100, 100 is best
    share: float  # >= 0; only its proportion to the other endpoints' shares counts
    class_shares: tuple[float, ...] = field(default=(), kw_only=True)
    """The same for each length class of the pool, of a strategy that tells them apart; of the others none."""
    breakdown: Mapping[str, float] = field(default_factory=dict)  # term -> points lost, 0..100
    why: str = ""  # of the share, where it does not follow from the score: a few words for people
    prediction_error: float | None = None  # of a strategy that predicts TTFT: mean |predicted - seen| / seen


@dataclass(frozen=True, slots=True)
class Eligible:
    """Which endpoints of a pool take new work. The others get a floor at most, whatever a strategy says."""

    ids: frozenset[EndpointId]
    not_longest: frozenset[EndpointId] = frozenset()  # those that take nothing of the longest length class

    @classmethod
    def everyone(cls, pool: PoolSnapshot) -> "Eligible":
        """Every endpoint of `pool`, in every class."""
        return cls(frozenset(view.id for view in pool.endpoints))

    def of_each_class(self, classes: int) -> Sequence[frozenset[EndpointId]]:
        """Those of each of so many length classes, short to long; of a pool without any, of all its work."""
        return [self.ids] * (classes - 1) + [self.ids - self.not_longest]


class Strategy(ABC):
    """One scoring strategy with its config, for one pool.

    Once per step `advance` is called, then `score`, with the same pool and the same eligible endpoints. State moves in
    `advance` and `learn` alone, so what a strategy says of a pool can be asked at any time.

    `ramped` and `damped` say which weighting steps suit the strategy: a slow score wants both, a strategy that moves
    its shares on purpose at every interval wants neither.
    """

    name: ClassVar[str]
    needs: ClassVar[frozenset[Need]]  # without these it is not what it says: a pool must be able to have them
    uses: ClassVar[frozenset[Need]] = frozenset()  # it does better with these, and can do without
    slow_started: ClassVar[bool] = True  # the score may rise only so many points per second
    damped: ClassVar[bool] = True  # small changes of a weight are not pushed
    floored: ClassVar[bool] = True  # an endpoint that is in keeps a least share; False: the strategy sees to that
    request_bias: ClassVar[float] = (
        1.0  # Envoy's, where a policy names none; 0: the strategy itself counts what is in flight
    )
    ttft_alpha: float = 0.2  # weight of a new sample in the mean TTFT that the strategy is shown

    def advance(self, pool: PoolSnapshot, eligible: Eligible) -> None:  # noqa: B027
        """Take in what came up to `pool.at`: work that was sent, endpoints that came or were restarted."""

    @abstractmethod
    def score(self, pool: PoolSnapshot, eligible: Eligible) -> Mapping[EndpointId, Score]:
        """Score every endpoint of `pool`, those that are not eligible too; the shares of these are not used.

        It changes nothing: the same pool gives the same scores again. Where the pool has length classes, a strategy
        that has no `class_shares` gives its shares to all of them.
        """

    def required(self) -> frozenset[Need]:
        """Of what it needs, that which it reads with the numbers that it has."""
        return self.needs

    def learn(self, sample: TokenSample) -> FailureSignal | None:
        """Take in one successful attempt that showed its first token. Returns the failure signal that it completes.

        Most strategies learn nothing from single attempts.
        """
        return None

    def forget(self, endpoint: EndpointId) -> None:  # noqa: B027
        """Drop what was learned of an endpoint that is gone."""

    def dump(self) -> dict[str, Any]:
        """What was learned, by address, as JSON-able values: kept over a restart, for as long as the address is."""
        return {}

    def restore(self, memory: Mapping[str, Any]) -> None:  # noqa: B027
        """Take back what `dump` gave; unknown or malformed entries are ignored."""
