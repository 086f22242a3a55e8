"""A pool under test: what is seen of it is told in one line each, and time is a number."""

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from trimtab.endpoint.snapshot import EndpointView
from trimtab.observation.kinds import (
    AnswerRead,
    AttemptEnded,
    AttemptStarted,
    ClusterChanged,
    FirstToken,
    LoadReported,
    Observation,
    Outcome,
    Output,
    Rejected,
    Signals,
    SignalsRead,
    StreamRead,
    Verdict,
    WorkerMissed,
)
from trimtab.policy.model import Endpoint, Pool
from trimtab.pool import EndpointDecision, EndpointSpec, PoolController, PoolDecision

POOL = "chat"
A, B, C = "10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3:8000"


def started(
    at: float,
    address: str = A,
    request: str = "r",
    *,
    streamed: bool | None = True,
    prompt: int | None = 100,
    path: str = "/v1/chat/completions",
    caller: str = "192.0.2.1",
) -> AttemptStarted:
    return AttemptStarted(at, POOL, address, request, prompt, streamed, path, caller)


def token(at: float, address: str = A, request: str = "r") -> FirstToken:
    return FirstToken(at, POOL, address, request)


def rejected(
    at: float,
    address: str = A,
    request: str = "r",
    verdict: Verdict = Verdict.SATURATED,
    *,
    status: int = 429,
    retry_after_s: float | None = None,
    in_stream: bool = False,
) -> Rejected:
    return Rejected(at, POOL, address, request, status, verdict, retry_after_s, in_stream, "a-rule")


def ended(
    at: float,
    started_at: float,
    address: str = A,
    request: str = "r",
    *,
    status: int = 200,
    outcome: Outcome = Outcome.COMPLETE,
    streamed: bool = True,
    first_byte_s: float | None = 0.01,
    body_bytes: int = 500,
    prompt: int | None = None,
    content_type: str | None = None,
    path: str = "/v1/chat/completions",
    caller: str = "192.0.2.1",
) -> AttemptEnded:
    """An end; its answer is an event stream, or JSON, unless a content type is given."""
    return AttemptEnded(
        at,
        POOL,
        address,
        request,
        started_at,
        status,
        outcome,
        streamed,
        first_byte_s,
        prompt,
        body_bytes,
        content_type or ("text/event-stream" if streamed else "application/json"),
        path,
        caller,
    )


def answer_read(
    at: float,
    address: str = A,
    request: str = "r",
    output: Output = Output.OUTPUT,
    *,
    reason: str = "",
    output_tokens: int | None = None,
) -> AnswerRead:
    return AnswerRead(at, POOL, address, request, output, reason, output_tokens)


def failed(at: float, address: str = A, request: str = "r", *, took_s: float = 0.0) -> AttemptEnded:
    return ended(at, at - took_s, address, request, status=500, first_byte_s=None, streamed=False)


def unreachable(at: float, address: str = A, request: str = "r") -> AttemptEnded:
    return ended(at, at, address, request, status=0, outcome=Outcome.UNREACHABLE, first_byte_s=None, body_bytes=0)


def answered(at: float, ttft_s: float, address: str = A, request: str = "r") -> list[Observation]:
    """A whole stream: sent at `at`, first token `ttft_s` later, ended 10 ms after that."""
    end = at + ttft_s + 0.01
    return [
        started(at, address, request),
        token(at + ttft_s, address, request),
        ended(end, at, address, request, first_byte_s=ttft_s),
    ]


def stream_read(
    at: float,
    address: str = A,
    request: str = "r",
    *,
    gaps_s: Sequence[float] = (0.02, 0.05),
    verdict: Verdict | None = None,
    finished: bool = True,
    truncated: bool = False,
) -> StreamRead:
    finished = finished and verdict is None and not truncated
    return StreamRead(at, POOL, address, request, tuple(gaps_s), finished, verdict, truncated)


def load(at: float, in_flight: int, address: str = A, *, node: str = "envoy") -> LoadReported:
    return LoadReported(at, POOL, node, {address: in_flight} if in_flight else {})


def cluster_changed(at: float) -> ClusterChanged:
    return ClusterChanged(at, POOL)


def worker_missed(at: float) -> WorkerMissed:
    return WorkerMissed(at, POOL)


def read(at: float, address: str = A, *, error: str = "", **signals: float | None) -> SignalsRead:
    return SignalsRead(at, POOL, address, Signals(**signals), error)


class Scene:
    """A controller with its endpoints, and what its last decision said."""

    def __init__(
        self,
        capacities: Mapping[str, float | None] | Sequence[str] = (A, B),
        *,
        now: float = 1000.0,
        seed: int = 1,
        memory: Mapping[str, Any] | None = None,
        **policy: Any,
    ) -> None:
        self.capacities = capacities if isinstance(capacities, Mapping) else dict.fromkeys(capacities)
        self.policy = Pool(
            name=POOL,
            scoring=policy.pop("scoring", {"strategy": "health"}),
            endpoints=tuple(Endpoint(address=a, capacity=c) for a, c in self.capacities.items()),
            **policy,
        )
        self.controller = PoolController(self.policy, Random(seed), memory)
        self.now = now
        self.decision: PoolDecision | None = None
        self.set_endpoints(*self.capacities)

    def set_endpoints(self, *addresses: str) -> None:
        specs = [EndpointSpec(a, a, self.capacities.get(a)) for a in addresses]
        self.controller.set_endpoints(self.now, specs)

    def see(self, *observations: Observation, now: float | None = None) -> None:
        """Observe; `now` moves to the newest of them unless it is given."""
        self.now = max([self.now, *(o.at for o in observations)]) if now is None else now
        self.controller.observe(self.now, observations)

    def step(self, now: float | None = None) -> PoolDecision:
        self.now = self.now if now is None else now
        self.decision = self.controller.step(self.now)
        return self.decision

    def run(self, until: float, interval_s: float = 0.25) -> list[PoolDecision]:
        """Step at every interval up to `until`, the last one at it."""
        decisions = []
        while self.now + interval_s < until:
            decisions.append(self.step(self.now + interval_s))
        decisions.append(self.step(until))
        return decisions

    def at(self, address: str = A) -> EndpointDecision:
        """What the last decision says of an endpoint."""
        assert self.decision is not None
        return next(e for e in self.decision.endpoints if e.id.address == address)

    def view(self, address: str = A) -> EndpointView:
        """What is known of an endpoint now."""
        self.step()
        return self.at(address).view
