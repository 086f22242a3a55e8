"""Bytes per prompt token: what engines count, against what they were sent."""

from math import inf
from random import Random
from typing import Any

import pytest

from tests.unit.scene import POOL, A, B, Scene, ended, read, rejected, started, token
from tests.unit.scoring.views import step
from trimtab.endpoint.snapshot import EndpointId, EndpointView, PoolSnapshot
from trimtab.endpoint.token_ratio import TokenRatio
from trimtab.observation.kinds import Histogram, Observation, Signals, SignalsRead
from trimtab.scoring import PredictedTtft, PredictedTtftPolicy


class Traffic:
    """Prompts to engines whose tokenizer takes `ratio` bytes for a token, and which are read every second."""

    def __init__(self, ratio: float, *, others: float = 0.0, histogram: bool = True, **scene: Any) -> None:
        self.ratio = ratio
        self._others = others  # prompts of other clients for each of ours
        self._histogram = histogram
        self._random = Random(3)
        self._number = 0
        self._tokens = dict.fromkeys((A, B), 1e6)
        self._prompts = dict.fromkeys((A, B), 5000.0)
        self.scene = Scene(**scene)

    def run(self, seconds: int, *, per_s: int = 10, chunked: bool = False, streamed: bool = True) -> float | None:
        """The ratio that is known after so many seconds."""
        for _ in range(seconds):
            now = self.scene.now
            for address in (A, B):
                self.scene.see(
                    *(o for n in range(per_s) for o in self._answer(now + n / per_s, address, chunked, streamed))
                )
                self.scene.see(self._read(now + 0.999, address))
            self.scene.step(now + 1.0)
        return self.known

    @property
    def known(self) -> float | None:
        assert self.scene.decision is not None
        return self.scene.decision.bytes_per_token

    def restart(self, address: str) -> None:
        self._tokens[address] = self._prompts[address] = 0.0

    def _answer(self, at: float, address: str, chunked: bool, streamed: bool) -> list[Observation]:
        self._number += 1
        size, request = round(self._random.lognormvariate(7, 1)), f"r{self._number}"
        self._count(address, size)
        for _ in range(round(self._others)):
            self._count(address, round(self._random.lognormvariate(7, 1)))
        seen: list[Observation] = [started(at, address, request, prompt=None if chunked else size, streamed=streamed)]
        if streamed:
            seen.append(token(at + 0.01, address, request))
        return [*seen, ended(at + 0.02, at, address, request, streamed=streamed)]

    def _count(self, address: str, size: int) -> None:
        self._tokens[address] += size / self.ratio
        self._prompts[address] += 1

    def _read(self, at: float, address: str) -> Observation:
        prompts = self._prompts[address]
        ttft = Histogram((1.0, inf), (prompts, prompts), 1.0) if self._histogram else None
        return SignalsRead(at, POOL, address, Signals(prompt_tokens=self._tokens[address], ttft=ttft))


@pytest.mark.parametrize("ratio", [2.5, 3.0, 6.0])
@pytest.mark.parametrize("streamed", [True, False], ids=["streams", "unary answers"])
def test_it_is_learned_from_the_engines_counters(ratio: float, streamed: bool) -> None:
    traffic = Traffic(ratio)
    assert traffic.run(5, streamed=streamed) is None, "too little was compared"
    assert traffic.run(10, streamed=streamed) == pytest.approx(ratio, rel=0.02)


def test_it_follows_another_model() -> None:
    traffic = Traffic(4.0)
    traffic.run(30)
    traffic.ratio = 3.0
    assert traffic.run(40) == pytest.approx(3.0, rel=0.02)


def test_prompts_of_unknown_length_tell_nothing() -> None:
    assert Traffic(3.0).run(30, chunked=True) is None


def test_refused_prompts_are_not_the_engines() -> None:
    traffic = Traffic(3.0)
    for number in range(2000):
        at = traffic.scene.now + number / 1000
        traffic.scene.see(
            started(at, A, f"x{number}", prompt=9000),
            rejected(at, A, f"x{number}"),
            ended(at, at, A, f"x{number}", status=429, streamed=False),
        )
    assert traffic.run(15) == pytest.approx(3.0, rel=0.02)


def test_an_engine_that_works_for_others_too_tells_nothing() -> None:
    assert Traffic(4.0, others=1).run(30) is None


def test_without_a_histogram_other_clients_are_not_seen() -> None:
    """The flaw that the page tells of: the ratio is too low by their part."""
    assert Traffic(4.0, others=1, histogram=False).run(30) == pytest.approx(2.0, rel=0.2)


def test_a_restart_begins_a_window() -> None:
    traffic = Traffic(3.0)
    for _ in range(8):
        traffic.run(4)
        traffic.restart(A)
    assert traffic.known == pytest.approx(3.0, rel=0.02)


def test_no_counter_no_ratio() -> None:
    scene = Scene()
    for second in range(30):
        scene.see(
            *[ended(1000.0 + second, 1000.0 + second, A, f"r{second}-{n}") for n in range(20)], read(1000.5 + second)
        )
    assert scene.step().bytes_per_token is None


@pytest.mark.parametrize("absurd", [0.2, 400.0, inf])
def test_what_cannot_be_text_is_left_out(absurd: float) -> None:
    ratio = TokenRatio()
    for window in (3.9, absurd, 4.0, absurd, 4.1, absurd, absurd):
        ratio.add(window)
    assert ratio.value == 4.0


def test_some_windows_with_images_do_not_move_it() -> None:
    ratio = TokenRatio()
    for number in range(30):
        ratio.add(12.0 if number % 4 == 0 else 4.0)
    assert ratio.value == 4.0


def test_it_is_remembered() -> None:
    traffic = Traffic(3.0)
    known = traffic.run(15)
    memory = traffic.scene.controller.dump(traffic.scene.now)
    assert Scene(now=traffic.scene.now + 5, memory=memory).step().bytes_per_token == known
    assert Scene(now=traffic.scene.now + 3600, memory=memory).step().bytes_per_token is None


@pytest.mark.parametrize("nonsense", [None, "4", -1, 1e9, float("nan")])
def test_nonsense_is_not_recalled(nonsense: object) -> None:
    assert Scene(memory={"at": 999.0, "bytes_per_token": nonsense}).step().bytes_per_token is None


def test_what_the_strategy_says_of_tokens_follows_and_its_shares_do_not() -> None:
    strategy = PredictedTtft(PredictedTtftPolicy(bytes_per_token=4))
    views = tuple(EndpointView(EndpointId(address), address, None, prompt_bytes_sent=9000) for address in (A, B))
    scores = [
        list(step(strategy, PoolSnapshot("pool", 1000.0, views, bytes_per_token=ratio), 1000.0).values())
        for ratio in (None, 8.0)
    ]
    assert [score.share for score in scores[0]] == [score.share for score in scores[1]]
    assert "(100 ms a thousand prompt tokens" in scores[0][0].why
    assert "(200 ms a thousand prompt tokens" in scores[1][0].why, "twice the bytes, twice the time"


def test_what_is_assumed_of_a_new_endpoint_is_said_in_tokens() -> None:
    view = EndpointView(EndpointId(A), A, None)
    pool = PoolSnapshot("pool", 1000.0, (view,), bytes_per_token=8.0)
    (score,) = step(PredictedTtft(PredictedTtftPolicy(bytes_per_token=4)), pool, 1000.0).values()
    assert "(100 ms a thousand prompt tokens" in score.why


def test_fused_counts_long_prompts_in_tokens() -> None:
    traffic = Traffic(2.0, scoring={"strategy": "fused", "bytes_per_token": 8})
    first = traffic.run(2)
    before = traffic.scene.at(A).breakdown["length"]
    traffic.run(20)
    assert first is None
    assert traffic.scene.at(A).breakdown["length"] > 2 * before
