"""Answers in the making: from counts of generated tokens to bytes on a connection."""

import asyncio
import time
from collections.abc import Callable

from trimtab.sim import words
from trimtab.sim.answers import Answer
from trimtab.sim.attempts import Attempt
from trimtab.sim.requests import FinishReason


class Choice:
    """One of the `n` texts of an answer."""

    __slots__ = ("index", "key", "ready", "reason", "reply", "sent", "tokens")

    def __init__(self, reply: "Reply", index: int) -> None:
        generation = reply.answer.generation
        self.reply = reply
        self.index = index
        self.key = generation.key(index)
        self.tokens, self.reason = generation.length(index)
        self.ready = 0  # tokens generated
        self.sent = 0

    def on_tokens(self, generated: int) -> None:
        """The engine has generated so many tokens of this choice by now."""
        if generated > self.ready:
            self.ready = generated
            self.reply.progress(self)

    def text(self, position: int) -> str:
        """The text of a token. One that ends the text by itself is invisible."""
        if self.reason == "stop" and position == self.tokens - 1:
            return ""
        return words.token(self.key, position)


class Reply:
    """An unary answer. `done` is set when every choice has all its tokens."""

    def __init__(self, answer: Answer, attempt: Attempt) -> None:
        self.answer = answer
        self.attempt = attempt
        self.done = asyncio.Event()
        self.choices = [Choice(self, index) for index in range(answer.generation.sampling.branches)]
        self._unfinished = len(self.choices)

    def progress(self, choice: Choice) -> None:
        """Take note of a choice's new tokens."""
        if choice.ready == choice.tokens:
            self._unfinished -= 1
            if self._unfinished == 0:
                self.done.set()

    def texts(self) -> list[tuple[str, FinishReason]]:
        """The whole text of each choice, and why it ends there."""
        return [
            (words.text(choice.key, choice.tokens - (choice.reason == "stop")), choice.reason)
            for choice in self.choices
        ]


class StreamedReply(Reply):
    """A stream of events. Tokens wait until `start`; `done` is set when the last event is written.

    With `stop_after` it stops, and `stopped` is true, when so many tokens are sent.
    """

    def __init__(self, answer: Answer, attempt: Attempt) -> None:
        super().__init__(answer, attempt)
        self.stop_after: int | None = None
        self.stopped = False
        self._write: Callable[[bytes], None] | None = None
        self._opened: set[int] = set()

    def open(self, write: Callable[[bytes], None]) -> None:
        """Send what comes before the first tokens."""
        write(_frames([self._opening(choice) for choice in self.choices]))

    def start(self, write: Callable[[bytes], None]) -> None:
        """Send the tokens that are there, and from now on each as it comes."""
        self._write = write
        for choice in self.choices:
            self.progress(choice)

    def go_on(self, write: Callable[[bytes], None]) -> None:
        """Send what `stop_after` has held back, and the rest as it comes."""
        self.stop_after, self.stopped = None, False
        if self._unfinished == 0:
            write(_frames(self.answer.closing()))
        else:
            self.done.clear()
            self.start(write)

    def progress(self, choice: Choice) -> None:
        """Send a choice's new tokens."""
        if self._write is None or self.stopped or choice.sent == choice.ready:
            return
        upto = choice.ready
        if self.stop_after is not None and self.attempt.tokens + upto - choice.sent >= self.stop_after:
            upto = choice.sent + self.stop_after - self.attempt.tokens
            self.stopped = True
        events = [] if choice.index in self._opened else [self._opening(choice)]
        for position in range(choice.sent, upto):
            text = choice.text(position)
            if position < choice.tokens - 1:
                events.append(self.answer.token(choice.index, text))
            else:
                events.append(self.answer.last_token(choice.index, text, choice.reason))
                self._unfinished -= 1
        if self._unfinished == 0 and not self.stopped:
            events += self.answer.closing()
        self._write(_frames(events))
        self.attempt.tokens += upto - choice.sent
        if self.attempt.first_token_at is None:
            self.attempt.first_token_at = time.time()
        choice.sent = upto
        if self._unfinished == 0 or self.stopped:
            self.done.set()

    def _opening(self, choice: Choice) -> str:
        self._opened.add(choice.index)
        return self.answer.opening(choice.index)


def _frames(events: list[str]) -> bytes:
    """Events as chunks of a chunked body, one each as vLLM sends them."""
    return "".join([f"{len(event):x}\r\n{event}\r\n" for event in events if event]).encode("ascii")


def frame(event: str) -> bytes:
    """One event, or comment, as a chunk of a chunked body."""
    return _frames([event])
