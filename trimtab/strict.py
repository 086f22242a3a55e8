"""The base of every type that a policy file is made of."""

from pydantic import BaseModel, ConfigDict


class Strict(BaseModel):
    """A frozen value that refuses unknown keys, so a typo in a policy is an error and never a silent default."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=False, validate_default=True)
