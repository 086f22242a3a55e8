"""Why an engine refused or failed, judged from its answer by rules that are data."""

import functools
import importlib.resources
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Self

from pydantic import TypeAdapter
from ruamel.yaml import YAML

from trimtab.llmapi.encoding import UnknownCoding, decode_body
from trimtab.llmapi.errors import ErrorBody, read_error_body
from trimtab.llmapi.retry_after import retry_hint_s
from trimtab.observation.kinds import Verdict
from trimtab.policy.model import Rejections, Rule

MAX_BODY = 64 * 1024  # bytes of a body that are looked at, before and after decoding
MAX_RETRY_AFTER_S = 7 * 86_400.0


@dataclass(frozen=True, slots=True)
class Rejection:
    """What was made of one error answer."""

    verdict: Verdict
    retry_after_s: float | None  # 0..MAX_RETRY_AFTER_S; None if the answer does not say
    rule: str  # the name of the rule that decided, empty if none did


class _CompiledRule:
    def __init__(self, rule: Rule) -> None:
        self.name = rule.name
        self.verdict = rule.verdict
        self._status = frozenset(rule.status)
        self._headers = [(name.lower(), _compile(pattern)) for name, pattern in rule.headers.items()]
        self._fields = [(path, _compile(pattern)) for path, pattern in rule.fields.items()]
        self._text = _compile(rule.text) if rule.text else None

    def holds(self, status: int, headers: Mapping[str, str], error: ErrorBody) -> bool:
        if self._status and status not in self._status:
            return False
        for name, pattern in self._headers:
            if "*" in name:
                values = [value for header, value in headers.items() if fnmatchcase(header, name)]
            else:
                values = [headers[name]] if name in headers else []
            if not any(pattern.fullmatch(value) for value in values):
                return False
        for path, pattern in self._fields:
            if not any(pattern.fullmatch(value) for value in error.values(path)):
                return False
        return self._text is None or self._text.search(error.text) is not None


class RejectionReader:
    """Judges error answers by rules, tried in order: the first whose conditions all hold decides.

    With no such rule the verdict is UNKNOWN. At most `MAX_BODY` bytes of a body are looked at and 4096
    characters of its text, so the cost of one answer is bounded whatever an engine sends.
    """

    def __init__(self, rules: Iterable[Rule]) -> None:
        self._rules = [_CompiledRule(rule) for rule in rules]

    @classmethod
    def from_policy(cls, rejections: Rejections) -> Self:
        """The operator's rules, then the bundled ones unless he switched those off."""
        return cls(rejections.rules + (bundled_rules() if rejections.bundled else ()))

    def judge(self, status: int, headers: Mapping[str, str], body: bytes, now: float) -> Rejection:
        """Judge one answer. Never raises.

        `status` is the one on the wire; for an error event inside a stream it is 200, `headers` are the
        stream's and `body` is the event's data. Else `body` is as the engine sent it: encoded as
        Content-Encoding says, perhaps cut. Header names are in lower case. `now` is Unix time, for dates.
        """
        in_stream = status == 200
        error = read_error_body(body[:MAX_BODY] if in_stream else _decoded(body[:MAX_BODY], headers))
        # A stream's headers were sent before its error came about: a hint in them is not about it.
        retry_after_s = retry_hint_s({} if in_stream else headers, error, now, MAX_RETRY_AFTER_S)
        for rule in self._rules:
            if rule.holds(status, headers, error):
                return Rejection(rule.verdict, retry_after_s, rule.name)
        return Rejection(Verdict.UNKNOWN, retry_after_s, "")


@functools.cache
def bundled_rules() -> tuple[Rule, ...]:
    """The rules of `trimtab/data/rejections.yaml`."""
    text = importlib.resources.files("trimtab").joinpath("data/rejections.yaml").read_text(encoding="utf-8")
    return TypeAdapter(tuple[Rule, ...]).validate_python(YAML(typ="safe").load(text)["rules"])


def _compile(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.IGNORECASE | re.DOTALL)


def _decoded(body: bytes, headers: Mapping[str, str]) -> bytes:
    try:
        decoded = decode_body(body, headers.get("content-encoding", ""), MAX_BODY)
    except UnknownCoding:
        return body
    # Some gateways put a plain body in the place of an encoded one and keep the header.
    looks_plain = body.startswith((b'{"', b"[{")) and not decoded.startswith((b"{", b"["))
    return body if looks_plain or not decoded else decoded
