"""Whether a refusal is worth another attempt."""

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from trimtab.health.state import State
from trimtab.observation.kinds import AttemptEnded, Observation, Outcome, Verdict
from trimtab.policy.model import Pool, Retries
from trimtab.v1 import observation_stream_pb2 as pb

# The engine's own trouble. Another engine need not have it.
_OF_THE_ENGINE = frozenset({Verdict.SATURATED, Verdict.UNAVAILABLE, Verdict.DRAINING})
_ORDINARY = frozenset(state for state in State if state.is_ordinary)

# While all endpoints of a pool have refused lately, its answers earn it so many retries each, and it saves up so many.
# Where one in ten attempts is refused that is a retry for each; where all are, it is none.
_EARNED = 0.15
_SAVED = 10.0

# Statuses of answers that are the caller's doing as a rule.
_OF_THE_CALLER = frozenset({400, 413, 414, 415, 422})
_LATELY_S = 60.0
_REMEMBERED = 1024  # endpoints, and kinds of requests


class Asked(NamedTuple):
    """A kind of requests that got an answer without output."""

    pool: str  # that answered
    status: int
    path: str = ""
    caller: str = ""


class _Endpoints(NamedTuple):
    """Addresses of a pool's endpoints."""

    given_work: frozenset[str]
    taking: frozenset[str]  # those too that get some because all are out


class RetryAdvice:
    """Says which refusals are retried: those that another endpoint need not repeat, while there is such an endpoint.

    A caller's quota is the same everywhere. What does not say why it refuses is retried by its status, as the policy
    says. When all endpoints refuse, retries would only multiply the load; the control plane notices that within an
    interval, and tells in `take_states`. Then there are only as many as the answers that come all the same allow. Of a
    pool whose states were never told all is taken to be well.
    """

    def __init__(self, pools: Iterable[Pool] = ()) -> None:
        self._retries: dict[str, Retries] = {}
        self._former: dict[str, Retries] = {}  # of the policy before: a request keeps the route that it was given
        self._endpoints: dict[str, _Endpoints] = {}
        self._saved: dict[str, float] = defaultdict(float)
        self._without_output: dict[Asked, dict[str, float]] = {}  # when each endpoint gave such an answer
        self.take_policy(pools)

    def take_policy(self, pools: Iterable[Pool]) -> None:
        """Go on with other pools. What was said of those that are gone holds until the next policy."""
        self._former = self._retries
        self._retries = {pool.name: pool.retries for pool in pools}
        for name in self._saved.keys() - self._retries.keys() - self._former.keys():
            del self._saved[name]
        known = self._retries.keys() | self._former.keys()
        self._without_output = {asked: given for asked, given in self._without_output.items() if asked.pool in known}

    def take_states(self, states: pb.PoolStates) -> None:
        """Take in what the control plane does with the endpoints of all pools."""
        self._endpoints = {
            pool.pool: _Endpoints(
                frozenset(endpoint.address for endpoint in pool.endpoints if endpoint.state in _ORDINARY),
                frozenset(endpoint.address for endpoint in pool.endpoints if endpoint.takes_work),
            )
            for pool in states.pools
        }

    def observe(self, observations: Iterable[Observation]) -> None:
        """Take in what was answered."""
        for one in observations:
            if isinstance(one, AttemptEnded) and one.outcome is Outcome.COMPLETE and one.status < 400:
                self._saved[one.pool] = min(_SAVED, self._saved[one.pool] + _EARNED)

    def are_spent(self, pool: str, attempts: int) -> bool:
        """Whether a request that asked for `pool` gets no more attempts, having had so many."""
        retries = self._retries_of(pool)
        return retries is not None and attempts > retries.attempts

    def is_worth_it(self, pool: str, address: str, status: int, verdict: Verdict) -> bool:
        """Whether to retry what the endpoint at `address` refused with `status`."""
        if verdict is Verdict.UNKNOWN:
            retries = self._retries_of(pool)
            worth_it = retries is not None and status in retries.status_codes
        else:
            worth_it = verdict in _OF_THE_ENGINE
        if not worth_it:
            return False
        endpoints = self._endpoints.get(pool)
        if endpoints is None or endpoints.given_work - {address}:
            return True
        return bool(endpoints.taking - {address}) and self._spend(pool)

    def is_worth_another(self, now: float, asked: Asked, address: str) -> bool:
        """Whether to retry an answer without output that the endpoint at `address` gave at `now`.

        It is unless the other endpoints gave such an answer lately: then it is the caller's doing. Of a status that
        mostly is, one other endpoint is enough.
        """
        pool, status = asked.pool, asked.status
        given = self._without_output.pop(asked, {})
        given[address] = now
        self._without_output[asked] = given
        if len(given) > _REMEMBERED:
            del given[next(iter(given))]
        if len(self._without_output) > _REMEMBERED:
            del self._without_output[next(iter(self._without_output))]
        others_gave = {other for other, at in given.items() if other != address and now - at < _LATELY_S}
        if status in _OF_THE_CALLER and others_gave:
            return False
        endpoints = self._endpoints.get(pool)
        return endpoints is None or bool(endpoints.given_work - {address} - others_gave)

    def _retries_of(self, pool: str) -> Retries | None:
        return self._retries.get(pool) or self._former.get(pool)

    def _spend(self, pool: str) -> bool:
        if self._saved[pool] < 1.0:
            return False
        self._saved[pool] -= 1.0
        return True
