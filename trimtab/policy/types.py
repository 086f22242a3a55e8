"""Texts of a policy that have a form of their own, and more than one user."""

from typing import Annotated

from pydantic import AfterValidator, WithJsonSchema

from trimtab.policy.metric import parse_metric
from trimtab.policy.words import quoted


def text_schema(example: str, pattern: str) -> WithJsonSchema:
    """What the JSON Schema says of a text."""
    return WithJsonSchema({"type": "string", "pattern": pattern, "examples": [example]})


def _file_path(text: str) -> str:
    if not text.startswith("/") or "\0" in text:
        raise ValueError(f"{quoted(text)} must be an absolute path, as in /etc/trimtab/token")
    return text


def _metric(text: str) -> str:
    parse_metric(text)
    return text


FilePath = Annotated[str, AfterValidator(_file_path), text_schema("/etc/trimtab/token", "^/.+$")]
MetricText = Annotated[str, AfterValidator(_metric), text_schema("queue_depth", r"^\s*[a-zA-Z_:]")]
