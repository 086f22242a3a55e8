"""The base of every type that a policy file is made of."""

from collections.abc import Iterable
from typing import Self

from pydantic import BaseModel, ConfigDict, model_validator


class Flaw:
    """What is wrong between fields that are right one by one.

    `at` are the places where it can be fixed, seen from the value that has the flaw, the best one first: of
    these the first that is in the file is shown.
    """

    def __init__(self, message: str, *at: tuple[str | int, ...]) -> None:
        self.message = message
        self.at = at or ((),)


class FlawedError(ValueError):
    """A value that has flaws."""

    def __init__(self, flaws: tuple[Flaw, ...]) -> None:
        super().__init__("; ".join(flaw.message for flaw in flaws))
        self.flaws = flaws


class Strict(BaseModel):
    """A frozen value that refuses unknown keys, so a typo in a policy is an error, never a silent default."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=False, validate_default=True)

    def flaws(self) -> Iterable[Flaw]:
        """Override it in a type whose fields depend on one another: yield each thing that is wrong."""
        return ()

    @model_validator(mode="after")
    def _refuse_flaws(self) -> Self:
        if flaws := tuple(self.flaws()):
            raise FlawedError(flaws)
        return self
