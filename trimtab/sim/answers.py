"""Answers as vLLM 0.32 gives them, field for field in its order."""

import json
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

from trimtab.sim.requests import ANTHROPIC, CHAT, COMPLETION, Failure, FinishReason, Form, Generation

VERSION = "0.32.0"
FINGERPRINT = f"vllm-{VERSION}-dbcdd938"
DONE = "data: [DONE]\n\n"


def compact(value: Any) -> str:
    """JSON without blanks."""
    return json.dumps(value, separators=(",", ":"))


def event(value: Any, name: str = "") -> str:
    """One server-sent event."""
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {compact(value)}\n\n"


def error_body(failure: Failure) -> dict[str, Any]:
    """An error as the OpenAI routes give it."""
    return {
        "error": {
            "message": failure.message,
            "type": failure.type,
            "param": failure.param,
            "code": failure.status if failure.code is None else failure.code,
        }
    }


def error_event(failure: Failure) -> str:
    """An error inside a stream whose status is already sent; vLLM writes it with blanks."""
    return f"data: {json.dumps(error_body(failure))}\n\n"


def anthropic_error_body(failure: Failure) -> dict[str, Any]:
    """An error as /v1/messages gives it."""
    return {"type": "error", "error": {"type": failure.type, "message": failure.message}}


class Answer(ABC):
    """The shape of one answer. Events are ASCII text, so that their length in bytes is that of the text."""

    id_prefix: ClassVar[str] = "chatcmpl"

    def __init__(self, generation: Generation, model: str) -> None:
        self.generation = generation
        self.model = model
        self.id = f"{self.id_prefix}-{secrets.token_hex(8)}"
        self.created = int(time.time())

    @abstractmethod
    def opening(self, choice: int) -> str:
        """Events that are sent together with a choice's first token."""

    @abstractmethod
    def token(self, choice: int, text: str) -> str:
        """The event of a token that is not the last."""

    @abstractmethod
    def last_token(self, choice: int, text: str, reason: FinishReason) -> str:
        """The event(s) of a choice's last token."""

    @abstractmethod
    def closing(self) -> list[str]:
        """Events after the last token of all choices."""

    @abstractmethod
    def whole(self, choices: Sequence[tuple[str, FinishReason]]) -> dict[str, Any]:
        """The unary answer."""

    @property
    def output_tokens(self) -> int:
        """Generated tokens of all choices."""
        return sum(self.generation.length(choice)[0] for choice in range(self.generation.sampling.branches))

    def usage(self) -> dict[str, Any]:
        """Token counts as OpenAI names them."""
        prompt, output = self.generation.prompt_tokens, self.output_tokens
        return {"prompt_tokens": prompt, "total_tokens": prompt + output, "completion_tokens": output}


class _OpenAIAnswer(Answer):
    stream_object: ClassVar[str]

    def __init__(self, generation: Generation, model: str) -> None:
        super().__init__(generation, model)
        self._head = self._dump_head(self.stream_object)
        # The events of tokens in the middle differ in their text alone.
        self._around = [self._split(choice) for choice in range(generation.sampling.branches)]

    def _dump_head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}

    @abstractmethod
    def _chunk(self, choice: int, text: str, reason: FinishReason | None) -> dict[str, Any]:
        """One choice of a token's event."""

    def _split(self, choice: int) -> tuple[str, str]:
        whole = event(self._head | {"choices": [self._chunk(choice, "<text>", None)]})
        before, _, after = whole.rpartition("<text>")
        return before, after

    def token(self, choice: int, text: str) -> str:
        before, after = self._around[choice]
        return f"{before}{text}{after}"

    def last_token(self, choice: int, text: str, reason: FinishReason) -> str:
        value = self._head | {"choices": [self._chunk(choice, text, reason)]}
        if not self.generation.include_usage:
            value["system_fingerprint"] = FINGERPRINT
        return event(value)

    def closing(self) -> list[str]:
        usage = self._head | {"choices": [], "usage": self.usage(), "system_fingerprint": FINGERPRINT}
        return [event(usage), DONE] if self.generation.include_usage else [DONE]

    def _dump_whole(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        details = {"prompt_tokens_details": None, "completion_tokens_details": None}
        return self._dump_head(kind) | {
            "choices": choices,
            "service_tier": None,
            "system_fingerprint": FINGERPRINT,
            "usage": self.usage() | details,
        }


class ChatAnswer(_OpenAIAnswer):
    """/v1/chat/completions"""

    stream_object = "chat.completion.chunk"

    def opening(self, choice: int) -> str:
        role = {
            "index": choice,
            "delta": {"role": "assistant", "content": ""},
            "logprobs": None,
            "finish_reason": None,
        }
        return event(self._head | {"choices": [role], "prompt_token_ids": None, "prompt_text": None})

    def _chunk(self, choice: int, text: str, reason: FinishReason | None) -> dict[str, Any]:
        chunk = {"index": choice, "delta": {"content": text}, "logprobs": None, "finish_reason": reason}
        if reason is not None:
            chunk["stop_reason"] = None
        return chunk | {"token_ids": None}

    def whole(self, choices: Sequence[tuple[str, FinishReason]]) -> dict[str, Any]:
        nothing = dict.fromkeys(("refusal", "annotations", "audio", "function_call", "reasoning"))
        dumped = [
            {
                "index": index,
                "message": {"role": "assistant", "content": text} | nothing,
                "logprobs": None,
                "finish_reason": reason,
                "stop_reason": None,
                "token_ids": None,
                "routed_experts": None,
            }
            for index, (text, reason) in enumerate(choices)
        ]
        tail = ("prompt_logprobs", "prompt_token_ids", "prompt_text", "kv_transfer_params")
        return self._dump_whole("chat.completion", dumped) | dict.fromkeys((*tail, "ec_transfer_params", "metrics"))


class CompletionAnswer(_OpenAIAnswer):
    """/v1/completions"""

    id_prefix = "cmpl"
    stream_object = "text_completion"

    def opening(self, choice: int) -> str:
        return ""

    def _chunk(self, choice: int, text: str, reason: FinishReason | None) -> dict[str, Any]:
        return {
            "index": choice,
            "text": text,
            "logprobs": None,
            "finish_reason": reason,
            "stop_reason": None,
            "prompt_token_ids": None,
            "token_ids": None,
        }

    def whole(self, choices: Sequence[tuple[str, FinishReason]]) -> dict[str, Any]:
        dumped = [
            {
                "index": index,
                "text": text,
                "logprobs": None,
                "finish_reason": reason,
                "stop_reason": None,
                "token_ids": None,
                "prompt_logprobs": None,
                "prompt_token_ids": None,
                "routed_experts": None,
            }
            for index, (text, reason) in enumerate(choices)
        ]
        tail = ("kv_transfer_params", "ec_transfer_params", "metrics")
        return self._dump_whole("text_completion", dumped) | dict.fromkeys(tail)


class AnthropicAnswer(Answer):
    """/v1/messages"""

    def opening(self, choice: int) -> str:
        message: dict[str, Any] = {
            "id": self.id,
            "content": [],
            "model": self.model,
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {"input_tokens": self.generation.prompt_tokens, "output_tokens": 0},
        }
        block = {"type": "text", "text": ""}
        return self._event("message_start", message=message) + self._event(
            "content_block_start", index=0, content_block=block
        )

    def token(self, choice: int, text: str) -> str:
        return self._event("content_block_delta", index=0, delta={"type": "text_delta", "text": text})

    def last_token(self, choice: int, text: str, reason: FinishReason) -> str:
        delta = {"stop_reason": self._stop_reason(reason)}
        return (
            (self.token(choice, text) if text else "")
            + self._event("content_block_stop", index=0)
            + self._event("message_delta", delta=delta, usage=self._counts())
        )

    def closing(self) -> list[str]:
        return [self._event("message_stop"), DONE]

    def whole(self, choices: Sequence[tuple[str, FinishReason]]) -> dict[str, Any]:
        text, reason = choices[0]
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "content": [{"type": "text", "text": text}],
            "model": self.model,
            "stop_reason": self._stop_reason(reason),
            "usage": self._counts(),
        }

    def _counts(self) -> dict[str, int]:
        return {"input_tokens": self.generation.prompt_tokens, "output_tokens": self.output_tokens}

    @staticmethod
    def _event(name: str, **fields: Any) -> str:
        return event({"type": name} | fields, name)

    @staticmethod
    def _stop_reason(reason: FinishReason) -> str:
        return {"length": "max_tokens", "stop": "end_turn"}[reason]


class ApiFormat(NamedTuple):
    """One of the APIs that generate text."""

    path: str
    form: Form
    answer: type[Answer]
    error_body: Callable[[Failure], dict[str, Any]]


API_FORMATS = (
    ApiFormat("/v1/chat/completions", CHAT, ChatAnswer, error_body),
    ApiFormat("/v1/completions", COMPLETION, CompletionAnswer, error_body),
    ApiFormat("/v1/messages", ANTHROPIC, AnthropicAnswer, anthropic_error_body),
)
