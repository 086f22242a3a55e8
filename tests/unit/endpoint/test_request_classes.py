"""Length classes: each has weights of its own, and what an endpoint has done counts in all of them."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from pytest import approx, mark

from tests.unit.endpoint.test_prometheus_readings import asked
from tests.unit.scene import A, B, C, Scene, rejected, started, token
from trimtab.health.state import State
from trimtab.observation.kinds import Observation
from trimtab.pool import EndpointDecision, PoolDecision

CLASSES = (
    {"name": "short", "up_to_tokens": 100},
    {"name": "medium", "up_to_tokens": 1000},
    {"name": "long"},
)
SHORT, LONG = 400, 40_000  # bytes
FRAGMENTED = {"name": "fragments", "query": "f", "action": "no_long_prompts", "above": 0.45, "until": 0.3}


def scene(*addresses: str, custom: list[dict[str, Any]] | None = None, **policy: Any) -> Scene:
    prometheus = {"url": "http://prometheus:9090", "custom": custom or []}
    return Scene(addresses or (A, B), classes=CLASSES, signals={"prometheus": prometheus}, **policy)


def weights(endpoint: EndpointDecision) -> list[int]:
    return [one.weight for one in endpoint.classes]


def takes(endpoint: EndpointDecision) -> list[bool]:
    return [one.takes_work for one in endpoint.classes]


def answer(it: Scene, address: str, prompt: int, ttft_s: float, count: int = 1) -> None:
    for _ in range(count):
        request = f"{address} {it.now}"
        it.see(started(it.now, address, request, prompt=prompt))
        it.see(token(it.now + ttft_s, address, request))
        it.now += 0.05


def test_a_pool_without_classes_has_none() -> None:
    it = Scene()
    assert it.step().classes == () and it.at().classes == ()


def test_a_strategy_that_does_not_tell_them_apart_has_the_same_weights_for_all() -> None:
    it = scene(scoring={"strategy": "health"})
    answer(it, A, SHORT, 1.9, 20)
    answer(it, B, LONG, 0.1, 20)
    assert it.step().classes == ("short", "medium", "long")
    for address in (A, B):
        assert len(set(it.at(address).classes)) == 3
        assert weights(it.at(address)) == [it.at(address).weight] * 3
    assert it.at(A).weight < it.at(B).weight


def test_long_prompts_go_where_tokens_are_cheap_and_short_ones_where_starting_is() -> None:
    it = scene(scoring={"strategy": "predicted_ttft"})
    for _ in range(60):
        # A takes long to begin and reads fast; B begins at once and reads slowly.
        for address, begin_s, kilotoken_s in ((A, 0.3, 0.01), (B, 0.02, 0.3)):
            for prompt in (SHORT, LONG):
                answer(it, address, prompt, begin_s + kilotoken_s * prompt / 4000)
                it.step(it.now + 1)
    a, b = it.at(A), it.at(B)
    assert a.classes[2].share > 0.9 and b.classes[0].share > 0.9


def test_a_hold_is_the_endpoints_in_every_class() -> None:
    it = scene()
    it.run(1010)
    it.see(rejected(1010))
    it.step()
    assert (it.at(A).state, takes(it.at(A)), it.at(A).takes_work) == (State.COOLING, [False] * 3, False)
    assert takes(it.at(B)) == [True] * 3
    it.see(rejected(1010.1, B))
    it.step()
    assert takes(it.at(A)) == takes(it.at(B)) == [True] * 3
    assert it.at(A).state is it.at(B).state is State.PANIC


def test_past_its_limit_an_endpoint_gets_no_long_prompts_and_says_so() -> None:
    it = scene(custom=[FRAGMENTED])
    it.see(asked(1000, "fragments", 0.5), asked(1000, "fragments", 0.1, B))
    it.step()
    assert (takes(it.at(A)), takes(it.at(B))) == ([True, True, False], [True] * 3)
    assert it.at(A).reason.endswith("no long prompts: fragments is 0.5, the limit is above 0.45")
    assert it.at(A).state in (State.UP, State.SLOW_START)
    assert it.at(B).classes[2].share == approx(1)
    it.see(asked(1005, "fragments", 0.4))
    it.step()
    assert takes(it.at(A)) == [True, True, False]
    it.see(asked(1010, "fragments", 0.2))
    it.step()
    assert takes(it.at(A)) == [True] * 3


@mark.parametrize("strategy", ["health", "predicted_ttft"])
def test_long_prompts_go_somewhere_when_all_are_past_their_limit_or_the_others_are_out(strategy: str) -> None:
    it = scene(custom=[FRAGMENTED], scoring={"strategy": strategy})
    it.see(asked(1000, "fragments", 0.5), asked(1000, "fragments", 0.9, B))
    it.step()
    assert takes(it.at(A)) == takes(it.at(B)) == [True] * 3
    it.see(asked(1001, "fragments", 0.1, B), rejected(1001, B))
    it.step()
    assert (takes(it.at(A)), takes(it.at(B))) == ([True] * 3, [False] * 3)


def test_a_strategy_pours_nothing_of_the_longest_class_over_who_takes_none() -> None:
    it = scene(A, B, C, custom=[FRAGMENTED], scoring={"strategy": "predicted_ttft"})
    for address in (A, B, C):
        answer(it, address, LONG, 0.5, 10)
    it.see(asked(it.now, "fragments", 0.5))
    it.step(it.now + 5)
    shares = [it.at(address).classes[2].share for address in (A, B, C)]
    assert shares == approx([0, 0.5, 0.5], abs=0.02)
    assert it.at(A).classes[0].share > 0.2


def test_only_what_moved_counts_as_moved_in_each_class() -> None:
    it = scene(A, B, C, custom=[FRAGMENTED])
    it.run(1010)
    assert not it.step(1010.2).changed
    before = {address: weights(it.at(address)) for address in (A, B, C)}
    it.see(asked(1010.2, "fragments", 0.5, C))
    assert it.step().changed
    for address in (A, B):
        assert weights(it.at(address))[:2] == before[address][:2]
        assert weights(it.at(address))[2] > before[address][2]


def test_classes_come_and_go_with_the_policy() -> None:
    it = Scene()
    it.run(1010)
    for policy, names in ((scene().policy, ("short", "medium", "long")), (Scene().policy, ())):
        it.controller.reconfigure(it.now, policy)
        decision = it.step()
        assert decision.changed and decision.classes == names
        assert [len(e.classes) for e in decision.endpoints] == [len(names)] * 2


def test_a_pool_with_classes_goes_on_after_a_restart() -> None:
    it = scene()
    it.run(1010)
    it.see(rejected(1010))
    it.step()
    after = Scene((A, B), classes=CLASSES, now=1011, memory=it.controller.dump(1010))
    after.step()
    assert after.at(A).state is State.COOLING and takes(after.at(A)) == [False] * 3


def check(decision: PoolDecision, floor: float) -> None:
    for number in range(3):
        of_class = [e.classes[number] for e in decision.endpoints]
        assert sum(one.share for one in of_class) == approx(1)
        assert any(one.takes_work for one in of_class)
        for one, endpoint in zip(of_class, decision.endpoints, strict=True):
            assert isinstance(one.weight, int) and one.weight >= 1
            assert (one.share > 0) <= one.takes_work
            if one.takes_work and endpoint.state in (State.UP, State.SLOW_START):
                assert one.share >= floor * 0.999


EVENTS = st.tuples(
    st.sampled_from(["answer", "slow", "start", "reject", "fragments"]),
    st.sampled_from([A, B, C]),
    st.sampled_from([0, 100, SHORT, 3000, LONG, 10**7]),
    st.floats(0, 1),
)


@settings(deadline=None, max_examples=60)
@given(st.sampled_from(["health", "predicted_ttft", "reciprocal", "wdrm"]), st.lists(EVENTS, max_size=30))
def test_in_every_class_shares_sum_to_one_and_nobody_starves(
    strategy: str, events: list[tuple[str, str, int, float]]
) -> None:
    it = scene(A, B, C, custom=[FRAGMENTED], scoring={"strategy": strategy})
    for number, (what, address, prompt, value) in enumerate(events):
        at, request = it.now + value, f"r{number}"
        seen: list[Observation] = []
        match what:
            case "answer" | "slow":
                ttft_s = 0.05 if what == "answer" else 3.0
                seen = [started(at, address, request, prompt=prompt), token(at + ttft_s, address, request)]
            case "start":
                seen = [started(at, address, request, prompt=prompt)]
            case "reject":
                seen = [rejected(at, address, request)]
            case "fragments":
                seen = [asked(at, "fragments", value, address, age=0)]
        it.see(*seen)
        check(it.step(), floor=0.0 if strategy == "predicted_ttft" else 0.01)
