"""Requests as vLLM 0.32 reads and refuses them."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from trimtab.sim import words
from trimtab.sim.kinds import EngineKind

FinishReason = Literal["length", "stop"]
Body = Mapping[str, Any]

_MAX_CHOICES = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """What a request asks for that changes how long it stays.

    Temperature and top_p do not appear: they change which tokens come, and how many come by that is part of what is
    typical.
    """

    max_tokens: int | None = None  # at least 1; None: as many as fit
    min_tokens: int = 0
    n: int = 1  # choices returned
    best_of: int | None = None  # choices generated, where the API has it
    ignore_eos: bool = False  # only max_tokens ends it

    @property
    def branches(self) -> int:
        """Sequences that are generated side by side, at least 1."""
        return max(1, self.n, self.best_of or 0)

    def expected_tokens(self, typical: float) -> float:
        """Tokens of each branch, where such requests have `typical` (> 0) if nothing limits them.

        The mean of a length that is cut at max_tokens is below both, so this is an upper bound of it.
        """
        if self.max_tokens is None:
            return max(typical, self.min_tokens)
        return self.max_tokens if self.ignore_eos else min(self.max_tokens, max(typical, self.min_tokens))


@dataclass(frozen=True, slots=True)
class Failure:
    """What an error answer says."""

    status: int
    message: str
    type: str
    param: str | None = None
    code: int | str | None = None  # None: the status


class RequestError(Exception):
    """The request is wrong and reaches no engine."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


def _bad(message: str, param: str, value: int) -> RequestError:
    text = f"{message} (parameter={param}, value={value})"
    return RequestError(Failure(400, text, "BadRequestError", param))


def _invalid(problem: object, param: str | None) -> RequestError:
    return RequestError(Failure(400, f"1 validation error:\n  {problem}", "Bad Request", param))


BUSY = Failure(
    503,
    "The engine is currently busy and cannot accept new requests. Please try again later or on a different instance.",
    "Service Unavailable",
)
BACKLOG = Failure(
    503,
    "The engine has reached its prefill token backlog limit. Please try again later or on a different instance.",
    "Service Unavailable",
)
DEAD = Failure(
    500,
    "EngineCore encountered an issue. See stack trace (above) for the root cause.",
    "InternalServerError",
)
DRAINING = Failure(500, "cannot schedule new futures after shutdown", "InternalServerError")


@dataclass(frozen=True, slots=True)
class Generation:
    """A request for generated text, checked against an engine."""

    prompt: str
    prompt_tokens: int
    sampling: Sampling
    user: str
    stream: bool
    include_usage: bool

    def key(self, choice: int) -> str:
        """The word of a choice's tokens."""
        return words.key_of(self.prompt, self.user, choice)

    def length(self, choice: int) -> tuple[int, FinishReason]:
        """Tokens of a choice, and why there are no more."""
        tokens = int(self.sampling.expected_tokens(words.natural_length(self.key(choice))))
        return tokens, "length" if tokens == self.sampling.max_tokens else "stop"


def parse_json(body: bytes, content_type: str) -> dict[str, Any]:
    """The body as a JSON object.

    Raises RequestError.
    """
    if content_type != "application/json":
        raise _invalid("Unsupported Media Type: Only 'application/json' is allowed", None)
    try:
        value = json.loads(body)
    except ValueError as error:
        position = getattr(error, "pos", 0)
        reason = getattr(error, "msg", "invalid UTF-8")
        problem = {
            "type": "json_invalid",
            "loc": f"body.{position}",
            "msg": "JSON decode error",
            "input": "<dict of 0 items>",
            "ctx": {"error": reason},
        }
        raise _invalid(problem, f"body.{position}") from None
    if not isinstance(value, dict):
        problem = {
            "type": "model_attributes_type",
            "loc": "body",
            "msg": "Input should be a valid dictionary",
        }
        raise _invalid(problem, "body")
    return value


class Form(NamedTuple):
    """What is particular to the requests of one API."""

    read_prompt: Callable[[Body], tuple[str, int]]  # the prompt's text and its tokens, or RequestError
    length_fields: tuple[str, ...] = ("max_tokens",)  # the first one given counts
    has_choices: bool = True


def parse(form: Form, body: Body, model: str, kind: EngineKind) -> Generation:
    """Read a request and check it as the engine of this kind that serves `model` would.

    Raises RequestError.
    """
    asked = body.get("model")
    if asked not in (None, model):
        text = f"The model `{asked}` does not exist. Valid aliases: {model}."
        raise RequestError(Failure(404, text, "NotFoundError", "model"))
    prompt, prompt_tokens = form.read_prompt(body)
    limit = kind.max_model_len
    if prompt_tokens >= limit:
        text = (
            f"This model's maximum context length is {limit} tokens. However, your prompt contains at least "
            f"{limit + 1} input tokens, which exceeds this limit even without any output tokens. Please "
            "reduce the length of the input prompt."
        )
        raise _bad(text, "input_tokens", limit + 1)
    max_tokens = _integer(body, form.length_fields, default=limit - prompt_tokens, least=1)
    if max_tokens > limit:
        text = f"max_tokens={max_tokens} cannot be greater than max_model_len={limit}."
        raise _bad(f"{text} Please request fewer output tokens.", "max_tokens", max_tokens)
    if prompt_tokens + max_tokens > limit:
        text = (
            f"This model's maximum context length is {limit} tokens. However, you requested {max_tokens} "
            f"output tokens and your prompt contains at least {prompt_tokens} input tokens, for a total of "
            f"at least {prompt_tokens + max_tokens} tokens. Please reduce the length of the input prompt or "
            "the number of requested output tokens."
        )
        raise _bad(text, "input_tokens", prompt_tokens)
    options = body.get("stream_options") or {}
    return Generation(
        prompt=prompt,
        prompt_tokens=prompt_tokens,
        sampling=Sampling(
            max_tokens=max_tokens,
            min_tokens=_integer(body, ("min_tokens",), default=0, least=0),
            n=_integer(body, ("n",), default=1, least=1, most=_MAX_CHOICES) if form.has_choices else 1,
            ignore_eos=body.get("ignore_eos") is True,
        ),
        user=str(body.get("user") or ""),
        stream=body.get("stream") is True,
        include_usage=isinstance(options, dict) and options.get("include_usage") is True,
    )


def _integer(body: Body, names: Sequence[str], *, default: int, least: int, most: int | None = None) -> int:
    for name in names:
        value = body.get(name)
        if value is None:
            continue
        if not isinstance(value, int) or isinstance(value, bool):
            problem = {"type": "int_type", "loc": f"body.{name}", "msg": "Input should be a valid integer"}
            raise _invalid(problem, f"body.{name}")
        if value < least or (most is not None and value > most):
            bound = f"at least {least}" if value < least else f"at most {most}"
            raise _bad(f"{name} must be {bound}, got {value}.", name, value)
        return value
    return default


def _missing(name: str, body: Body) -> RequestError:
    problem = {
        "type": "missing",
        "loc": f"body.{name}",
        "msg": "Field required",
        "input": f"<dict of {len(body)} items>",
    }
    return _invalid(problem, f"body.{name}")


def _text_of(content: Any) -> str:
    """The text of a message's content: a string, or a list of parts of which the text parts count."""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return ""


def _read_messages(body: Body) -> str:
    messages = body.get("messages")
    if messages is None:
        raise _missing("messages", body)
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        problem = {"type": "list_type", "loc": "body.messages", "msg": "Input should be a valid list"}
        raise _invalid(problem, "body.messages")
    return "\n".join(_text_of(message.get("content")) for message in messages)


def _chat_prompt(body: Body) -> tuple[str, int]:
    prompt = _read_messages(body)
    return prompt, words.prompt_tokens(prompt)


def _completion_prompt(body: Body) -> tuple[str, int]:
    prompt = body.get("prompt")
    if prompt is None:
        raise _missing("prompt", body)
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str):
        prompt = prompt[0]
    if isinstance(prompt, str):
        return prompt, words.prompt_tokens(prompt)
    if isinstance(prompt, list) and prompt and all(isinstance(token, int) for token in prompt):
        return json.dumps(prompt), len(prompt)
    problem = {"type": "string_type", "loc": "body.prompt", "msg": "one string or one list of token ids"}
    raise _invalid(problem, "body.prompt")


def _anthropic_prompt(body: Body) -> tuple[str, int]:
    prompt = _text_of(body.get("system")) + _read_messages(body)
    return prompt, words.prompt_tokens(prompt)


CHAT = Form(_chat_prompt, ("max_completion_tokens", "max_tokens"))
COMPLETION = Form(_completion_prompt)
ANTHROPIC = Form(_anthropic_prompt, has_choices=False)
