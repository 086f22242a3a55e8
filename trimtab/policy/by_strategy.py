"""A pool's `scoring` section: which of the laws' types it is."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, core_schema


@dataclass(frozen=True, slots=True)
class ByLaw:
    """Chooses among the members of a union by the field `law`.

    pydantic's own `Field(discriminator=...)` wants the field in every section. Here a section without `law` is of
    the default law.
    """

    default: str

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.tagged_union_schema(
            {_law(member): handler.generate_schema(member) for member in get_args(source)},
            discriminator=self._named_by,
        )

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        union = handler(schema)
        for member in union["oneOf"]:
            section = handler.resolve_ref_schema(member)
            if section["properties"]["law"]["const"] != self.default:
                # A section without `law` must fit one member only.
                section["required"] = ["law", *(key for key in section.get("required", ()) if key != "law")]
        return union

    def _named_by(self, value: Any) -> Any:
        if isinstance(value, Mapping):
            return value.get("law", self.default)
        return getattr(value, "law", None)


def _law(member: Any) -> str:
    (name,) = get_args(member.model_fields["law"].annotation)
    return str(name)
