"""What `trimtab replay` refuses before anything runs, and what of a policy it cannot play."""

import io
from math import inf
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.unit.sim.replay.scene import fleet, run, steady
from trimtab.lab.replay.run import Wanted, make_replays, refuse_idle_options, write_report
from trimtab.policy.model import Pool
from trimtab.process.errors import UserError, ensure_folder
from trimtab.sim.replay.arms import policy_arm
from trimtab.sim.replay.simulated import NotSimulatedError, lost, page_signals
from trimtab.sim.replay.simulation import Conditions

ASKED = {"url": "http://prometheus:9090", "queries": {"waiting": "sum by ($join) (up)"}}
PROMETHEUS = {
    **ASKED,
    "custom": [
        {"name": "heat", "query": "max by ($join) (heat)"},
        {"name": "broken", "query": "max by ($join) (xid)", "action": "drain", "above": 0},
    ],
}


def pool(**changes: Any) -> Pool:
    return Pool.model_validate({"name": "chat", "endpoints": [{"address": "127.0.0.1:1"}], **changes})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"pool"}, "--pool is of no use without the --policy or --compare"),
        ({"compare", "policy"}, "--policy is of no use with --compare"),
        ({"compare", "strategies", "pool"}, "--strategies is of no use with --compare"),
        ({"rate", "clients"}, "--rate is of no use with --clients"),
        ({"cut_after_s", "clients"}, "--cut-after-s is of no use with --clients"),
        ({"as_json", "as_markdown"}, "--markdown is of no use with --json"),
        ({"validate", "as_json"}, "--json is of no use with --validate"),
        ({"validate_s"}, "--validate-s is of no use without --validate"),
    ],
)
def test_an_option_that_would_do_nothing_is_refused(given: set[str], said: str) -> None:
    with pytest.raises(UserError, match=said):
        refuse_idle_options(given)


def test_options_that_go_together() -> None:
    refuse_idle_options({"validate", "validate_s", "seeds", "report"})
    refuse_idle_options({"compare", "pool", "trace", "speed", "as_json"})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"rate_per_s": 0.001},
            "the requests of fleet3 arrive over .* hours, and 168 is the most: let them come faster",
        ),
        ({"conditions": Conditions(clients=3), "speed": 2}, "--speed is of no use here"),
        ({"fleet": "row_d6", "speed": 2}, "--speed is of no use here"),
    ],
)
def test_numbers_that_no_replay_can_be_made_with(changes: dict[str, Any], said: str) -> None:
    wanted = {"fleet": "fleet3", "strategies": "round_robin"} | changes
    with pytest.raises(UserError, match=said):
        make_replays(Wanted(**wanted), Console(file=io.StringIO()))


def test_a_report_that_cannot_be_written_after_all_is_told() -> None:
    with pytest.raises(UserError, match=r"^--report /dev/full: No space left on device$"):
        write_report({}, Path("/dev/full"))


def test_a_report_that_names_a_folder_is_told_before_the_replay(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="it is a folder: name a file in it"):
        ensure_folder("--report", tmp_path)


def test_all_can_stand_among_other_strategies() -> None:
    wanted = Wanted(fleet="fleet3", strategies="random,all", requests=3, processes=1)
    report, _ = make_replays(wanted, Console(file=io.StringIO()))
    assert list(report["strategies"])[:3] == ["random", "round_robin", "least_request"]
    assert {"health", "predicted_ttft"} <= report["strategies"].keys()


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        (
            {"engine": "vllm"},
            {"waiting", "running", "kv_usage", "generated_tokens", "prompt_tokens", "preemptions", "process_start"},
        ),
        ({"engine": "tgi"}, {"waiting", "running", "generated_tokens", "prompt_tokens"}),
        ({"engine": "ollama"}, set()),
        ({"engine": "custom", "signals": {"names": {"waiting": "queue"}}}, {"waiting"}),
        ({"engine": "vllm", "signals": {"scrape": False}}, set()),
    ],
)
def test_a_simulated_page_shows_what_the_page_of_such_an_engine_does(changes: dict[str, Any], shown: set[str]) -> None:
    assert page_signals(pool(**changes)) == shown


def test_a_strategy_without_what_it_goes_by_is_refused() -> None:
    blind = pool(engine="ollama", scoring={"strategy": "linear"}, signals={"prometheus": PROMETHEUS})
    with pytest.raises(NotSimulatedError, match=r"linear needs kv_usage, and .* set engine to one whose page shows it"):
        policy_arm("blind", fleet({}), blind)
    heat = pool(
        scoring={"strategy": "blend", "terms": [{"custom": "heat", "bad": 90}]}, signals={"prometheus": PROMETHEUS}
    )
    with pytest.raises(NotSimulatedError, match="no term of its blend is ever known"):
        lost(heat)


def test_a_strategy_that_loses_a_part_is_played_and_the_part_is_told() -> None:
    terms = [{"custom": "heat", "bad": 90}, {"reading": "in_flight", "bad": 40}, {"reading": "waiting", "bad": 9}]
    told = lost(
        pool(engine="ollama", scoring={"strategy": "blend", "terms": terms}, signals={"prometheus": PROMETHEUS})
    )
    assert [line.partition(": ")[2] for line in told] == [
        "the term heat is never known",
        "the term waiting is never known",
        "the signal broken never drains",
    ]
    gathers = {"name": "idle", "query": "up", "action": "consolidate", "below": 0.2}
    shields = {"name": "torn", "query": "up", "action": "no_long_prompts", "above": 0.5}
    classes = [{"name": "short", "up_to_tokens": 1000}, {"name": "long"}]
    asked = {"prometheus": {**ASKED, "custom": [gathers, shields]}}
    assert [line.partition(": ")[2] for line in lost(pool(classes=classes, signals=asked))] == [
        "the signal idle never consolidates work",
        "the signal torn never keeps long prompts away",
    ]
    (_, waiting) = lost(
        pool(engine="ollama", scoring={"strategy": "health"}, signals={"orca": False, "prometheus": ASKED})
    )
    assert waiting.endswith("waiting is never known")
    assert lost(pool()) == lost(pool(engine="ollama", scoring={"strategy": "health"})) == ()


def test_patience_without_end_is_none() -> None:
    assert len(run(steady(3, 0.1), fleet({}), patience_s=inf).served) == 3
