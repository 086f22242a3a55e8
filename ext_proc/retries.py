"""Whether a refusal is worth another attempt."""

from collections.abc import Iterable
from math import inf

from trimtab.fleet.observation import Verdict
from trimtab.policy.model import Pool
from trimtab.pool import State
from trimtab.v1 import feedback_pb2 as pb

# The engine's own trouble. Another engine need not have it.
_OF_THE_ENGINE = frozenset({Verdict.SATURATED, Verdict.UNAVAILABLE, Verdict.DRAINING})
_GIVEN_WORK = frozenset({State.UP, State.RAMPING})

# Envoy 1.40 crashes when it retries an answer that an upstream filter has held while another attempt of the request is
# in flight: the rest of the held answer then goes to the wrong one. Attempts run side by side from the deadline of a
# hedge on, so what is held is retried only if Envoy surely hears of it before.
_BEFORE_HEDGES_S = 0.5


class RetryAdvice:
    """Says which refusals are retried: those that another endpoint need not repeat, while there is such an endpoint.

    A caller's quota is the same everywhere. What does not say why it refuses is retried by its status, as the policy
    says. When all endpoints refuse, retries would only multiply the load; the control plane notices that within an
    interval, and tells in `take_states`. Of a pool whose states were never told all is taken to be well.

    A request that is nearly as old as its hedge is not retried.
    """

    def __init__(self, pools: Iterable[Pool] = ()) -> None:
        self._attempts: dict[str, int] = {}
        self._status_codes: dict[str, frozenset[int]] = {}
        self._given_work: dict[str, frozenset[str]] = {}
        self.take_policy(pools)

    def take_policy(self, pools: Iterable[Pool]) -> None:
        """Go on with other pools."""
        pools = tuple(pools)
        self._attempts = {pool.name: 1 + pool.retries.attempts for pool in pools}
        self._status_codes = {pool.name: frozenset(pool.retries.status_codes) for pool in pools}

    def take_states(self, states: pb.PoolStates) -> None:
        """Take in what the control plane does with the endpoints of all pools."""
        self._given_work = {
            pool.pool: frozenset(endpoint.address for endpoint in pool.endpoints if endpoint.state in _GIVEN_WORK)
            for pool in states.pools
        }

    def are_spent(self, pool: str, attempts: int) -> bool:
        """Whether a request that asked for `pool` gets no more attempts, having had so many."""
        return pool in self._attempts and attempts >= self._attempts[pool]

    def is_worth_it(self, pool: str, address: str, status: int, verdict: Verdict, hedge_in_s: float = inf) -> bool:
        """Whether to retry what the endpoint at `address` refused with `status`.

        `hedge_in_s`: how soon the request may have a second attempt beside this one.
        """
        if hedge_in_s < _BEFORE_HEDGES_S:
            return False
        if verdict is Verdict.UNKNOWN:
            worth_it = status in self._status_codes.get(pool, ())
        else:
            worth_it = verdict in _OF_THE_ENGINE
        given_work = self._given_work.get(pool)
        return worth_it and (given_work is None or bool(given_work - {address}))
