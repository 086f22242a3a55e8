"""The batching model: what every engine must hold to, and vLLM's shapes one by one."""

import math
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trimtab.sim.batching import EngineModel, Event, Happening, Refusal, Sequence, State
from trimtab.sim.kinds import A100, KINDS, EngineKind

STEP_S = 0.01


def small(**changes: float) -> EngineKind:
    """An engine whose every step takes 10 ms."""
    numbers = {
        "step0_ms": 10,
        "per_sequence_ms": 0,
        "prefill_tokens_per_s": math.inf,
        "kv_blocks": 101,
        "block_size": 4,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 16,
        "max_model_len": 400,
    }
    return EngineKind(name="small", **(numbers | changes))  # type: ignore[arg-type]


def submit(model: EngineModel, now: float, prompt: int, output: int) -> Sequence:
    sequence = model.submit(now, prompt, output)
    assert isinstance(sequence, Sequence)
    return sequence


def drain(model: EngineModel) -> list[Event]:
    events: list[Event] = []
    while (at := model.next_event_at()) is not None:
        events += model.advance(at)
    return events


def happenings(events: list[Event], what: Happening) -> list[Sequence]:
    return [event.sequence for event in events if event.what is what]


@dataclass(frozen=True)
class Arrival:
    at: float
    prompt: int
    output: int
    leaves_after: float | None


@st.composite
def kinds(draw: st.DrawFn) -> EngineKind:
    block_size = draw(st.sampled_from([1, 3, 16]))
    usable = draw(st.integers(2, 30))
    seqs = draw(st.integers(1, 6))
    return small(
        per_sequence_ms=draw(st.sampled_from([0, 0.7])),
        per_context_token_ns=draw(st.sampled_from([0, 1000])),
        prefill_tokens_per_s=draw(st.sampled_from([500, 100_000])),
        prefill_quadratic_ns=draw(st.sampled_from([0, 500])),
        kv_blocks=usable + 1,
        block_size=block_size,
        max_num_seqs=seqs,
        max_num_batched_tokens=seqs + draw(st.integers(0, 40)),
        max_model_len=usable * block_size,
    )


@st.composite
def workloads(draw: st.DrawFn) -> tuple[EngineKind, list[Arrival]]:
    kind = draw(kinds())
    now = 0.0
    arrivals = []
    for _ in range(draw(st.integers(1, 14))):
        now += draw(st.sampled_from([0.0, 0.004, 0.01, 0.05, 1.0]))
        prompt = draw(st.integers(1, kind.max_model_len - 1))
        output = draw(st.integers(1, kind.max_model_len - prompt))
        arrivals.append(Arrival(now, prompt, output, draw(st.sampled_from([None, None, 0.0, 0.013, 0.2]))))
    return kind, arrivals


Told = list[tuple[float, str, int]]


def run(kind: EngineKind, arrivals: list[Arrival], stops: str) -> tuple[Told, EngineModel, list[Sequence]]:
    """Play arrivals and leavings, checking the books at every stop.

    `stops` says how finely time passes: step, event, or only at arrivals.
    """
    model = EngineModel(kind)
    told: Told = []
    numbers: dict[Sequence, int] = {}
    actions = [(a.at, 0, number) for number, a in enumerate(arrivals)]
    actions += [(a.at + a.leaves_after, 1, n) for n, a in enumerate(arrivals) if a.leaves_after is not None]
    pending = sorted(actions)

    def take(now: float) -> None:
        for event in model.advance(now):
            told.append((event.at, event.what.value, numbers[event.sequence]))
        check_books(model, list(numbers))

    while pending or model.next_step_at() is not None:
        due = pending[0][0] if pending else math.inf
        at = model.next_step_at() if stops == "step" else model.next_event_at()
        if at is not None and at <= due and (stops != "arrivals" or not pending):
            take(at)
            continue
        now, leaving, number = pending.pop(0)
        if leaving:
            model.cancel(now, list(numbers)[number])
        else:
            sequence = model.submit(now, arrivals[number].prompt, arrivals[number].output)
            assert isinstance(sequence, Sequence)
            numbers[sequence] = number
        take(now)
    return told, model, list(numbers)


def check_books(model: EngineModel, sequences: list[Sequence]) -> None:
    states = [sequence.state for sequence in sequences]
    active = [s for s in sequences if s.state in (State.PREFILL, State.DECODE)]
    blocks = [-(-(s.prompt_tokens + model.generated(s)) // model.kind.block_size) for s in active]
    assert model.kv_usage == pytest.approx(sum(blocks) / model.kind.usable_blocks)
    assert 0 <= model.kv_usage <= 1
    assert model.running == len(active) <= model.kind.max_num_seqs
    assert model.waiting == states.count(State.WAITING)
    tokenless = [s for s in sequences if s.first_token_at is None and s.state is not State.CANCELLED]
    assert model.prefill_backlog == sum(s.prompt_tokens for s in tokenless)


@settings(max_examples=150, deadline=None)
@given(workloads())
def test_every_request_ends_with_its_tokens_or_is_cancelled(
    workload: tuple[EngineKind, list[Arrival]],
) -> None:
    kind, arrivals = workload
    told, model, sequences = run(kind, arrivals, "step")
    finished = [number for _, what, number in told if what == "finished"]
    assert len(finished) == len(set(finished))
    for number, arrival in enumerate(arrivals):
        if number in finished:
            assert model.generated(sequences[number]) == arrival.output
        else:
            assert arrival.leaves_after is not None
    assert model.running == model.waiting == 0
    assert model.kv_usage == 0
    assert [at for at, _, _ in told] == sorted(at for at, _, _ in told)
    admitted = [number for _, what, number in told if what == "admitted"]
    assert admitted == sorted(admitted), "first come, first served"
    fresh = EngineModel(kind)
    ends = []
    for engine in (model, fresh):
        lone = submit(engine, 1e6, 1, min(5, kind.max_model_len - 1))
        drain(engine)
        ends.append(lone.finished_at)
    assert ends[0] == ends[1], "nothing is left behind"


@settings(max_examples=100, deadline=None)
@given(workloads())
def test_what_happens_does_not_depend_on_how_often_one_looks(
    workload: tuple[EngineKind, list[Arrival]],
) -> None:
    step_by_step, *_ = run(*workload, "step")
    assert run(*workload, "event")[0] == step_by_step
    assert run(*workload, "arrivals")[0] == step_by_step


@settings(max_examples=100, deadline=None)
@given(workloads())
def test_no_event_comes_before_next_event_at(workload: tuple[EngineKind, list[Arrival]]) -> None:
    kind, arrivals = workload
    model = EngineModel(kind)
    now = 0.0
    for arrival in [*arrivals, None]:
        until = math.inf if arrival is None else arrival.at
        while (promised := model.next_event_at()) is not None and promised <= until:
            assert model.advance(max(now, promised - 1e-9)) == []
            now = promised
            model.advance(now)
        if arrival is not None:
            now = arrival.at
            submit(model, now, arrival.prompt, arrival.output)
            model.advance(now)


def test_tokens_come_one_a_step_after_the_first() -> None:
    model = EngineModel(small())
    sequence = submit(model, 0.0, 8, 5)
    for tokens in range(6):
        model.advance(tokens * STEP_S + 1e-9)
        assert model.generated(sequence) == min(tokens, 5)
    assert sequence.first_token_at == pytest.approx(STEP_S)
    assert sequence.finished_at == pytest.approx(5 * STEP_S)


def test_a_request_that_comes_during_a_step_waits_for_the_next() -> None:
    model = EngineModel(small())
    submit(model, 0.0, 4, 9)
    late = submit(model, 0.003, 4, 1)
    drain(model)
    assert late.admitted_at == pytest.approx(STEP_S)
    assert late.first_token_at == pytest.approx(2 * STEP_S)


def test_a_long_prompt_is_computed_in_chunks_beside_the_decoding() -> None:
    model = EngineModel(small(max_num_batched_tokens=10))
    decoding = submit(model, 0.0, 4, 50)
    long = submit(model, 0.0, 40, 1)
    drain(model)
    # 9 tokens a step are left to the prompt, so it takes five steps after the first.
    assert long.first_token_at == pytest.approx(6 * STEP_S)
    assert decoding.finished_at == pytest.approx(50 * STEP_S), "decoding never pauses"


def test_prompts_share_a_step_oldest_first() -> None:
    model = EngineModel(small(max_num_batched_tokens=16))
    first, second, third = (submit(model, 0.0, prompt, 1) for prompt in (2, 8, 12))
    drain(model)
    times = [s.first_token_at for s in (first, second, third)]
    assert times == pytest.approx([STEP_S, 2 * STEP_S, 3 * STEP_S])


def test_no_more_than_max_num_seqs_run() -> None:
    model = EngineModel(small(max_num_seqs=2))
    sequences = [submit(model, 0.0, 1, 10) for _ in range(3)]
    model.advance(5 * STEP_S)
    assert (model.running, model.waiting) == (2, 1)
    drain(model)
    assert sequences[2].admitted_at == sequences[0].finished_at


def test_the_newest_is_preempted_and_goes_on_where_it_stopped() -> None:
    # Ten blocks of four: two sequences of 8 + 20 tokens want seven each.
    model = EngineModel(small(kv_blocks=11, max_model_len=40))
    old, new = submit(model, 0.0, 8, 20), submit(model, 0.0, 8, 20)
    events = drain(model)
    assert happenings(events, Happening.PREEMPTED) == [new]
    assert happenings(events, Happening.RESUMED) == [new]
    assert happenings(events, Happening.FINISHED) == [old, new]
    assert new.preemptions == 1
    resumed = next(event for event in events if event.what is Happening.RESUMED)
    assert resumed.at == old.finished_at, "its whole context must fit before it comes back"
    assert model.generated_tokens == 40
    assert len(happenings(events, Happening.FIRST_TOKEN)) == 2


def test_a_victim_waits_in_front_of_those_who_never_ran() -> None:
    model = EngineModel(small(kv_blocks=11, max_model_len=40, max_num_seqs=2))
    old, new = submit(model, 0.0, 8, 20), submit(model, 0.0, 8, 20)
    third = submit(model, 0.0, 8, 20)
    events = drain(model)
    assert happenings(events, Happening.PREEMPTED)[0] is new
    assert third.admitted_at is not None
    resumed = next(event for event in events if event.what is Happening.RESUMED)
    assert resumed.sequence is new
    assert resumed.at == old.finished_at
    assert third.admitted_at >= resumed.at


def test_cancelling_frees_everything_at_once() -> None:
    model = EngineModel(small(max_num_seqs=1))
    running, queued = submit(model, 0.0, 8, 20), submit(model, 0.0, 8, 20)
    model.advance(5 * STEP_S)
    model.cancel(5 * STEP_S, queued)
    assert model.waiting == 0
    model.cancel(5 * STEP_S, running)
    assert (model.running, model.kv_usage, model.prefill_backlog) == (0, 0, 0)
    model.cancel(5 * STEP_S, running)
    drain(model)
    assert model.next_event_at() is None
    assert model.generated(running) == 5


def test_queue_limits_refuse() -> None:
    model = EngineModel(small(max_num_seqs=1, max_num_queued_reqs=2))
    assert [isinstance(model.submit(0.0, 1, 5), Sequence) for _ in range(2)] == [True, True]
    assert model.submit(0.0, 1, 5) is Refusal.QUEUED_REQS
    model = EngineModel(small(max_num_queued_tokens=20))
    submit(model, 0.0, 15, 5)
    submit(model, 0.0, 15, 5)
    assert model.submit(0.0, 1, 5) is Refusal.QUEUED_TOKENS, "a short prompt too"
    drain(model)
    submit(model, 1.0, 1, 5)


def test_slow_stretches_the_steps_that_follow() -> None:
    model = EngineModel(small())
    sequence = submit(model, 0.0, 4, 3)
    model.slow = 10
    drain(model)
    assert sequence.first_token_at == pytest.approx(STEP_S), "the step under way is not touched"
    assert sequence.finished_at == pytest.approx(STEP_S + 2 * 10 * STEP_S)


def test_a_step_costs_what_its_parts_cost() -> None:
    kind = small(
        per_sequence_ms=2,
        per_context_token_ns=1000,
        prefill_tokens_per_s=1000,
        prefill_step_ms=3,
        prefill_quadratic_ns=10_000,
    )
    model = EngineModel(kind)
    sequence = submit(model, 0.0, 10, 2)
    drain(model)
    prefill_s = 0.010 + 0.003 + 10 / 1000 + 10e-6 * 10**2
    decode_s = 0.010 + 0.002 + 1e-6 * 11
    assert sequence.first_token_at == pytest.approx(prefill_s)
    assert sequence.finished_at == pytest.approx(prefill_s + decode_s)


def test_time_does_not_go_backwards() -> None:
    model = EngineModel(A100)
    model.advance(5.0)
    with pytest.raises(ValueError, match="backwards"):
        model.advance(4.9)


@pytest.mark.parametrize(("prompt", "output"), [(0, 1), (1, 0), (390, 20)])
def test_impossible_requests_are_errors(prompt: int, output: int) -> None:
    with pytest.raises(ValueError):
        EngineModel(small()).submit(0.0, prompt, output)


@pytest.mark.parametrize(
    "changes",
    [{"max_model_len": 401}, {"max_num_seqs": 17}, {"max_num_seqs": 0}, {"step0_ms": 0}],
)
def test_kinds_that_cannot_work_are_refused(changes: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="small"):
        small(**changes)


def test_the_kinds_are_named_as_they_are_found() -> None:
    assert set(KINDS) == {"a100", "rtx4090", "cpu", "vllm_cpu_medium"}
    assert all(kind.name == name for name, kind in KINDS.items())
