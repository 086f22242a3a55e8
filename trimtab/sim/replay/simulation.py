"""One replay: a trace through one arm, with one seed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from trimtab.sim.batching import Event, Happening, Refusal
from trimtab.sim.client import Outcome
from trimtab.sim.replay.arms import Arm, static_weight
from trimtab.sim.replay.clock import Clock
from trimtab.sim.replay.control import Attempt, Control
from trimtab.sim.replay.engine import Engine
from trimtab.sim.replay.fleet import SimulatedFleet
from trimtab.sim.replay.hosts import Endpoint, Gateway, Host
from trimtab.sim.trace import Request
from trimtab.tokens import BYTES_PER_TOKEN

_REFUSAL_S = 0.004  # what vLLM takes to say that it is full
_REFUSED, _BAD_REQUEST = 503, 400
_SAMPLE_S = 0.25  # of the engines' queues


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """What a replay is made under, beside trace, fleet and arm."""

    clients: int | None = None  # closed loop: so many, each with one request at a time; arrivals are not looked at
    cut_after_last_s: float | None = None  # all that is open so long after the last arrival is cut off
    patience_s: float | None = None  # a client without a token for so long leaves
    gateways: int = 1  # Envoys
    workers: int = 1  # of each
    push_delay_s: float = 0.02  # from a decision until Envoy goes by it


@dataclass(slots=True, eq=False)
class Served:
    """What became of one request. Times are seconds since the start of the replay."""

    number: int  # in the order of arrival
    request: Request
    arrived_s: float
    first_token_s: float | None = None
    ended_s: float | None = None
    tokens: int = 0
    attempts: int = 0
    preemptions: int = 0
    endpoint: int | None = None  # that took it in, and so sent its header
    outcome: Outcome | None = None  # None while it is under way
    status: int | None = None


@dataclass(frozen=True, slots=True)
class EndpointFigures:
    """One endpoint over a whole replay."""

    name: str
    attempts: int
    refused: int
    busy_s: float
    mean_occupancy: float  # of its slots for sequences, 0..1
    mean_backlog: float  # prompt tokens without a first token


@dataclass(frozen=True, slots=True)
class Replay:
    """All that one replay showed."""

    served: Sequence[Served]
    endpoints: Sequence[EndpointFigures]
    ended_s: float
    pushes: int
    bytes_per_token: float | None  # as it was learned; None: it was not
    cut_off_s: float | None


@dataclass(slots=True)
class _Tally:
    """What is counted of one endpoint."""

    attempts: int = 0
    refused: int = 0
    backlog: int = 0  # prompt tokens, summed over samples
    running: int = 0  # sequences, likewise


@dataclass(slots=True, eq=False)
class _Try(Attempt):
    served: Served = field(kw_only=True)
    tried: tuple[int, ...] = field(kw_only=True)  # hosts, before this one
    met: int = field(kw_only=True)  # in flight at its endpoint when it began, of all gateways


class Simulation:
    """Runs once."""

    def __init__(
        self,
        trace: Sequence[Request],
        fleet: SimulatedFleet,
        arm: Arm,
        seed: int,
        conditions: Conditions,
        on_progress: Callable[[int], None] | None = None,
    ) -> None:
        # The arms of one seed have the same chances, each part of a replay its own: what an arm does with one of them
        # moves no other.
        self._client_rng, self._retry_rng = Random(f"{seed} clients"), Random(f"{seed} retries")
        self._trace = trace
        self._fleet = fleet
        self._retries = arm.retries
        self._conditions = conditions
        self._on_progress = on_progress
        self._clock = Clock()
        self._engines = [Engine(self._clock, endpoint.kind, self._happened) for endpoint in fleet.endpoints]
        self._endpoints = [Endpoint(number) for number in range(len(self._engines))]
        weights = [static_weight(arm, endpoint.capacity) for endpoint in fleet.endpoints]
        self._pool = arm.pool
        self._gateways: list[list[Gateway]] = []
        for number in range(conditions.gateways):
            rng = Random(f"{seed} gateway {number}")
            clusters = []
            for _ in arm.pool.clusters if arm.pool is not None else (arm.name,):
                hosts = [Host(endpoint, weight) for endpoint, weight in zip(self._endpoints, weights, strict=True)]
                workers = [arm.balancer(hosts, Random(rng.getrandbits(64))) for _ in range(conditions.workers)]
                clusters.append(Gateway(hosts, workers, rng))
            self._gateways.append(clusters)
        self._control = (
            Control(
                self._clock,
                arm.pool,
                fleet,
                self._engines,
                self._gateways,
                Random(f"{seed} control"),
                conditions.push_delay_s,
            )
            if arm.pool is not None
            else None
        )
        self._served: list[Served] = []
        self._open: dict[Served, _Try | None] = {}
        self._next = 0
        self._ended = 0
        self._tallies = [_Tally() for _ in self._engines]
        self._samples = 0
        self._is_cut = False

    def run(self) -> Replay:
        """Replay the trace to its end."""
        if self._conditions.clients is None:
            self._plan_arrival()
        else:
            for _ in range(min(self._conditions.clients, len(self._trace))):
                self._clock.call_at(0.0, self._arrive)
        self._clock.call_at(_SAMPLE_S, self._sample)
        self._clock.run(lambda: self._ended < len(self._trace) and not self._is_cut)
        now = self._clock.now
        return Replay(
            served=self._served,
            endpoints=[self._endpoint_figures(number, now) for number in range(len(self._engines))],
            ended_s=now,
            pushes=self._control.pushes if self._control is not None else 0,
            bytes_per_token=self._control.bytes_per_token if self._control is not None else None,
            cut_off_s=now if self._is_cut else None,
        )

    def _endpoint_figures(self, number: int, now: float) -> EndpointFigures:
        endpoint, engine, tally = self._fleet.endpoints[number], self._engines[number], self._tallies[number]
        samples = max(1, self._samples)
        return EndpointFigures(
            name=endpoint.name,
            attempts=tally.attempts,
            refused=tally.refused,
            busy_s=engine.busy_s(now),
            mean_occupancy=tally.running / samples / endpoint.kind.max_num_seqs,
            mean_backlog=tally.backlog / samples,
        )

    def _sample(self, now: float, _: Any) -> None:
        self._samples += 1
        for tally, engine in zip(self._tallies, self._engines, strict=True):
            tally.backlog += engine.model.prefill_backlog
            tally.running += engine.model.running
        self._clock.call_at(now + _SAMPLE_S, self._sample)

    # -- Clients ----------------------------------------------------------------------------------------------

    def _plan_arrival(self) -> None:
        if self._next < len(self._trace):
            self._clock.call_at(self._trace[self._next].arrival_s, self._arrive)
        elif (cut_after_s := self._conditions.cut_after_last_s) is not None:
            self._clock.call_at(self._clock.now + cut_after_s, self._cut)

    def _arrive(self, now: float, _: Any) -> None:
        if self._next == len(self._trace):
            return
        served = Served(self._next, self._trace[self._next], now)
        self._next += 1
        self._served.append(served)
        self._open[served] = None
        if self._conditions.patience_s is not None:
            self._clock.call_at(now + self._conditions.patience_s, self._lose_patience, served)
        self._try(now, (served, self._client_rng.randrange(len(self._gateways)), ()))
        if self._conditions.clients is None:
            self._plan_arrival()

    def _end(self, now: float, served: Served, outcome: Outcome, status: int | None) -> None:
        del self._open[served]
        served.outcome, served.status, served.ended_s = outcome, status, now
        self._ended += 1
        if self._on_progress is not None and self._ended % 100 == 0:
            self._on_progress(self._ended)
        if self._conditions.clients is not None:
            self._clock.call_at(now, self._arrive)

    def _lose_patience(self, now: float, served: Served) -> None:
        if served in self._open and served.first_token_s is None:
            self._leave(now, served)

    def _cut(self, now: float, _: Any) -> None:
        for served in list(self._open):
            self._leave(now, served)
        self._is_cut = True

    def _leave(self, now: float, served: Served) -> None:
        attempt = self._open[served]
        outcome = Outcome.NO_TOKEN if served.first_token_s is None else Outcome.UNFINISHED
        if attempt is not None and attempt.generation is not None:
            served.tokens = self._engines[attempt.host].model.generated(attempt.generation)
            self._engines[attempt.host].cancel(now, attempt.generation)
            if served not in self._open:
                return  # it was finished at this very moment
            self._give_back(attempt)
            if self._control is not None:
                self._control.aborted(now, attempt, served.tokens)
        self._end(now, served, outcome, None)

    # -- The gateway ------------------------------------------------------------------------------------------

    def _try(self, now: float, what: tuple[Served, int, tuple[int, ...]]) -> None:
        served, gateway, tried = what
        if served not in self._open:
            return  # the client left between two attempts
        request = served.request
        prompt_bytes = BYTES_PER_TOKEN * request.prompt_tokens
        length_class = self._pool.class_of(prompt_bytes) if self._pool is not None else 0
        host = self._gateways[gateway][length_class].choose(now, tried)
        served.attempts += 1
        attempt = _Try(
            request_id=f"r{served.number}",
            gateway=gateway,
            length_class=length_class,
            host=host.number,
            started_at=now,
            prompt_bytes=prompt_bytes,
            served=served,
            tried=tried,
            met=host.endpoint.in_flight,
        )
        host.active += 1
        host.endpoint.in_flight += 1
        self._tallies[host.number].attempts += 1
        self._open[served] = attempt
        if self._control is not None:
            self._control.started(now, attempt)
        if self._fleet.endpoints[host.number].answers != "output":
            self._clock.call_at(now + _REFUSAL_S, self._answered_without_output, attempt)
            return
        limit = self._engines[host.number].model.kind.max_model_len
        if request.prompt_tokens + request.output_tokens > limit:
            self._clock.call_at(now + _REFUSAL_S, self._turned_away, (attempt, _BAD_REQUEST))
            return
        outcome = self._engines[host.number].submit(now, request.prompt_tokens, request.output_tokens, attempt)
        if isinstance(outcome, Refusal):
            self._tallies[host.number].refused += 1
            self._clock.call_at(now + _REFUSAL_S, self._turned_away, (attempt, _REFUSED))
        else:
            attempt.generation = outcome
            served.endpoint = host.number

    def _turned_away(self, now: float, what: tuple[_Try, int]) -> None:
        attempt, status = what
        self._give_back(attempt)
        if self._control is not None:
            if status == _REFUSED:
                self._control.refused(now, attempt, status)
            else:
                self._control.failed(now, attempt, status)
        served = attempt.served
        if served not in self._open:
            return
        self._open[served] = None
        retries = self._retries
        if status in retries.status_codes and served.attempts <= retries.attempts:
            longest_ms = min(retries.back_off_base_ms * 2 ** (served.attempts - 1), retries.back_off_max_ms)
            wait_s = self._retry_rng.uniform(0, longest_ms / 1000)
            self._clock.call_at(now + wait_s, self._try, (served, attempt.gateway, (*attempt.tried, attempt.host)))
        else:
            self._end(now, served, Outcome.HTTP_ERROR, status)

    def _answered_without_output(self, now: float, attempt: _Try) -> None:
        """The client has what it did not ask for; without the gate nobody takes its request elsewhere."""
        self._give_back(attempt)
        status = None
        if self._control is not None:
            status = self._control.without_output(now, attempt, self._fleet.endpoints[attempt.host].answers)
        if attempt.served in self._open:
            self._open[attempt.served] = None
            self._end(now, attempt.served, Outcome.HTTP_ERROR, status)

    def _give_back(self, attempt: _Try) -> None:
        self._gateways[attempt.gateway][attempt.length_class].hosts[attempt.host].active -= 1
        self._endpoints[attempt.host].in_flight -= 1

    # -- Engines ----------------------------------------------------------------------------------------------

    def _happened(self, event: Event) -> None:
        attempt: _Try = event.sequence.tag
        match event.what:
            case Happening.FIRST_TOKEN:
                self._spoke(event.at, attempt)
            case Happening.FINISHED:
                self._finished(event.at, attempt)
            case Happening.PREEMPTED:
                attempt.served.preemptions += 1
            case _:
                pass

    def _spoke(self, at: float, attempt: _Try) -> None:
        attempt.first_token_at = at
        attempt.served.first_token_s = at
        ttft_s = at - attempt.started_at
        gateway = self._gateways[attempt.gateway][attempt.length_class]
        host = gateway.hosts[attempt.host]
        host.endpoint.answers.append((attempt.met, ttft_s))
        gateway.token_seen(at, host, ttft_s)
        if self._control is not None:
            self._control.token_seen(at, attempt)

    def _finished(self, at: float, attempt: _Try) -> None:
        served = attempt.served
        served.tokens = served.request.output_tokens
        self._give_back(attempt)
        if self._control is not None:
            self._control.finished(at, attempt, served.tokens)
        self._end(at, served, Outcome.OK, 200)
