"""A pool's `scoring` section: which of the strategies' types it is."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, core_schema


@dataclass(frozen=True, slots=True)
class ByStrategy:
    """Chooses among the members of a union by the field `strategy`.

    pydantic's own `Field(discriminator=...)` wants the field in every section. Here a section without `strategy` is of
    the default strategy.
    """

    default: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.tagged_union_schema(
            {_strategy(member): handler.generate_schema(member) for member in get_args(source)},
            discriminator=self._named_by,
        )

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        union = handler(schema)
        for member in union["oneOf"]:
            section = handler.resolve_ref_schema(member)
            if section["properties"]["strategy"]["const"] != self.default:
                # A section without `strategy` must fit one member only.
                section["required"] = ["strategy", *(key for key in section.get("required", ()) if key != "strategy")]
        return union

    def _named_by(self, value: Any) -> Any:
        if isinstance(value, Mapping):
            return value.get("strategy", self.default)
        return getattr(value, "strategy", None)


def _strategy(member: Any) -> str:
    (name,) = get_args(member.model_fields["strategy"].annotation)
    return str(name)
