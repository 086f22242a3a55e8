"""The control loop in virtual time: what is seen reaches the pool's controller as late as it would live."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

from trimtab.observation.kinds import (
    AnswerRead,
    AttemptEnded,
    AttemptStarted,
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
)
from trimtab.policy.model import Pool
from trimtab.pool import EndpointSpec, PoolController, PoolDecision
from trimtab.sim.batching import Sequence as Generation
from trimtab.sim.replay.clock import Clock
from trimtab.sim.replay.engine import Engine
from trimtab.sim.replay.fleet import Answers, SimulatedFleet
from trimtab.sim.replay.hosts import Gateway
from trimtab.sim.replay.simulated import page_signals
from trimtab.weights.integers import jittered

# The controller is told Unix time, as it is live.
_EPOCH = 1_700_000_000.0

_FLUSH_S = 0.02  # of the access log
_LOAD_REPORT_S = 0.25
_HOP_S = 0.001  # from Envoy to our services, and from an engine to the scraper
_WHOLE_STREAM_SHARE = 0.05  # of the streams are read to their end,
_PART_S = 2.0  # and told in parts of so long


# Status, content type, and what was read of an answer with status 200.
_WITHOUT_OUTPUT: Mapping[Answers, tuple[int, str, str]] = {
    "not_found": (404, "application/json", ""),
    "unauthorized": (401, "application/json", ""),
    "bad_request": (400, "application/json", ""),
    "redirect": (307, "", ""),
    "no_content": (204, "", ""),
    "html": (200, "text/html", ""),
    "json_error": (200, "application/json", ""),
    "done_alone": (200, "text/event-stream", "an end mark alone"),
    "foreign_json": (200, "application/json", "JSON of no known API"),
}


@dataclass(slots=True, eq=False)
class Attempt:
    """One try of a request on one endpoint."""

    request_id: str
    gateway: int
    length_class: int  # of the pool's; 0 where it has none
    host: int
    started_at: float
    prompt_bytes: int
    first_token_at: float | None = None
    generation: Generation | None = None  # in the engine, once it has taken it


@dataclass(slots=True)
class _Stream:
    """A stream that is read whole."""

    token_at: float  # the last one
    tokens: int = 1
    gaps_s: list[float] = field(default_factory=list)  # not told yet


class Control:
    """The ext_proc workers, controller and pushes of one pool."""

    def __init__(
        self,
        clock: Clock,
        pool: Pool,
        fleet: SimulatedFleet,
        engines: Sequence[Engine],
        gateways: Sequence[Sequence[Gateway]],
        rng: Random,
        push_delay_s: float,
    ) -> None:
        self._clock = clock
        self._pool = pool
        self._shown = page_signals(pool)
        self._engines = engines
        self._gateways = gateways  # of each Envoy, one for each length class
        self._rng = rng
        self._push_delay_s = push_delay_s
        self._interval_s = pool.interval_ms / 1000
        self._addresses = [endpoint.address for endpoint in fleet.endpoints]
        self._logs: list[list[Observation]] = [[] for _ in gateways]
        self._flush_phases = [rng.uniform(0, _FLUSH_S) for _ in gateways]
        self._whole: list[dict[Attempt, _Stream]] = [{} for _ in engines]
        for number, engine in enumerate(engines):
            engine.on_step = partial(self._stepped, number)
        self.pushes = 0
        self.bytes_per_token: float | None = None  # as learned
        self._controller = PoolController(pool, Random(rng.getrandbits(32)))
        specs = [EndpointSpec(e.address, e.name, e.capacity, {"gpu": e.kind.name}) for e in fleet.endpoints]
        self._controller.set_endpoints(_EPOCH, specs)
        self._put_in_force(0.0, self._controller.step(_EPOCH))
        self._plan()

    def started(self, now: float, attempt: Attempt) -> None:
        """An attempt was sent."""
        pool, address = self._pool.name, self._addresses[attempt.host]
        started = AttemptStarted(_EPOCH + now, pool, address, attempt.request_id, attempt.prompt_bytes, True)
        self._log(now, attempt.gateway, started)

    def token_seen(self, now: float, attempt: Attempt) -> None:
        """Its first token was seen."""
        token = FirstToken(_EPOCH + now, self._pool.name, self._addresses[attempt.host], attempt.request_id)
        self._clock.call_at(now + _HOP_S, self._take_in, (token,))
        if self._rng.random() < _WHOLE_STREAM_SHARE:
            self._whole[attempt.host][attempt] = _Stream(now)
            self._clock.call_at(now + _PART_S, self._read_part, attempt)

    def refused(self, now: float, attempt: Attempt, status: int) -> None:
        """It was refused because the engine is full."""
        address = self._addresses[attempt.host]
        rejected = Rejected(
            _EPOCH + now, self._pool.name, address, attempt.request_id, status, Verdict.SATURATED, None, False, "replay"
        )
        self._clock.call_at(now + _HOP_S, self._take_in, (rejected,))
        self._ended(now, attempt, status, Outcome.COMPLETE, 0)

    def failed(self, now: float, attempt: Attempt, status: int) -> None:
        """It was answered with an error that is no refusal."""
        self._ended(now, attempt, status, Outcome.COMPLETE, 0)

    def without_output(self, now: float, attempt: Attempt, answers: Answers) -> int:
        """It was answered with something that is no model output. Returns the status."""
        status, content_type, read = _WITHOUT_OUTPUT[answers]
        pool, address = self._pool.name, self._addresses[attempt.host]
        at = _EPOCH + now
        seen: AnswerRead | Rejected | None = None
        if answers == "json_error":
            seen = Rejected(at, pool, address, attempt.request_id, status, Verdict.UNKNOWN, None, True)
        elif read:
            seen = AnswerRead(at, pool, address, attempt.request_id, Output.NONE, read)
        if seen is not None:
            self._clock.call_at(now + _HOP_S, self._take_in, (seen,))
        self._ended(now, attempt, status, Outcome.COMPLETE, 1 if status == 200 else 0, content_type)
        return status

    def finished(self, now: float, attempt: Attempt, tokens: int) -> None:
        """It was answered in full."""
        self._end_read(now, attempt, finished=True)
        self._ended(now, attempt, 200, Outcome.COMPLETE, tokens)

    def aborted(self, now: float, attempt: Attempt, tokens: int) -> None:
        """The client left."""
        self._end_read(now, attempt, finished=False)
        self._ended(now, attempt, 200, Outcome.ABORTED, tokens)

    def _ended(
        self,
        now: float,
        attempt: Attempt,
        status: int,
        outcome: Outcome,
        tokens: int,
        content_type: str = "text/event-stream",
    ) -> None:
        first = None if attempt.first_token_at is None else attempt.first_token_at - attempt.started_at
        ended = AttemptEnded(
            at=_EPOCH + now,
            pool=self._pool.name,
            address=self._addresses[attempt.host],
            request_id=attempt.request_id,
            started_at=_EPOCH + attempt.started_at,
            status=status,
            outcome=outcome,
            streamed=status == 200 and content_type == "text/event-stream",
            first_byte_s=first,
            prompt_bytes=attempt.prompt_bytes,
            body_bytes=200 * tokens,
            content_type=content_type,
            path="/v1/chat/completions",
            caller=f"192.0.2.{attempt.gateway + 1}",
        )
        self._log(now, attempt.gateway, ended)

    def _read_part(self, now: float, attempt: Attempt) -> None:
        """Tell what was read of a stream that goes on."""
        stream = self._whole[attempt.host].get(attempt)
        if stream is None:
            return
        self._engines[attempt.host].catch_up(now)
        if stream.gaps_s and attempt in self._whole[attempt.host]:
            self._tell_read(now, attempt, stream, finished=False)
        self._clock.call_at(now + _PART_S, self._read_part, attempt)

    def _end_read(self, now: float, attempt: Attempt, *, finished: bool) -> None:
        stream = self._whole[attempt.host].pop(attempt, None)
        if stream is not None:
            self._tell_read(now, attempt, stream, finished=finished)

    def _tell_read(self, now: float, attempt: Attempt, stream: "_Stream", *, finished: bool) -> None:
        read = StreamRead(
            at=_EPOCH + now,
            pool=self._pool.name,
            address=self._addresses[attempt.host],
            request_id=attempt.request_id,
            gaps_s=tuple(stream.gaps_s),
            finished=finished,
            verdict=None,
        )
        stream.gaps_s.clear()
        self._clock.call_at(now + _HOP_S, self._take_in, (read,))

    def _stepped(self, number: int, at: float) -> None:
        """An engine has made a step: streams that decode have a token more."""
        model = self._engines[number].model
        for attempt, stream in self._whole[number].items():
            assert attempt.generation is not None
            generated = model.generated(attempt.generation)
            if generated > stream.tokens:
                stream.gaps_s.append(at - stream.token_at)
                stream.tokens, stream.token_at = generated, at

    def _log(self, now: float, gateway: int, record: Observation) -> None:
        """Records wait for the next flush of the access log."""
        log = self._logs[gateway]
        if not log:
            phase = self._flush_phases[gateway]
            beat = (now - phase) // _FLUSH_S + 1
            self._clock.call_at(phase + beat * _FLUSH_S + _HOP_S, self._flush, gateway)
        log.append(record)

    def _flush(self, now: float, gateway: int) -> None:
        log, self._logs[gateway] = self._logs[gateway], []
        self._take_in(now, log)

    def _take_in(self, now: float, observations: Sequence[Observation]) -> None:
        self._controller.observe(_EPOCH + now, observations)

    def _step(self, now: float, _: Any) -> None:
        decision = self._controller.step(_EPOCH + now)
        self.bytes_per_token = decision.bytes_per_token
        if decision.changed:
            self._clock.call_at(now + self._push_delay_s, self._put_in_force, decision)
        self._clock.call_at(now + self._interval_s, self._step)

    def _put_in_force(self, now: float, decision: PoolDecision) -> None:
        decided = {endpoint.id.address: endpoint for endpoint in decision.endpoints}
        ordered = [decided[address] for address in self._addresses]
        for clusters in self._gateways:
            for number, cluster in enumerate(clusters):
                of_class = [endpoint.classes[number] for endpoint in ordered] if decision.classes else ordered
                pushed = jittered([one.weight for one in of_class], self._rng)
                cluster.assign(list(zip(pushed, (one.takes_work for one in of_class), strict=True)))
        self.pushes += 1

    def _plan(self) -> None:
        self._clock.call_at(self._interval_s, self._step)
        for gateway in range(len(self._gateways)):
            self._clock.call_at(self._rng.uniform(0, _LOAD_REPORT_S), self._report_load, gateway)
        if self._shown:
            period_s = self._pool.signals.scrape_interval_ms / 1000
            for number in range(len(self._engines)):
                self._clock.call_at(self._rng.uniform(0, period_s), self._scrape, number)

    def _report_load(self, now: float, gateway: int) -> None:
        in_flight: Counter[str] = Counter()
        for cluster in self._gateways[gateway]:
            in_flight.update({self._addresses[host.number]: host.active for host in cluster.hosts if host.active})
        report = LoadReported(_EPOCH + now, self._pool.name, f"envoy-{gateway}", in_flight)
        self._clock.call_at(now + _HOP_S, self._take_in, (report,))
        self._clock.call_at(now + _LOAD_REPORT_S, self._report_load, gateway)

    def _scrape(self, now: float, number: int) -> None:
        self._engines[number].catch_up(now)
        model = self._engines[number].model
        page: dict[str, Any] = {
            "waiting": float(model.waiting),
            "running": float(model.running),
            "kv_usage": model.kv_usage,
            "generated_tokens": float(model.generated_tokens),
            "preemptions": float(model.resumptions),
            "prompt_tokens": float(model.prompt_tokens),
            "process_start": _EPOCH - 1000.0,
        }
        signals = Signals(**{name: value for name, value in page.items() if name in self._shown})
        read = SignalsRead(_EPOCH + now + _HOP_S, self._pool.name, self._addresses[number], signals)
        self._clock.call_at(now + _HOP_S, self._take_in, (read,))
        self._clock.call_at(now + self._pool.signals.scrape_interval_ms / 1000, self._scrape, number)
