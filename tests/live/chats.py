"""Chats as a client has them: through Envoy, with OpenAI's own SDK."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import openai

from tests.live.tiny_model import NAME

T = TypeVar("T")


@dataclass
class Chat:
    """One streamed chat. Times are seconds since it was sent."""

    sent_at: float = field(default_factory=time.time)
    ttft_s: float | None = None
    ended_s: float | None = None
    text: str = ""
    finish_reason: str | None = None
    tokens: int | None = None  # by the engine's own count
    prompt_tokens: int | None = None
    status: int | None = None  # of an error that came in place of a stream
    error: str = ""

    @property
    def whole(self) -> bool:
        return not self.error and self.finish_reason is not None


async def chat(url: str, prompt: str, max_tokens: int, *, timeout_s: float = 120, **extra: Any) -> Chat:
    """Ask for exactly `max_tokens` and read to the end. What goes wrong is told in the result, and never raised."""
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=timeout_s) as client:
        seen, started = Chat(), time.monotonic()
        try:
            async with asyncio.timeout(timeout_s):
                async for chunk in await client.chat.completions.create(
                    model=NAME,
                    messages=[{"role": "user", "content": prompt}],
                    max_tokens=max_tokens,
                    stream=True,
                    stream_options={"include_usage": True},
                    extra_body={"ignore_eos": True, **extra},
                ):
                    _take(seen, chunk, time.monotonic() - started)
        except openai.APIStatusError as error:
            seen.status, seen.error = error.status_code, str(error.body)
        except (openai.APIError, TimeoutError) as error:
            seen.error = f"{type(error).__name__}: {error}"
    seen.ended_s = time.monotonic() - started
    return seen


def _take(seen: Chat, chunk: Any, after_s: float) -> None:
    if chunk.usage is not None:
        seen.tokens, seen.prompt_tokens = chunk.usage.completion_tokens, chunk.usage.prompt_tokens
    for choice in chunk.choices:
        if choice.delta.content:
            seen.ttft_s = after_s if seen.ttft_s is None else seen.ttft_s
            seen.text += choice.delta.content
        seen.finish_reason = choice.finish_reason or seen.finish_reason


async def evenly(count: int, gap_s: float, ask: Callable[[int], Coroutine[Any, Any, T]]) -> Sequence[T]:
    """Ask `count` times at an even pace, whatever became of those before; returns when all are answered."""
    async with asyncio.TaskGroup() as group:
        asked = []
        for number in range(count):
            asked.append(group.create_task(ask(number)))
            await asyncio.sleep(gap_s)
    return [task.result() for task in asked]


def distinct_prompt(number: int, words: int) -> str:
    """A prompt that shares no beginning with one of another number: nothing of it is in a prefix cache."""
    return f"{number} {number * 7919 % 10007} " + "tell me more of it " * (words // 5)
