"""`health`: how far an endpoint is from trouble, by first tokens, errors, queue and KV usage."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from trimtab.fleet.snapshot import EndpointId, PoolSnapshot
from trimtab.scoring.law import Law, Need, Score
from trimtab.strict import Strict


class HealthPolicy(Strict):
    """Numbers of the `health` law."""

    law: Literal["health"] = "health"
    ttft_threshold_ms: Annotated[float, Field(gt=0)] = Field(2000, description="A TTFT that loses all its points.")
    queue_max: Annotated[float, Field(gt=0)] = Field(30, description="Waiting requests that lose all queue points.")
    kv_knee: Annotated[float, Field(ge=0, lt=1)] = Field(0.8, description="KV usage from which points are lost.")
    error_gain: Annotated[float, Field(gt=0)] = Field(5, description="An error share of 1/gain loses all its points.")
    ttft_weight: Annotated[float, Field(ge=0, le=1)] = 0.35
    error_weight: Annotated[float, Field(ge=0, le=1)] = 0.40
    load_weight: Annotated[float, Field(ge=0, le=1)] = 0.25
    ttft_alpha: Annotated[float, Field(gt=0, le=1)] = Field(0.2, description="EWMA weight of a new TTFT.")

    @model_validator(mode="after")
    def _sums_to_one(self) -> Self:
        total = self.ttft_weight + self.error_weight + self.load_weight
        if abs(total - 1) > 1e-6:
            raise ValueError(f"ttft_weight + error_weight + load_weight must be 1, not {total:g}")
        return self


class Health(Law):
    """The law. See `docs/laws/health.md`."""

    name: ClassVar[str] = "health"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.TTFT, Need.ERRORS, Need.WAITING, Need.KV_USAGE})

    def __init__(self, policy: HealthPolicy) -> None:
        self._policy = policy

    def judge(self, pool: PoolSnapshot, now: float) -> Mapping[EndpointId, Score]:
        raise NotImplementedError
