"""What is known of one attempt."""

from dataclasses import dataclass
from math import inf

from trimtab.fleet.judgement import Judgement
from trimtab.fleet.observation import AttemptEnded, Rejected


@dataclass(slots=True, eq=False)
class Attempt:
    """One try of a request on one endpoint, from the first that was heard of it until it is forgotten."""

    request_id: str
    started_at: float
    prompt_bytes: int | None = None
    streamed: bool | None = None  # as asked for
    seen_to_start: bool = False  # False: only its end was seen, so the load that it met is unknown
    outstanding_prompt_bytes: int = 0  # of the endpoint when it was sent, itself included
    in_flight: int = 0  # likewise
    leased: bool = False
    waiting: bool = False  # for a token, as far as it is known
    witness: bool = False  # its token would be seen, so its waiting shows silence
    token_at: float | None = None
    read_until: float = -inf  # when what was last read of its stream after that was seen
    rejected: Rejected | None = None
    ended: AttemptEnded | None = None
    judgement: Judgement | None = None
    judged_at: float = 0.0
    served: bool = False  # the engine has taken in its prompt
