"""Fleet files and the work that they describe."""

from itertools import pairwise
from pathlib import Path
from statistics import fmean, pstdev
from typing import get_args

import pytest

from trimtab.policy import PolicyError
from trimtab.sim.kinds import A100, KINDS
from trimtab.sim.replay.fleet import Engines, Lengths, Workload, bundled_fleets, load_fleet
from trimtab.sim.replay.workload import generate


def problems(directory: Path, text: str) -> list[str]:
    file = directory / "fleet.yaml"
    file.write_text(text)
    with pytest.raises(PolicyError) as caught:
        load_fleet(file)
    return [str(problem).removeprefix(f"{file}:") for problem in caught.value.problems]


def workload(**changes: object) -> Workload:
    numbers: dict[str, object] = {
        "requests": 5000,
        "rate_per_s": 20,
        "prompt": Lengths(mu=6, sigma=1, least=10, most=4000),
        "output": Lengths(mu=4, sigma=0, most=100),
    }
    return Workload.model_validate(numbers | changes)


@pytest.mark.parametrize("name", bundled_fleets())
def test_a_bundled_fleet_has_engines_and_work_that_they_can_hold(name: str) -> None:
    fleet = load_fleet(name)
    assert fleet.workload is not None
    trace = generate(fleet.workload, 1)
    limit = min(endpoint.kind.max_model_len for endpoint in fleet.endpoints)
    assert max(request.prompt_tokens + request.output_tokens for request in trace) <= limit
    assert len({endpoint.address for endpoint in fleet.endpoints}) == len(fleet.endpoints)
    assert fleet.about


def test_the_usual_fleets_are_bundled() -> None:
    assert {"fleet3", "fleet8", "homog8", "homog64", "row_a8", "row_b18", "row_d6"} <= set(bundled_fleets())


def test_engines_take_their_kind_and_their_own_numbers(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("version: 1\nengines:\n- {kind: a100, count: 2, kv_blocks: 5000}\n- {kind: cpu, name: slow}\n")
    fleet = load_fleet(file)
    assert [endpoint.name for endpoint in fleet.endpoints] == ["a100-1", "a100-2", "slow-1"]
    assert fleet.endpoints[0].kind.kv_blocks == 5000
    assert fleet.endpoints[0].kind.step0_ms == A100.step0_ms
    assert (fleet.name, fleet.workload) == ("mine", None)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "1:1: the file is empty: a fleet has at least version and engines"),
        ("version: 1\nengines: []\n", "2:10: engines: must be a list with at least one entry, not an empty list"),
        ("version: 1\nengines:\n- {kind: h100}\n", '3:10: engines[0].kind: must be "a100", "rtx4090", "cpu" or'),
        (
            "version: 1\nengines:\n- {kind: a100, kvblocks: 5}\n",
            "3:16: engines[0].kvblocks: unknown key; the keys here are kind,",
        ),
        ("version: 1\nengines:\n- {kind: a100, kv_blocks: 5}\n", "engines[0].kind: a100: one request of max_model_len"),
        ("version: 1\nengines:\n- {kind: a100, count: 0}\n", "3:23: engines[0].count: must be a whole number of 1"),
        ("version: 1\nengines: [{kind: a100}\n", 'a "," or "]" is missing'),
    ],
)
def test_a_bad_file_is_told_with_its_place(tmp_path: Path, text: str, said: str) -> None:
    (problem,) = problems(tmp_path, text)
    assert said in problem


LENGTHS = "{mu: 5, sigma: 1, most: 10}"


@pytest.mark.parametrize(
    ("engine", "work", "said"),
    [
        ("step0_ms: 1e12", "", "engines[0].step0_ms: must be a number of 0.001 to 100000, not 1000000000000.0"),
        ("step0_ms: .inf", "", 'engines[0].step0_ms: ".inf" is not a number that can be used here'),
        ("prefill_tokens_per_s: 1e-9", "", "must be a number of 1 to 1e+08, not 1e-09"),
        ("count: '2'", "", 'engines[0].count: must be a whole number of 1 to 1000, not "2"'),
        ("", "rate_per_s: 1e9", "workload.rate_per_s: must be a number of 0.001 to 1e+06, not 1000000000"),
        ("", "rate_per_s: 5, cv: 1e-200", "workload.cv: cv (1e-200) must be 0, which is a clock, or at least 0.01"),
        (
            "",
            "rate_per_s: 5, output: {mu: 1000, sigma: 1, most: 10}",
            "workload.output.mu: must be a number of -20 to 20",
        ),
        (
            "",
            "rate_per_s: 5, output: {mu: 5, sigma: 1, least: 2000, most: 1000}",
            "workload.output.least: least (2000) must not be above most (1000)",
        ),
        (
            "",
            "requests: 5, rate_per_s: 5, prompt: {mu: 5, most: 9}",
            "workload.prompt.sigma: missing; it must be a number",
        ),
    ],
)
def test_numbers_that_no_engine_and_no_traffic_have(tmp_path: Path, engine: str, work: str, said: str) -> None:
    text = f"version: 1\nengines: [{{kind: a100, {engine}}}]\n"
    if work:
        rest = "".join(f", {key}: {value}" for key, value in _REST.items() if f"{key}:" not in work)
        text += f"workload: {{{work}{rest}}}\n"
    (problem,) = problems(tmp_path, text)
    assert said in problem


_REST = {"requests": 5, "prompt": LENGTHS, "output": LENGTHS}


def test_engines_with_other_numbers_have_other_names(tmp_path: Path) -> None:
    (problem,) = problems(tmp_path, "version: 1\nengines: [{kind: a100}, {kind: a100, kv_blocks: 9000}]\n")
    assert 'engines[0] has other numbers under the name "a100": give one of them its own' in problem
    file = tmp_path / "fleet.yaml"
    file.write_text("version: 1\nengines: [{kind: a100, capacity: 2}, {kind: a100, capacity: 1}]\n")
    assert len(load_fleet(file).endpoints) == 2


def test_a_workload_is_open_or_closed(tmp_path: Path) -> None:
    lengths = "prompt: {mu: 5, sigma: 1, most: 10}, output: {mu: 5, sigma: 1, most: 10}"
    text = "version: 1\nengines: [{kind: a100}]\nworkload: {requests: 5, %s}\n"
    assert "exactly one of rate_per_s and clients" in problems(tmp_path, text % lengths)[0]
    both = problems(tmp_path, text % f"rate_per_s: 5, clients: 3, {lengths}")
    assert "exactly one of rate_per_s and clients" in both[0]


def test_every_bundled_kind_can_be_named() -> None:
    assert set(get_args(Engines.model_fields["kind"].annotation)) == KINDS.keys()


def test_an_unknown_fleet_is_told_with_those_there_are() -> None:
    with pytest.raises(PolicyError, match=r"no bundled fleet; there are fleet3, fleet8"):
        load_fleet("fleet9")


def test_arrivals_have_the_rate_and_the_burstiness_that_were_asked_for() -> None:
    for cv in (0.0, 1.0, 2.0):
        trace = generate(workload(cv=cv), seed=3)
        gaps = [after.arrival_s - before.arrival_s for before, after in pairwise(trace)]
        assert fmean(gaps) == pytest.approx(1 / 20, rel=0.1)
        assert pstdev(gaps) / fmean(gaps) == pytest.approx(cv, rel=0.15, abs=1e-6)


def test_lengths_are_drawn_within_their_bounds() -> None:
    trace = generate(workload(), seed=1)
    prompts = sorted(request.prompt_tokens for request in trace)
    assert prompts[0] >= 10
    assert prompts[-1] <= 4000
    assert prompts[len(prompts) // 2] == pytest.approx(403, rel=0.1)
    assert {request.output_tokens for request in trace} == {55}


def test_a_seed_gives_the_same_work_again() -> None:
    assert generate(workload(), 1) == generate(workload(), 1) != generate(workload(), 2)
