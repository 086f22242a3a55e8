"""What is known of one attempt."""

from dataclasses import dataclass
from enum import Enum
from math import inf

from trimtab.observation.kinds import AnswerRead, AttemptEnded, Output, Rejected


class AttemptOutcome(Enum):
    """What one attempt says of its endpoint."""

    SUCCESS = "success"
    FAILURE = "failure"
    DOUBTFUL = "doubtful"  # a 429 that may be the caller's fault or the engine's
    REFUSED = "refused"  # the engine is full
    LEAVING = "leaving"  # the engine is going away
    NO_OUTPUT = "no-output"  # an answer that carries nothing of a model; the caller's doing where all endpoints have it
    UNKNOWN = "unknown"  # an answer that nobody could read, or of a format that is not known
    NEUTRAL = "neutral"  # it says nothing of the endpoint: a caller's quota, a client that left


@dataclass(slots=True, eq=False)
class Attempt:
    """One try of a request on one endpoint, from the first that was heard of it until it is forgotten."""

    request_id: str
    started_at: float
    prompt_bytes: int | None = None
    streamed: bool | None = None  # as asked for
    path: str = ""
    caller: str = ""
    seen_to_start: bool = False  # False: only its end was seen, so the load that it met is unknown
    outstanding_prompt_bytes: int = 0  # of the endpoint when it was sent, itself included
    in_flight: int = 0  # likewise
    leased: bool = False
    waiting: bool = False  # for a token, as far as it is known
    is_prefilled: bool = False  # by an estimate: its prompt is outstanding no more
    witness: bool = False  # its token would be seen, so its waiting shows silence
    token_at: float | None = None
    read_until: float = -inf  # when what was last read of its stream after that was seen
    answer: AnswerRead | None = None  # what was read of it, if that was not a first token
    rejected: Rejected | None = None
    ended: AttemptEnded | None = None
    judgement: AttemptOutcome | None = None
    judged_at: float = 0.0
    served: bool = False  # the engine has taken in its prompt
    is_compared: bool = False  # with what other endpoints answered
    is_settled: bool = False  # it is judged and ended, and what follows from that was learned

    @property
    def has_output(self) -> bool:
        """Whether model output was seen in its answer."""
        return self.token_at is not None or (self.answer is not None and self.answer.output is Output.OUTPUT)

    @property
    def asks_for_output(self) -> bool:
        """Whether it asks for what only a model can make: it has a prompt, or could not be read."""
        if self.streamed is not False or self.prompt_bytes:
            return True
        return self.ended is not None and bool(self.ended.prompt_bytes)
