"""How a pool finds engines that answer their health checks and generate nothing."""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from trimtab.policy.engines import engine_tables
from trimtab.policy.types import FilePath
from trimtab.strict import Flaw, Strict

# So many deadlines fit into an interval: the first silent probe and the second, with the pause between them, are then
# over within two intervals after an engine hangs.
_DEADLINES = 4
# An engine's counters may stand still for the one step that computes a long prompt on a slow machine.
_FROZEN_S = 10.0


class Probe(Strict):
    """Whether engines generate: probes, which are generations of one token, and counters that stand still."""

    interval_s: Annotated[float, Field(ge=0, le=3600, allow_inf_nan=False)] = Field(
        0,
        description="How often an idle endpoint is probed, from 1; where there is traffic, the traffic is the probe. "
        "0 sends no probes.",
    )
    deadline_ms: Annotated[int, Field(ge=50, le=600_000)] = Field(
        1200,
        description="An idle engine that shows no token in this time is silent. At most a quarter of the interval.",
    )
    api: Literal["chat", "completions"] = Field(
        "chat", description="/v1/chat/completions or /v1/completions: a model without a chat template has only that."
    )
    model: Annotated[str, Field(min_length=1)] | None = Field(
        None,
        description="The model to ask for. null: the pool's first one without wildcards, else the first of the "
        "engine's /v1/models that the pool serves.",
    )
    token_file: FilePath | None = Field(
        None,
        description="File with a bearer token for the engine's API; read again when it changes. null: "
        "signals.scrape_token_file, where the API and the metrics have one port.",
    )
    max_concurrent: Annotated[int, Field(ge=1, le=1000)] = Field(8, description="Probes of the pool at one time.")
    max_per_s: Annotated[float, Field(gt=0, le=1000)] = Field(
        20, description="Probes of the pool in a second; a larger fleet is probed less often than the interval says."
    )
    frozen_s: Annotated[float, Field(ge=0, le=3600, allow_inf_nan=False)] | None = Field(
        None,
        description="An engine that says it has work while its counters stand still is suspect after so long, and "
        "down after twice as long. null: 10 for engines that count each token when it is generated (vllm), else off. "
        "0 switches it off.",
    )

    def flaws(self) -> Iterator[Flaw]:
        if 0 < self.interval_s < 1:
            yield Flaw(f"interval_s is {self.interval_s:g}: it must be at least 1, or 0 for no probes", ("interval_s",))
        elif self.interval_s and self.deadline_ms * _DEADLINES > self.interval_s * 1000:
            unset = "" if "deadline_ms" in self.model_fields_set else ", the default"
            yield Flaw(
                f"deadline_ms ({self.deadline_ms}{unset}) must be at most a quarter of interval_s "
                f"({self.interval_s:g} s): set interval_s to at least {self.deadline_ms * _DEADLINES / 1000:g}",
                ("interval_s",),
                ("deadline_ms",),
            )

    def frozen_after_s(self, engine: str) -> float:
        """`frozen_s` for an engine of the policy; 0 is never."""
        if self.frozen_s is not None:
            return self.frozen_s
        return _FROZEN_S if engine_tables()[engine].counts_each_token else 0.0
