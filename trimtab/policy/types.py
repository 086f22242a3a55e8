"""Values of a policy that have a form of their own, and more than one user."""

import re
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, WithJsonSchema

from trimtab.policy.metric import parse_metric
from trimtab.policy.words import quoted


def text_schema(example: str, pattern: str) -> WithJsonSchema:
    """What the JSON Schema says of a text."""
    return WithJsonSchema({"type": "string", "pattern": pattern, "examples": [example]})


class NamedFile(str):
    """The path of a file that Trimtab reads."""


def _file_path(text: str) -> NamedFile:
    if not re.fullmatch("/.+", text) or not text.isprintable():
        raise ValueError(f"{quoted(text)} must be an absolute path, as in /etc/trimtab/NAME")
    return NamedFile(text)


def _url(text: str) -> str:
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise ValueError(f"{quoted(text)} is not a URL") from None
    if parts.scheme not in {"http", "https"} or not parts.hostname or port == 0 or re.search(r"\s", text):
        raise ValueError(f"{quoted(text)} must be a URL that begins with http:// or https://")
    if "@" in parts.netloc:
        raise ValueError("a URL is shown on /policy: take the password out of it, and name a file that has it")
    if parts.fragment:
        raise ValueError(f"{quoted(text)}: what follows the # is never sent; remove it")
    return text


def _base_url(text: str) -> str:
    if urlsplit(text).query:
        raise ValueError(f"{quoted(text)} must end with its path")
    return text.rstrip("/")


def _metric(text: str) -> str:
    parse_metric(text)
    return text


Port = Annotated[int, Field(ge=1, le=65535)]
FilePath = Annotated[str, AfterValidator(_file_path), text_schema("/etc/trimtab/NAME", "^/.+$")]
Url = Annotated[str, AfterValidator(_url), text_schema("https://inventory.example.com/engines", r"^https?://\S+$")]
BaseUrl = Annotated[
    str, AfterValidator(_url), AfterValidator(_base_url), text_schema("https://10.0.0.2:6443", r"^https?://\S+$")
]
"""What paths are appended to; it ends without a slash."""

MetricText = Annotated[str, AfterValidator(_metric), text_schema("queue_depth", r"^\s*[a-zA-Z_:]")]
