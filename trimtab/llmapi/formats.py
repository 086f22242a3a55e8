"""What one event of a streamed answer means, in every protocol that our engines and their gateways speak."""

from collections.abc import Mapping
from typing import Any, NamedTuple

_REASONING = ("reasoning_content", "reasoning", "reasoning_details")
_OTHER_CONTENT = ("tool_calls", "function_call", "refusal", "audio")
_NATIVE_TEXTS = ("content", "text", "text_output")  # llama.cpp /completion, SGLang /generate, Triton
_NATIVE_KEYS = frozenset({*_NATIVE_TEXTS, "token", "generated_text", "meta_info", "stop", "usage"})
GAVE_UP = ("error", "abort")  # reasons to finish that are the engine's, not the answer's
_TYPES = ("message", "content_block", "ping", "error", "response.")  # what types of events begin with
_MAX_CHOICES = 128  # of one answer that are told apart


class Meaning(NamedTuple):
    """What an event says."""

    token: bool = False  # it carries generated content
    done: bool = False  # the answer is complete
    failed: bool = False  # the engine reports a failure
    foreign: bool = False  # it is of no protocol that is known here


class Interpreter:
    """Understands the events of one answer, given as parsed JSON objects of any content.

    Generated content is text, a tool call (even one whose arguments are still empty), a refusal, audio, and
    reasoning unless `count_reasoning` is off. Role chunks, pings and usage are none. A text delta of "" that
    names no role and ends nothing is content: engines send it while a character of several bytes lacks some.
    An answer of several choices is done when each of those that began has finished. `marks_end` says whether the
    protocol, as far as it has been seen, has an end that is told.
    """

    def __init__(self, count_reasoning: bool) -> None:
        self._count_reasoning = count_reasoning
        self._open_choices: set[int] = set()
        self.marks_end = False

    def read(self, event: Mapping[str, Any]) -> Meaning:
        """The meaning of the answer's next event."""
        if event.get("error") or event.get("object") == "error":
            return Meaning(failed=True)
        if isinstance(choices := event.get("choices"), list):
            return self._read_choices(choices)
        if isinstance(kind := event.get("type"), str):
            return self._read_typed(kind, event)
        return _read_native(event)

    def _read_choices(self, choices: list[Any]) -> Meaning:
        """OpenAI's chat and completion chunks."""
        self.marks_end = True
        token = finished = failed = False
        for choice in choices:
            if not isinstance(choice, dict):
                continue
            index, reason = choice.get("index"), choice.get("finish_reason")
            index = index if isinstance(index, int) else 0
            if reason:
                finished = True
                failed = failed or reason in GAVE_UP
                self._open_choices.discard(index)
            elif len(self._open_choices) < _MAX_CHOICES:
                self._open_choices.add(index)
            token = token or self._is_content(choice, ending=bool(reason))
        return Meaning(token, finished and not self._open_choices, failed)

    def _is_content(self, choice: Mapping[str, Any], ending: bool) -> bool:
        delta = choice.get("delta")
        if not isinstance(delta, dict):
            text = choice.get("text")
            return bool(text) or (text == "" and not ending)
        if delta.get("content") or any(delta.get(key) for key in _OTHER_CONTENT):
            return True
        if any(delta.get(key) for key in _REASONING):
            return self._count_reasoning
        if ending or delta.get("role"):
            return False
        keys = ("content", *_REASONING) if self._count_reasoning else ("content",)
        return any(delta.get(key) == "" for key in keys)

    def _read_typed(self, kind: str, event: Mapping[str, Any]) -> Meaning:
        """Anthropic's messages and OpenAI's Responses."""
        self.marks_end = self.marks_end or kind in ("message_start", "response.created")
        match kind:
            case "content_block_delta":
                delta = event.get("delta")
                is_json = isinstance(delta, dict) and delta.get("type") == "input_json_delta"
                return Meaning(token=is_json or self._has_text(delta))
            case "content_block_start":
                return Meaning(token=self._has_text(event.get("content_block")))
            case "message_start":
                message = event.get("message")
                content = message.get("content") if isinstance(message, dict) else None
                return Meaning(token=isinstance(content, list) and any(self._has_text(block) for block in content))
            case "message_stop" | "response.completed" | "response.incomplete":
                return Meaning(done=True)
            case "error" | "response.failed":
                return Meaning(failed=True)
        if kind.startswith("response.") and kind.endswith(".delta"):
            counts = self._count_reasoning or ".reasoning" not in kind
            return Meaning(token=counts and (bool(event.get("delta")) or "arguments" in kind))
        return Meaning(foreign=not kind.startswith(_TYPES))

    def _has_text(self, block: Any) -> bool:
        if not isinstance(block, dict):
            return False
        return bool(block.get("text") or (self._count_reasoning and block.get("thinking")))


def _read_native(event: Mapping[str, Any]) -> Meaning:
    """The engines' own protocols: TGI /generate_stream, llama.cpp /completion, SGLang /generate, Triton."""
    texts = [event.get(key) for key in _NATIVE_TEXTS]
    if isinstance(token := event.get("token"), dict):
        texts.append(token.get("text"))
    meta = event.get("meta_info")
    reason = meta.get("finish_reason") if isinstance(meta, dict) else None
    gave_up = isinstance(reason, dict) and reason.get("type") in GAVE_UP
    return Meaning(
        token=any(isinstance(text, str) and text for text in texts),
        done=bool(reason) or event.get("stop") is True or isinstance(event.get("generated_text"), str),
        failed=gave_up,
        foreign=_NATIVE_KEYS.isdisjoint(event),
    )
