"""Which refusals are worth another attempt."""

import pytest

from ext_proc.retry_decision import Asked, RetryAdvice
from trimtab.observation.kinds import AttemptEnded, Outcome, Verdict
from trimtab.policy.model import Pool
from trimtab.v1 import observation_stream_pb2 as pb

A, B = "10.0.0.1:8000", "10.0.0.2:8000"


def pool(**fields: object) -> Pool:
    return Pool.model_validate({"name": "p", "endpoints": [{"address": A}, {"address": B}], **fields})


def states(**of: str) -> pb.PoolStates:
    endpoints = [
        pb.EndpointState(address={"a": A, "b": B}[name], state=state, takes_work=state in ("up", "slow-start", "panic"))
        for name, state in of.items()
    ]
    return pb.PoolStates(pools=[pb.PoolState(pool="p", endpoints=endpoints)])


@pytest.mark.parametrize(
    ("verdict", "status", "worth_it"),
    [
        (Verdict.SATURATED, 429, True),
        (Verdict.SATURATED, 503, True),
        (Verdict.UNAVAILABLE, 500, True),
        (Verdict.DRAINING, 500, True),
        (Verdict.QUOTA, 429, False),
        (Verdict.QUOTA, 503, False),
        (Verdict.UNKNOWN, 429, True),
        (Verdict.UNKNOWN, 500, False),
        (Verdict.UNKNOWN, 400, False),
    ],
)
def test_the_verdict_decides_and_where_there_is_none_the_status(verdict: Verdict, status: int, worth_it: bool) -> None:
    assert RetryAdvice([pool()]).is_worth_it("p", A, status, verdict) is worth_it


@pytest.mark.parametrize(
    ("known", "worth_it"),
    [
        (states(a="up", b="up"), True),
        (states(a="cooling", b="slow-start"), True),
        (states(a="up", b="cooling"), False),  # A itself is the one that refuses
        (states(a="cooling", b="open"), False),
        (states(a="panic", b="panic"), False),
        (states(a="up"), False),
        (pb.PoolStates(), True),  # nothing was told of the pool
    ],
)
def test_it_takes_another_endpoint_that_is_given_work(known: pb.PoolStates, worth_it: bool) -> None:
    advice = RetryAdvice([pool()])
    advice.take_states(known)
    assert advice.is_worth_it("p", A, 503, Verdict.SATURATED) is worth_it


def ended(status: int = 200, outcome: Outcome = Outcome.COMPLETE) -> AttemptEnded:
    return AttemptEnded(
        at=1.0,
        pool="p",
        address=A,
        request_id="r",
        started_at=0.0,
        status=status,
        outcome=outcome,
        streamed=False,
        first_byte_s=0.5,
        prompt_bytes=100,
        body_bytes=100,
    )


@pytest.mark.parametrize(
    ("refused_of_ten", "at_most", "least_answered"),
    [(10, 1.0, 0.0), (5, 1.15, 0.5), (1, 1.12, 0.98), (0, 1.0, 1.0)],
)
def test_while_all_refuse_the_answers_that_come_all_the_same_allow_retries(
    refused_of_ten: int, at_most: float, least_answered: float
) -> None:
    advice = RetryAdvice([pool()])
    advice.take_states(states(a="panic", b="panic"))
    attempts = answered = 0
    for number in range(1000):
        attempts += 1
        if number % 10 >= refused_of_ten:
            answered += 1
            advice.observe([ended()])
        elif advice.is_worth_it("p", A, 503, Verdict.SATURATED):
            attempts += 1
            answered += refused_of_ten < 10
    assert attempts <= at_most * 1000
    assert answered >= least_answered * 1000


def test_only_whole_answers_allow_retries_and_no_retry_goes_where_it_was() -> None:
    advice = RetryAdvice([pool()])
    advice.take_states(states(a="panic", b="panic"))
    advice.observe([ended(503), ended(outcome=Outcome.RESET), ended(outcome=Outcome.ABORTED)] * 100)
    assert not advice.is_worth_it("p", A, 503, Verdict.SATURATED)
    advice.observe([ended()] * 100)
    advice.take_states(states(a="up", b="cooling"))
    assert not advice.is_worth_it("p", A, 503, Verdict.SATURATED)
    advice.take_states(states(a="panic"))
    assert not advice.is_worth_it("p", A, 503, Verdict.SATURATED)
    advice.take_states(states(a="panic", b="panic"))
    assert sum(advice.is_worth_it("p", A, 503, Verdict.SATURATED) for _ in range(100)) == 10


@pytest.mark.parametrize(("attempts", "spent"), [(0, False), (1, False), (2, False), (3, True), (4, True)])
def test_a_request_has_the_attempts_of_its_pool(attempts: int, spent: bool) -> None:
    advice = RetryAdvice([pool(retries={"attempts": 2})])
    assert advice.are_spent("p", attempts) is spent
    assert not advice.are_spent("of-another-policy", attempts)


def test_another_policy_comes_into_force() -> None:
    advice = RetryAdvice([pool()])
    advice.take_policy([pool(retries={"status_codes": [500]})])
    assert advice.is_worth_it("p", A, 500, Verdict.UNKNOWN)
    assert not advice.is_worth_it("p", A, 429, Verdict.UNKNOWN)


def test_a_request_of_a_pool_that_a_new_policy_has_not_is_retried_as_before() -> None:
    advice = RetryAdvice([pool()])
    advice.take_policy([pool(name="other")])
    assert advice.is_worth_it("p", A, 503, Verdict.UNKNOWN)
    assert not advice.is_worth_it("p", A, 500, Verdict.UNKNOWN)
    assert advice.are_spent("p", 3), "so what is refused then ends, whether or not its engine ends it"
    advice.take_policy([pool(name="other")])
    assert not advice.is_worth_it("p", A, 503, Verdict.UNKNOWN), "names that are gone do not pile up"


class TestAnswersWithoutOutput:
    def advice(self, known: pb.PoolStates | None = None) -> RetryAdvice:
        advice = RetryAdvice([pool()])
        advice.take_states(states(a="up", b="up") if known is None else known)
        return advice

    @pytest.mark.parametrize("status", [200, 204, 307, 401, 404, 400])
    def test_another_endpoint_is_tried(self, status: int) -> None:
        assert self.advice().is_worth_another(100.0, Asked("p", status), A)

    def test_not_where_no_other_is_given_work(self) -> None:
        assert not self.advice(states(a="up", b="open")).is_worth_another(100.0, Asked("p", 404), A)
        assert not self.advice(states(a="up")).is_worth_another(100.0, Asked("p", 404), A)

    def test_what_all_others_gave_lately_is_the_callers_doing(self) -> None:
        advice = self.advice()
        assert advice.is_worth_another(100.0, Asked("p", 404), A)
        assert not advice.is_worth_another(100.1, Asked("p", 404), B)
        assert not advice.is_worth_another(101.0, Asked("p", 404), A)
        assert advice.is_worth_another(101.0, Asked("p", 401), A), "another answer"
        assert advice.is_worth_another(101.0, Asked("p", 404, "/v1/x"), A), "another path"
        assert advice.is_worth_another(101.0, Asked("p", 404, "", "192.0.2.9"), A), "another caller"
        assert advice.is_worth_another(170.0, Asked("p", 404), A), "too long ago"

    def test_of_a_status_that_is_the_callers_as_a_rule_one_other_is_enough(self) -> None:
        three = pb.PoolStates()
        three.CopyFrom(states(a="up", b="up"))
        three.pools[0].endpoints.add(address="10.0.0.3:8000", state="up", takes_work=True)
        advice = self.advice(three)
        for status, is_worth_it in ((404, True), (400, False), (422, False)):
            advice.is_worth_another(100.0, Asked("p", status), A)
            assert advice.is_worth_another(100.1, Asked("p", status), B) is is_worth_it

    def test_what_is_remembered_is_bounded_and_goes_with_the_pool(self) -> None:
        advice = self.advice()
        for number in range(3000):
            advice.is_worth_another(100.0, Asked("p", 404), f"10.0.0.1:{number}")
        assert len(advice._without_output[Asked("p", 404)]) <= 1024
        for _ in range(2):
            advice.take_policy([])
        assert not advice._without_output
