"""A pool in which work flows like water: what an endpoint shows follows from what it was given."""

from dataclasses import dataclass, field
from random import Random

from trimtab.decision import PoolDecision
from trimtab.endpoint.snapshot import EndpointId, EndpointView, PoolSnapshot, TokenSample
from trimtab.observation.kinds import Signals
from trimtab.policy.model import Weighting
from trimtab.scoring import Strategy
from trimtab.weights.weighting import Weigher

TICK_S = 0.25
RESIDENCE_S = 2.0  # from a request's first token to its last
PROMPT_BYTES = 2000
TOKENS = 100


@dataclass
class Engine:
    """Takes up `rate` requests per second; those above wait."""

    id: EndpointId
    rate: float
    capacity: float | None
    waiting: float = 0.0
    running: float = 0.0
    arrived: float = 0.0
    ttft_s: float | None = None
    tokens_best: float | None = None
    sent_bytes: int = 0

    def take(self, requests: float) -> None:
        """Let a tick pass in which so many requests come."""
        self.arrived += requests
        self.sent_bytes += round(requests * PROMPT_BYTES)
        started = min(self.waiting + requests, self.rate * TICK_S)
        self.waiting += requests - started
        self.running += started - self.running * TICK_S / RESIDENCE_S
        tokens = self.running / RESIDENCE_S * TOKENS
        self.tokens_best = max(tokens, 0.999 * (self.tokens_best or 0.0))
        seen = 1.0 / self.rate + self.waiting / self.rate
        self.ttft_s = seen if self.ttft_s is None else self.ttft_s + 0.2 * (seen - self.ttft_s)

    @property
    def in_flight(self) -> int:
        return round(self.waiting + self.running)

    def view(self) -> EndpointView:
        full = self.running / (1.2 * self.rate * RESIDENCE_S)
        return EndpointView(
            self.id,
            self.id.address,
            self.capacity,
            ttft_s=self.ttft_s,
            ttft_recent_s=self.ttft_s,
            ttft_p99_s=self.ttft_s,
            in_flight=self.in_flight,
            outstanding_prompt_bytes=round(self.waiting * PROMPT_BYTES),
            prompt_bytes_sent=self.sent_bytes,
            prompt_bytes_mean=PROMPT_BYTES,
            prompt_bytes_std=0.0,
            inter_token_s=0.03,
            inter_token_p99_s=0.04 + 0.06 * full,
            tokens_per_s=self.running / RESIDENCE_S * TOKENS,
            tokens_per_s_best=self.tokens_best,
            preemptions_per_s=0.0,
            signals=Signals(waiting=self.waiting, running=self.running, kv_usage=min(1.0, 0.8 * full)),
        )

    def sample(self, now: float) -> TokenSample:
        ahead = round((self.waiting + 1) * PROMPT_BYTES)
        return TokenSample(self.id, now, self.ttft_s or 0.0, PROMPT_BYTES, ahead, self.in_flight + 1)


@dataclass
class Pool:
    """Engines behind a strategy and its weighting, at a steady demand [requests per second]."""

    strategy: Strategy
    engines: list[Engine]
    demand: float
    now: float = 1000.0
    weigher: Weigher = field(default_factory=lambda: Weigher(Weighting(), Random(1)))

    def __post_init__(self) -> None:
        for engine in self.engines:
            self.weigher.enter(self.now, engine.id, 100.0)

    def run(self, seconds: float) -> PoolDecision:
        for _ in range(round(seconds / TICK_S)):
            views = tuple(sorted((engine.view() for engine in self.engines), key=lambda view: view.id))
            decision = self.weigher.decide(PoolSnapshot("pool", self.now, views), self.strategy)
            shares = {endpoint.id: endpoint.share for endpoint in decision.endpoints}
            self.now += TICK_S
            for engine in self.engines:
                engine.take(self.demand * TICK_S * shares[engine.id])
                self.strategy.learn(engine.sample(self.now))
        return decision

    def restart(self, number: int) -> None:
        """Replace an engine by its next incarnation, which is empty."""
        old = self.engines[number]
        self.strategy.forget(old.id)
        self.engines[number] = Engine(EndpointId(old.id.address, old.id.incarnation + 1), old.rate, old.capacity)


def engines(*rates: float, declared: bool = True) -> list[Engine]:
    return [
        Engine(EndpointId(f"10.0.0.{number}:8000"), rate, rate if declared else None)
        for number, rate in enumerate(rates, start=1)
    ]
