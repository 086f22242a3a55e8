"""Continuous batching as vLLM does it, without a clock: the caller says what time it is.

An engine computes in steps. A step gives every decoding sequence one token and fills what is left of its
token budget with prompts (chunked prefill, oldest first). What arrives during a step waits for the next one.
Sequences hold KV blocks; when a decoding sequence needs one and none is free, the newest running sequence is
preempted: it loses its blocks, waits at the front of the queue and computes its whole context again later.

`EngineModel` serves an event-driven simulation (`next_event_at`) and a server in real time (`next_step_at`)
alike; `advance` yields the same events at the same times however finely it is called. A step in which nothing
begins or ends costs a constant, however many sequences decode: their tokens are counted, not touched.
"""

from collections import deque
from collections.abc import Callable
from enum import Enum, StrEnum
from heapq import heappop, heappush
from typing import Any, NamedTuple

from trimtab.sim.kinds import EngineKind


class State(Enum):
    """Where a sequence is in its life."""

    WAITING = "waiting"
    PREFILL = "prefill"
    DECODE = "decode"
    FINISHED = "finished"
    CANCELLED = "cancelled"


class Refusal(StrEnum):
    """Why a request was not taken in, in vLLM's words for its metric."""

    QUEUED_REQS = "max_num_queued_reqs"
    QUEUED_TOKENS = "max_num_queued_tokens"


class Sequence:
    """One request inside an engine. Callers read it, only the engine writes it."""

    __slots__ = (
        "_computed",
        "_context",
        "_due",
        "_number",
        "_tokens",
        "admitted_at",
        "arrived_at",
        "finished_at",
        "first_token_at",
        "output_tokens",
        "preemptions",
        "prompt_tokens",
        "state",
        "tag",
    )

    def __init__(self, number: int, now: float, prompt_tokens: int, output_tokens: int, tag: Any) -> None:
        self.prompt_tokens = prompt_tokens
        self.output_tokens = output_tokens  # that it will have when it finishes
        self.tag = tag  # the caller's own
        self.state = State.WAITING
        self.arrived_at = now
        self.admitted_at: float | None = None  # for the first time; all times are on the caller's clock
        self.first_token_at: float | None = None
        self.finished_at: float | None = None
        self.preemptions = 0
        self._number = number
        self._tokens = 0  # generated; while it decodes, less the engine's step count
        self._context = 0  # tokens to compute before it can decode
        self._computed = 0  # of these, done
        self._due = 0  # the step count at which it finishes


class Happening(Enum):
    """What an event says."""

    ADMITTED = "admitted"  # out of the queue, for the first time
    FIRST_TOKEN = "first token"
    FINISHED = "finished"  # it has all its tokens
    PREEMPTED = "preempted"  # its blocks are gone; silent until it has computed its context again
    RESUMED = "resumed"  # out of the queue again


class Event(NamedTuple):
    """Something happened to a sequence. Tokens after the first are no events: see `EngineModel.generated`."""

    at: float
    what: Happening
    sequence: Sequence


StepObserver = Callable[[float, int, int], None]
_Finish = tuple[int, int, Sequence]  # due step count, the sequence's number to break ties, sequence
_Chunk = tuple[Sequence, int]  # a sequence, and up to where this step computes its context


class EngineModel:
    """One engine. Not thread-safe. `now` is in seconds on any clock and must not go backwards (ValueError).

    `slow` stretches every step that begins after it was set. `on_step` is called at the end of each step with
    its time, the sequences that decoded in it, and the prompt tokens that were computed in it.
    """

    def __init__(self, kind: EngineKind, *, on_step: StepObserver | None = None) -> None:
        self.kind = kind
        self.slow = 1.0
        self.resumptions = 0
        self.generated_tokens = 0  # of all sequences
        self.prompt_tokens = 0  # of those that showed a first token, as vLLM counts
        self._on_step = on_step
        self._step0_s = kind.step0_ms / 1e3
        self._per_sequence_s = kind.per_sequence_ms / 1e3
        self._per_context_token_s = kind.per_context_token_ns / 1e9
        self._prefill_step_s = kind.prefill_step_ms / 1e3
        self._linear_s = 1 / kind.prefill_tokens_per_s
        self._quadratic_s = kind.prefill_quadratic_ns / 1e9
        self._now = float("-inf")
        self._numbers = 0
        self._events: list[Event] = []
        self._waiting: deque[Sequence] = deque()
        self._running: dict[Sequence, None] = {}  # in the order of admission
        self._prefilling: dict[Sequence, None] = {}  # of these, not decoding yet
        self._backlog = 0  # prompt tokens of requests without a first token
        self._free = kind.usable_blocks
        # Decoding sequences move together, so what one of them needs and when is known as a step count.
        self._steps = 0
        self._decoding = 0
        self._decode_context = 0  # tokens, of all decoding sequences
        self._finishes: list[_Finish] = []  # a heap; entries of sequences that left are stale
        self._growers = [0] * kind.block_size  # [step count % block size]: sequences that need a block then
        self._step_end: float | None = None
        self._chunks: list[_Chunk] = []

    @property
    def running(self) -> int:
        """Sequences that hold KV blocks."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Sequences in the queue."""
        return len(self._waiting)

    @property
    def kv_usage(self) -> float:
        """Share of the KV blocks that is in use, 0..1."""
        usable = self.kind.usable_blocks
        return (usable - self._free) / usable

    @property
    def prefill_backlog(self) -> int:
        """Prompt tokens of requests that have no first token yet."""
        return self._backlog

    def generated(self, sequence: Sequence) -> int:
        """Tokens that `sequence` has by the end of the last step."""
        return sequence._tokens + self._steps if sequence.state is State.DECODE else sequence._tokens

    def next_step_at(self) -> float | None:
        """When the current step ends and its tokens are there; None while the engine is idle."""
        return self._step_end

    def next_event_at(self) -> float | None:
        """No event comes before this time unless something is submitted or cancelled; None while idle."""
        if self._step_end is None or self._chunks or self._waiting:
            return self._step_end
        while self._finishes and self._is_stale(self._finishes[0]):
            heappop(self._finishes)
        # Each decoding sequence takes one block in any `block_size` steps.
        safe = self._free // self._decoding * self.kind.block_size if self._decoding else 0
        steps = min(self._finishes[0][0] - self._steps - 1, safe) if self._finishes else 0
        return self._step_end + steps * self._duration()

    def refusal(self) -> Refusal | None:
        """Why the engine would refuse a request now; None if it would take one."""
        kind = self.kind
        if kind.max_num_queued_reqs is not None and self.running + self.waiting >= kind.max_num_queued_reqs:
            return Refusal.QUEUED_REQS
        if kind.max_num_queued_tokens is not None and self._backlog >= kind.max_num_queued_tokens:
            return Refusal.QUEUED_TOKENS
        return None

    def submit(self, now: float, prompt_tokens: int, output_tokens: int, tag: Any = None) -> Sequence | Refusal:
        """Hand in a request, or be refused.

        Raises ValueError if it has no tokens or cannot fit into `max_model_len`.
        """
        self._run(now)
        return self.refusal() or self.enqueue(now, prompt_tokens, output_tokens, tag)

    def enqueue(self, now: float, prompt_tokens: int, output_tokens: int, tag: Any = None) -> Sequence:
        """Hand in a request that is not to be refused. At equal times the earlier call is served first.

        Raises ValueError as `submit` does.
        """
        if prompt_tokens < 1 or output_tokens < 1:
            raise ValueError("a request needs at least one prompt token and one output token")
        if prompt_tokens + output_tokens > self.kind.max_model_len:
            raise ValueError(f"{prompt_tokens} + {output_tokens} tokens exceed {self.kind.max_model_len}")
        self._run(now)
        self._numbers += 1
        sequence = Sequence(self._numbers, now, prompt_tokens, output_tokens, tag)
        self._backlog += prompt_tokens
        self._waiting.append(sequence)
        if self._step_end is None:
            self._begin_step(now)
        return sequence

    def cancel(self, now: float, sequence: Sequence) -> None:
        """Drop a sequence at once, wherever it is; the step under way takes its time all the same."""
        self._run(now)
        match sequence.state:
            case State.FINISHED | State.CANCELLED:
                return
            case State.WAITING:
                self._waiting.remove(sequence)
            case State.PREFILL | State.DECODE:
                self._leave(sequence, self._blocks(sequence.prompt_tokens + self.generated(sequence)))
        if sequence.first_token_at is None:
            self._backlog -= sequence.prompt_tokens
        sequence.state = State.CANCELLED

    def advance(self, now: float) -> list[Event]:
        """Compute all steps that end up to `now`; return what happened since the last call, in order."""
        self._run(now)
        events, self._events = self._events, []
        return events

    def _run(self, now: float) -> None:
        if now < self._now:
            raise ValueError(f"time went backwards: {now} after {self._now}")
        self._now = now
        while (end := self._step_end) is not None and end <= now:
            self._end_step(end)
            self._begin_step(end)

    def _begin_step(self, now: float) -> None:
        self._grow(now)
        budget = self.kind.max_num_batched_tokens - self._decoding
        self._chunks = []
        for sequence in self._prefilling:
            if budget == 0:
                break
            budget -= self._add_chunk(sequence, budget)
        while budget > 0 and self._waiting and self._has_room_for(self._waiting[0]):
            sequence = self._waiting.popleft()
            self._admit(now, sequence)
            budget -= self._add_chunk(sequence, budget)
        self._step_end = now + self._duration() if self._running else None

    def _duration(self) -> float:
        seconds = self._step0_s + self._per_sequence_s * self._decoding
        seconds += self._per_context_token_s * self._decode_context
        if self._chunks:
            seconds += self._prefill_step_s
        for sequence, end in self._chunks:
            start = sequence._computed
            seconds += self._linear_s * (end - start) + self._quadratic_s * (end * end - start * start)
        return self.slow * seconds

    def _has_room_for(self, sequence: Sequence) -> bool:
        return (
            len(self._running) < self.kind.max_num_seqs
            and self._blocks(sequence.prompt_tokens + sequence._tokens) <= self._free
        )

    def _grow(self, now: float) -> None:
        """Give each decoding sequence the block it needs for this step; the newest pay if there are too few.

        The last victim frees too little to be taken back in the same step, and it is first in the queue: so
        nobody is admitted in a step that preempts.
        """
        bucket = self._steps % self.kind.block_size
        while self._growers[bucket] > self._free:
            victim = next(reversed(self._running))
            tokens = self.generated(victim)
            # A decoding sequence does not have its block for this step yet; one in prefill has all it needs.
            held = victim.prompt_tokens + tokens - (victim.state is State.DECODE)
            self._leave(victim, self._blocks(held))
            victim.state = State.WAITING
            victim.preemptions += 1
            self._waiting.appendleft(victim)
            self._events.append(Event(now, Happening.PREEMPTED, victim))
        self._free -= self._growers[bucket]

    def _admit(self, now: float, sequence: Sequence) -> None:
        sequence._context = sequence.prompt_tokens + sequence._tokens
        sequence._computed = 0
        sequence.state = State.PREFILL
        self._free -= self._blocks(sequence._context)
        self._running[sequence] = None
        self._prefilling[sequence] = None
        if sequence.admitted_at is None:
            sequence.admitted_at = now
            self._events.append(Event(now, Happening.ADMITTED, sequence))
        else:
            self.resumptions += 1
            self._events.append(Event(now, Happening.RESUMED, sequence))

    def _add_chunk(self, sequence: Sequence, budget: int) -> int:
        end = min(sequence._context, sequence._computed + budget)
        self._chunks.append((sequence, end))
        return end - sequence._computed

    def _end_step(self, at: float) -> None:
        decoded = self._decoding
        prefilled = 0
        self._steps += 1
        self.generated_tokens += decoded
        self._decode_context += decoded
        while self._finishes and self._finishes[0][0] <= self._steps:
            entry = heappop(self._finishes)
            if not self._is_stale(entry):
                self._finish(at, entry[2])
        for sequence, end in self._chunks:
            if sequence.state is not State.PREFILL:
                continue
            prefilled += end - sequence._computed
            sequence._computed = end
            if end == sequence._context:
                self._token_after_prefill(at, sequence)
        if self._on_step is not None:
            self._on_step(at, decoded, prefilled)

    def _token_after_prefill(self, at: float, sequence: Sequence) -> None:
        del self._prefilling[sequence]
        sequence._tokens += 1
        self.generated_tokens += 1
        if sequence.first_token_at is None:
            sequence.first_token_at = at
            self._backlog -= sequence.prompt_tokens
            self.prompt_tokens += sequence.prompt_tokens
            self._events.append(Event(at, Happening.FIRST_TOKEN, sequence))
        remaining = sequence.output_tokens - sequence._tokens
        sequence._due = self._steps + remaining
        self._decode_context += sequence.prompt_tokens + sequence._tokens
        sequence._tokens -= self._steps
        sequence.state = State.DECODE
        self._decoding += 1
        self._growers[self._growth_bucket(sequence)] += 1
        if remaining:
            heappush(self._finishes, (sequence._due, sequence._number, sequence))
        else:
            self._finish(at, sequence)

    def _finish(self, at: float, sequence: Sequence) -> None:
        self._leave(sequence, self._blocks(sequence.prompt_tokens + sequence.output_tokens - 1))
        sequence.state = State.FINISHED
        sequence.finished_at = at
        self._events.append(Event(at, Happening.FINISHED, sequence))

    def _leave(self, sequence: Sequence, blocks: int) -> None:
        """Take a sequence and its blocks out of the running ones. The caller sets its next state."""
        if sequence.state is State.DECODE:
            self._growers[self._growth_bucket(sequence)] -= 1
            self._decoding -= 1
            sequence._tokens += self._steps
            self._decode_context -= sequence.prompt_tokens + sequence._tokens
        else:
            del self._prefilling[sequence]
        del self._running[sequence]
        self._free += blocks

    def _is_stale(self, entry: _Finish) -> bool:
        due, _, sequence = entry
        return sequence.state is not State.DECODE or sequence._due != due

    def _growth_bucket(self, sequence: Sequence) -> int:
        # A block is needed by a step that begins when prompt + generated - 1 is a multiple of the block size.
        return (1 - sequence.prompt_tokens - sequence._tokens) % self.kind.block_size

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self.kind.block_size)
