"""An open-loop load client: each request of a trace is sent when it is due, whatever became of the others."""

import asyncio
import json
import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from statistics import fmean
from typing import Any

import aiohttp

from trimtab.sim import words
from trimtab.sim.trace import Request

_CONTENT = b'"delta":{"content":"'
_MAX_DETAIL = 200


class Outcome(StrEnum):
    """How a request ended for the client."""

    OK = "ok"  # every byte as it must be, and the end as well
    UNFINISHED = "unfinished"  # right so far, and still streaming when the replay was cut off
    NO_TOKEN = "no token"  # none when the replay was cut off
    HTTP_ERROR = "http error"
    ERROR_EVENT = "error event"  # inside a stream
    CUT = "cut"  # the stream broke, or ended without its end mark
    WRONG_BYTES = "wrong bytes"
    UNREACHABLE = "unreachable"


@dataclass(slots=True)
class Result:
    """What became of one request. Times are seconds since the start of the replay."""

    number: int  # its place in the trace
    request: Request
    cut_off_s: float  # when the replay is cut off
    sent_s: float | None = None
    token_s: list[float] = field(default_factory=list)  # when each token came
    ended_s: float | None = None
    outcome: Outcome | None = None  # None while it is under way
    status: int | None = None
    engine: str | None = None  # the header x-sim-engine
    detail: str = ""

    @property
    def lateness_s(self) -> float:
        """How much later than due the client sent it."""
        return 0.0 if self.sent_s is None else self.sent_s - self.request.arrival_s

    @property
    def ttft_s(self) -> float:
        """From the time it was due to its first token; without one, to the cut-off."""
        return (self.token_s[0] if self.token_s else self.cut_off_s) - self.request.arrival_s

    @property
    def succeeded(self) -> bool:
        """Nothing went wrong; a stream that the cut-off found in good order counts."""
        return self.outcome in (Outcome.OK, Outcome.UNFINISHED)


async def replay(
    url: str,
    trace: Sequence[Request],
    *,
    model: str,
    seed: int,
    cut_after_last_s: float = 15,
    on_event: Callable[[Result], None] | None = None,
) -> list[Result]:
    """Send `trace` as streamed chats to `url` (`http://host:port`) and check every byte that comes back.

    The texts differ with `seed`. All that is open is cut off `cut_after_last_s` after the last arrival.
    `on_event` is called when a request was sent, has its first token, and has ended.
    """
    if not trace:
        return []
    cut_off_s = trace[-1].arrival_s + cut_after_last_s
    results = [Result(number, request, cut_off_s) for number, request in enumerate(trace)]
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=10)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        client = _Client(session, f"{url.rstrip('/')}/v1/chat/completions", model, seed, on_event)
        await client.run(results, cut_off_s)
    return results


class _Client:
    def __init__(
        self,
        session: aiohttp.ClientSession,
        url: str,
        model: str,
        seed: int,
        on_event: Callable[[Result], None] | None,
    ) -> None:
        self._session = session
        self._url = url
        self._model = model
        self._seed = seed
        self._notify = on_event or (lambda _: None)
        self._started_at = time.monotonic()

    async def run(self, results: Sequence[Result], cut_off_s: float) -> None:
        tasks = []
        try:
            for result in results:
                await asyncio.sleep(result.request.arrival_s - self._now())
                tasks.append(asyncio.create_task(self._send(result)))
            await asyncio.wait(tasks, timeout=cut_off_s - self._now())
        finally:
            for task in tasks:
                task.cancel()
            ends = await asyncio.gather(*tasks, return_exceptions=True)
        for end in ends:
            if isinstance(end, Exception):
                raise end

    async def _send(self, result: Result) -> None:
        user = f"{self._seed}-{result.number}"
        prompt = words.make_prompt(result.request.prompt_tokens, user)
        reader = _Reader(result, words.key_of(prompt, user), self._now, self._notify)
        body = {
            "model": self._model,
            "user": user,
            "stream": True,
            "max_tokens": result.request.output_tokens,
            "ignore_eos": True,
            "messages": [{"role": "user", "content": prompt}],
        }
        data = json.dumps(body).encode()
        result.sent_s = self._now()
        self._notify(result)
        try:
            headers = {"content-type": "application/json"}
            async with self._session.post(self._url, data=data, headers=headers) as response:
                result.status = response.status
                result.engine = response.headers.get("x-sim-engine")
                if response.status != 200:
                    text = await response.text(errors="replace")
                    self._end(result, Outcome.HTTP_ERROR, text)
                    return
                async for chunk in response.content.iter_any():
                    reader.feed(chunk)
            self._end(result, reader.outcome or Outcome.CUT, reader.detail)
        except asyncio.CancelledError:
            cut_off = Outcome.UNFINISHED if result.token_s else Outcome.NO_TOKEN
            self._end(result, reader.outcome or cut_off, reader.detail)
            raise
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            self._end(result, Outcome.UNREACHABLE, str(error))
        except aiohttp.ClientError as error:
            self._end(result, Outcome.CUT, repr(error))

    def _end(self, result: Result, outcome: Outcome, detail: str = "") -> None:
        result.outcome = outcome
        result.detail = detail[:_MAX_DETAIL]
        result.ended_s = self._now()
        self._notify(result)

    def _now(self) -> float:
        return time.monotonic() - self._started_at


class _Reader:
    """Checks one stream. It cuts the text out of an event: parsing would cost more than all the rest."""

    def __init__(self, result: Result, key: str, now: Callable[[], float], notify: Callable[[Result], None]) -> None:
        self.outcome: Outcome | None = None  # None until the stream's end mark, or until it is wrong
        self.detail = ""
        self._result = result
        self._key = key
        self._now = now
        self._notify = notify
        self._rest = b""

    def feed(self, data: bytes) -> None:
        *events, self._rest = (self._rest + data).split(b"\n\n")
        for event in events:
            if self.outcome is None and event.startswith(b"data: "):
                self._read(event[6:])

    def _read(self, data: bytes) -> None:
        position = len(self._result.token_s)
        begin = data.find(_CONTENT)
        if begin >= 0:
            begin += len(_CONTENT)
            text = data[begin:].partition(b'"')[0]
            if text != words.token(self._key, position).encode():
                self._stop(Outcome.WRONG_BYTES, f"{text!r} for {words.token(self._key, position)!r}")
                return
            self._result.token_s.append(self._now())
            if position == 0:
                self._notify(self._result)
        elif data.startswith(b'{"error"'):
            self._stop(Outcome.ERROR_EVENT, data.decode(errors="replace"))
        elif data == b"[DONE]":
            wanted = self._result.request.output_tokens
            if position == wanted:
                self._stop(Outcome.OK)
            else:
                self._stop(Outcome.WRONG_BYTES, f"{position} tokens of {wanted}")

    def _stop(self, outcome: Outcome, detail: str = "") -> None:
        self.outcome = outcome
        self.detail = detail


def summarise(results: Sequence[Result]) -> dict[str, Any]:
    """The figures of a replay, JSON-able. TTFT is over all requests, see `Result.ttft_s`."""
    ttft_ms = [1e3 * result.ttft_s for result in results]
    late_ms = [1e3 * result.lateness_s for result in results]
    tokens = sum(len(result.token_s) for result in results)
    seconds = max((result.ended_s or 0.0 for result in results), default=0.0)
    share = Counter(result.engine for result in results if result.engine is not None)
    errors = Counter(error_name(result.outcome, result.status) for result in results if not result.succeeded)
    return {
        "requests": len(results),
        "succeeded": sum(result.succeeded for result in results),
        "unfinished": sum(result.outcome is Outcome.UNFINISHED for result in results),
        "ttft_ms": spread_of(ttft_ms, "mean", "p50", "p90", "p99"),
        "output_tokens_per_s": tokens / seconds if seconds else 0.0,
        "share": dict(sorted(share.items())),
        "errors": dict(sorted(errors.items())),
        "lateness_ms": spread_of(late_ms, "p50", "p99", "max"),
    }


def error_name(outcome: Outcome | None, status: int | None) -> str:
    """What went wrong, as a report counts it."""
    return f"http {status}" if outcome is Outcome.HTTP_ERROR else str(outcome)


def spread_of(values: Sequence[float], *names: str) -> dict[str, float]:
    """Of `mean`, `p50`, `p90`, `p99` and `max` those that are named; empty for no values."""
    if not values:
        return {}
    ordered = sorted(values)
    figures = {"mean": fmean(ordered), "max": ordered[-1]}
    for percent in (50, 90, 99):
        figures[f"p{percent}"] = ordered[math.ceil(len(ordered) * percent / 100) - 1]
    return {name: figures[name] for name in names}
