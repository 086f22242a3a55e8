"""Fleet files: which simulated engines a replay runs, and the work that suits them."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from trimtab.policy.document import Document
from trimtab.policy.load import read_policy
from trimtab.policy.problem import Path as Place
from trimtab.policy.problem import PolicyError, Problem
from trimtab.policy.schema import wanted
from trimtab.policy.words import quoted, shown
from trimtab.scoring.config import Positive
from trimtab.sim.kinds import KINDS, EngineKind
from trimtab.strict import Flaw, FlawedError, Strict

_FLEETS = resources.files("trimtab").joinpath("data/fleets")

# Far beyond any engine, and such that no replay takes for ever because of a slip of the pen.
_Count = Annotated[int, Field(ge=1, le=100_000_000)]
_Tokens = Annotated[int, Field(ge=1, le=10_000_000)]
_Time = Annotated[float, Field(ge=0, le=100_000)]
_Above0 = Annotated[float, Field(ge=0.001, le=1_000_000)]
_LEAST_CV = 0.01
_Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]*$")]


# What an endpoint answers at once that is no model output.
Answers = Literal[
    "output",
    "not_found",
    "unauthorized",
    "bad_request",
    "redirect",
    "no_content",
    "html",
    "json_error",
    "done_alone",
    "foreign_json",
]


class Lengths(Strict):
    """Tokens, drawn from a lognormal distribution and clamped."""

    mu: Annotated[float, Field(ge=-20, le=20)] = Field(description="Mean of the logarithm.")
    sigma: Annotated[float, Field(ge=0, le=10)] = Field(
        description="Standard deviation of the logarithm; 0: all alike."
    )
    least: _Tokens = Field(1, description="The smallest.")
    most: _Tokens = Field(description="The largest.")

    def flaws(self) -> Iterator[Flaw]:
        if self.least > self.most:
            yield Flaw(f"least ({self.least}) must not be above most ({self.most})", ("least",), ("most",))


class Workload(Strict):
    """What the fleet is given when no trace is named: open loop at a rate, or a closed loop of clients."""

    requests: Annotated[int, Field(ge=1, le=10_000_000)] = Field(description="How many.")
    rate_per_s: _Above0 | None = Field(None, description="Open loop: arrivals per second.")
    cv: Annotated[float, Field(ge=0, le=20)] = Field(
        2, description="Of the gaps between arrivals (gamma): 0 is a clock, 1 is Poisson, more comes in bursts."
    )
    clients: Annotated[int, Field(ge=1, le=100_000)] | None = Field(
        None, description="Closed loop: so many clients, each with one request at a time."
    )
    patience_s: _Above0 | None = Field(None, description="A client without a token for so long leaves.")
    prompt: Lengths = Field(description="Prompt tokens.")
    output: Lengths = Field(description="Output tokens.")

    def flaws(self) -> Iterator[Flaw]:
        if (self.rate_per_s is None) == (self.clients is None):
            yield Flaw("exactly one of rate_per_s and clients must be there", ("rate_per_s",), ("clients",))
        if 0 < self.cv < _LEAST_CV:
            yield Flaw(f"cv ({self.cv:g}) must be 0, which is a clock, or at least {_LEAST_CV:g}", ("cv",))


class Engines(Strict):
    """One or more engines alike: a bundled kind, with numbers of its own where they differ."""

    kind: Literal["a100", "rtx4090", "cpu", "vllm_cpu_medium"] = Field(description="A bundled kind to start from.")
    name: _Name | None = Field(None, description="Shown for it; default: the kind.")
    count: Annotated[int, Field(ge=1, le=1000)] = Field(1, description="How many.")
    capacity: Positive | None = Field(None, description="As an operator would declare it in the policy.")
    answers: Answers = Field(
        "output", description="`output`; or what they give at once instead, as an endpoint does that is set up wrongly."
    )
    step0_ms: Annotated[float, Field(ge=0.001, le=100_000)] | None = Field(
        None, description="This and all below: see docs/results/engine-model.md."
    )
    per_sequence_ms: _Time | None = None
    per_context_token_ns: _Time | None = None
    prefill_tokens_per_s: Annotated[float, Field(ge=1, le=100_000_000)] | None = None
    prefill_step_ms: _Time | None = None
    prefill_quadratic_ns: _Time | None = None
    kv_blocks: _Count | None = None
    block_size: _Count | None = None
    max_num_seqs: _Count | None = None
    max_num_batched_tokens: _Count | None = None
    max_model_len: _Count | None = None
    max_num_queued_reqs: _Count | None = None
    max_num_queued_tokens: _Count | None = None

    def engine_kind(self) -> EngineKind:
        """The kind with its own numbers. Raises ValueError if they cannot work together."""
        base = KINDS[self.kind]
        own = {field.name: getattr(self, field.name) for field in fields(EngineKind) if field.name != "name"}
        return replace(
            base, name=self.name or self.kind, **{key: value for key, value in own.items() if value is not None}
        )


class FleetFile(Strict):
    """A fleet file as it is written."""

    version: Literal[1]
    about: str = Field("", description="What this fleet stands for.")
    engines: tuple[Engines, ...] = Field(min_length=1)
    workload: Workload | None = Field(None, description="What it is given when no trace is named.")

    def flaws(self) -> Iterator[Flaw]:
        for index, engines in enumerate(self.engines):
            try:
                engines.engine_kind()
            except ValueError as error:
                yield Flaw(str(error), ("engines", index, "kind"))
                return
        kinds = [engines.engine_kind() for engines in self.engines]
        for index, kind in enumerate(kinds):
            first = next(number for number, other in enumerate(kinds) if other.name == kind.name)
            if kinds[first] != kind:
                yield Flaw(
                    f"engines[{first}] has other numbers under the name {quoted(kind.name)}: give one of them its own",
                    ("engines", index, "name"),
                    ("engines", index, "kind"),
                )


@dataclass(frozen=True, slots=True)
class SimulatedEndpoint:
    """One engine of a fleet."""

    name: str
    address: str
    kind: EngineKind
    capacity: float | None
    answers: Answers = "output"


@dataclass(frozen=True, slots=True)
class SimulatedFleet:
    """The engines of a replay."""

    name: str
    about: str
    endpoints: tuple[SimulatedEndpoint, ...]
    workload: Workload | None


def bundled_fleets() -> Sequence[str]:
    """The names of the fleets that come with Trimtab."""
    return sorted(entry.name.removesuffix(".yaml") for entry in _FLEETS.iterdir() if entry.name.endswith(".yaml"))


def load_fleet(name_or_path: str | Path) -> SimulatedFleet:
    """A bundled fleet by its name, or a fleet file. Raises PolicyError with every problem of the file."""
    if str(name_or_path) in bundled_fleets():
        with resources.as_file(_FLEETS.joinpath(f"{name_or_path}.yaml")) as path:
            return _load(str(name_or_path), path)
    path = Path(name_or_path)
    if not path.exists() and path.suffix not in {".yaml", ".yml"}:
        known = ", ".join(bundled_fleets())
        raise PolicyError([Problem(str(path), 1, 1, "", f"no such file, and no bundled fleet; there are {known}")])
    return _load(path.stem, path)


def make_fleet(name: str, file: FleetFile) -> SimulatedFleet:
    """The engines that a fleet file describes, each with a name and an address of its own."""
    endpoints: list[SimulatedEndpoint] = []
    counts: dict[str, int] = {}
    for engines in file.engines:
        kind = engines.engine_kind()
        for _ in range(engines.count):
            counts[kind.name] = counts.get(kind.name, 0) + 1
            number = len(endpoints) + 1
            address = f"10.0.{number // 250}.{number % 250 + 1}:8000"
            name_of = f"{kind.name}-{counts[kind.name]}"
            endpoints.append(SimulatedEndpoint(name_of, address, kind, engines.capacity, engines.answers))
    return SimulatedFleet(name, file.about, tuple(endpoints), file.workload)


def _load(name: str, path: Path) -> SimulatedFleet:
    try:
        text = read_policy(path).decode()
    except UnicodeDecodeError:
        raise PolicyError([Problem(str(path), 1, 1, "", "not UTF-8 text")]) from None
    if not text.strip():
        raise PolicyError([Problem(str(path), 1, 1, "", "the file is empty: a fleet has at least version and engines")])
    document = Document(text.removeprefix("\ufeff"), str(path))
    problems = list(document.problems)
    try:
        file = FleetFile.model_validate_json(json.dumps(document.data), strict=True)
    except ValidationError as error:
        told = {problem.where for problem in problems}
        found = [problem for details in error.errors(include_url=False) for problem in _problems(document, details)]
        problems += [problem for problem in found if problem.where not in told]
    if problems:
        raise PolicyError(sorted(problems, key=lambda problem: (problem.line, problem.column)))
    return make_fleet(name, file)


def _problems(document: Document, details: Mapping[str, Any]) -> Iterator[Problem]:
    location = tuple(details["loc"])
    match details["type"]:
        case "extra_forbidden":
            keys = ", ".join(_schema_at(location[:-1])["properties"])
            yield document.problem(location, f"unknown key; the keys here are {keys}", of_key=True)
        case "missing":
            yield document.problem(location, f"missing; it must be {wanted(_schema_at(location))}")
        case "too_short" if details["input"]:
            return  # pydantic does not count the items that it refused; these are told
        case "value_error":
            error = details["ctx"]["error"]
            for flaw in error.flaws if isinstance(error, FlawedError) else ():
                yield document.problem((*location, *flaw.at[0]), flaw.message)
        case _:
            message = f"must be {wanted(_schema_at(location))}, not {shown(details['input'])}"
            yield document.problem(location, message)


def _schema_at(location: Place) -> dict[str, Any]:
    """What belongs at a place of a fleet file, as JSON Schema."""
    whole = FleetFile.model_json_schema()
    found: dict[str, Any] = whole
    for part in location:
        found = found["items"] if isinstance(part, int) else found["properties"][part]
        found = next((one for one in found.get("anyOf", ()) if one != {"type": "null"}), found)
        if "$ref" in found:
            found = whole["$defs"][found["$ref"].rpartition("/")[2]]
    return found
