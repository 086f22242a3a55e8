"""What was seen of attempts, endpoints and engines. The only way data enters a scorer.

All times are Unix seconds on the clock of the machine that runs Envoy and the ext_proc workers (they share it: the
services listen on loopback or a unix socket). `pool` is the pool's name, which is also Envoy's cluster name;
`address` is `ip:port` exactly as Envoy reports it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar


class Verdict(StrEnum):
    """Why an attempt was refused or failed, judged from the answer alone."""

    SATURATED = "saturated"  # the engine says it is full
    QUOTA = "quota"  # the caller is over a limit of his own: no fault of the endpoint
    UNAVAILABLE = "unavailable"  # dead, sleeping, or failing
    DRAINING = "draining"  # going away in good order
    UNKNOWN = "unknown"  # the evidence does not decide


class ProbeResult(StrEnum):
    """What a probe found."""

    TOKEN = "token"  # the endpoint generates
    SILENT = "silent"  # no token in time, or no connection
    WRONG = "wrong"  # an answer of no use to clients: an error, another model, an end without a token
    UNDECIDED = "undecided"  # it says nothing of the engine: that is full, or the probe itself was not accepted


class Output(StrEnum):
    """Whether an answer carries what a model made."""

    OUTPUT = "output"
    NONE = "none"  # an error, a page, an end mark alone, a body that is cut: nothing that a client asked for
    UNKNOWN = "unknown"  # it is of a format that is not known here


class Outcome(StrEnum):
    """How an attempt ended, as Envoy's access log tells it."""

    COMPLETE = "complete"  # the whole answer was read (whatever its status)
    ABORTED = "aborted"  # the client left, or Envoy cut it: not the endpoint's fault
    RESET = "reset"  # the endpoint broke the connection, before or during the answer
    UNREACHABLE = "unreachable"  # no connection was made: there is no start for such an attempt


@dataclass(frozen=True, slots=True)
class AttemptStarted:
    """Envoy has a connection and begins to send one try of a request to one endpoint."""

    at: float
    pool: str
    address: str
    request_id: str
    prompt_bytes: int | None  # content-length of the request; None if chunked
    streamed: bool | None  # the request asked for a stream; None if Envoy could not tell
    path: str = ""  # of the request, without its query
    caller: str = ""  # the IP address that sent the request, as Envoy knows it


@dataclass(frozen=True, slots=True)
class FirstToken:
    """The first chunk that carries generated content was seen in a streamed answer."""

    at: float
    pool: str
    address: str
    request_id: str


@dataclass(frozen=True, slots=True)
class Rejected:
    """An error was read and judged: by status, headers and body, or as an error event in a 200 stream."""

    at: float
    pool: str
    address: str
    request_id: str
    status: int  # the status code on the wire; 200 for an error event inside a stream
    verdict: Verdict
    retry_after_s: float | None
    in_stream: bool = False
    reason: str = ""  # the name of the rule that decided


@dataclass(frozen=True, slots=True)
class AttemptEnded:
    """Envoy is done with an attempt. `started_at` names the same attempt as `AttemptStarted.at`."""

    at: float
    pool: str
    address: str
    request_id: str
    started_at: float
    status: int  # 0 if no response headers came
    outcome: Outcome
    streamed: bool  # the answer was an event stream
    first_byte_s: float | None  # from the attempt's start to the first body byte (a ping counts as one)
    prompt_bytes: int | None = None
    body_bytes: int = 0  # received from the endpoint
    content_type: str = ""  # the answer's media type in lower case, without parameters; empty: it names none
    path: str = ""  # as in the start, and likewise the next
    caller: str = ""


@dataclass(frozen=True, slots=True)
class AnswerRead:
    """What was read of an answer with status 200: of a unary one, and of a stream that ended without a token."""

    at: float
    pool: str
    address: str
    request_id: str
    output: Output
    reason: str = ""  # of NONE and UNKNOWN: what was found instead, in a few words
    output_tokens: int | None = None  # by the engine's own count


@dataclass(frozen=True, slots=True)
class StreamRead:
    """What was read of a streamed answer since its first token, or since the last StreamRead of it.

    A share of the streams is read whole. One that goes on is reported every few seconds, and each at its end.
    """

    at: float
    pool: str
    address: str
    request_id: str
    gaps_s: tuple[float, ...]  # from each chunk that carried generated content to the next; 0 if they came together
    finished: bool  # it ended as its protocol says ([DONE], message_stop, a finish_reason)
    verdict: Verdict | None  # of an error event after the first token
    truncated: bool = False  # it ended cleanly, and not as its protocol says


@dataclass(frozen=True, slots=True)
class LoadReported:
    """One LRS report of one Envoy about one pool: what is in flight to each address. Those left out are idle."""

    address: ClassVar[str] = ""  # it is about the whole pool
    at: float
    pool: str
    node: str  # the reporting Envoy
    in_flight: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class ClusterChanged:
    """Envoys are given another cluster for the pool. What is in flight runs on, but their reports begin at 0."""

    address: ClassVar[str] = ""
    at: float
    pool: str


@dataclass(frozen=True, slots=True)
class WorkerMissed:
    """An ext_proc worker is, or was until now, away or stopped: tokens go unseen, or are read long after they came."""

    address: ClassVar[str] = ""
    at: float
    pool: str


@dataclass(frozen=True, slots=True)
class Histogram:
    """How many values were up to each bound since the engine's start, as Prometheus counts."""

    bounds: tuple[float, ...]  # rising; the last is infinity
    counts: tuple[float, ...]  # cumulative, one for each bound
    total: float  # the sum of the values


@dataclass(frozen=True, slots=True)
class Adapters:
    """The LoRA adapters of an engine."""

    running: tuple[str, ...]  # in the batch, by name
    waiting: tuple[str, ...]  # of queued requests
    slots: int | None  # adapters that fit into one batch


@dataclass(frozen=True, slots=True)
class Signals:
    """Readings of an engine. None is UNKNOWN: missing, stale, NaN or out of range; it is never 0.

    A counter counts since the engine's start.
    """

    waiting: float | None = None  # requests in the engine's queue
    running: float | None = None  # sequences being decoded
    kv_usage: float | None = None  # 0..1
    generated_tokens: float | None = None  # a counter
    preemptions: float | None = None  # a counter
    process_start: float | None = None  # Unix seconds; a change means a new incarnation
    prompt_tokens: float | None = None  # a counter
    prefix_queries: float | None = None  # a counter: tokens or blocks of prompts that were looked up in the cache
    prefix_hits: float | None = None  # a counter: those of them that were there
    prefix_hit_rate: float | None = None  # 0..1, of engines that count it themselves
    ttft: Histogram | None = None  # seconds
    inter_token: Histogram | None = None  # seconds from one token to the next
    max_model_len: float | None = None  # tokens that prompt and answer may have together
    adapters: Adapters | None = None


SCRAPE = "scrape"


@dataclass(frozen=True, slots=True)
class SignalsRead:
    """One reading of an engine by one source. A failed reading is `Signals()` with `error` set."""

    at: float
    pool: str
    address: str
    signals: Signals
    error: str = ""
    source: str = SCRAPE  # sources do not replace each other's readings
    origins: Mapping[str, str] = field(default_factory=dict, hash=False)  # signal -> the metric that it was read from
    unknown: Mapping[str, str] = field(default_factory=dict, hash=False)  # signal -> why it is not known


@dataclass(frozen=True, slots=True)
class PrometheusSample:
    """What a Prometheus server said of one signal of one endpoint. None is UNKNOWN."""

    at: float
    pool: str
    address: str
    signal: str  # of `Signals` or `Rates`, or a custom one
    value: float | None
    sampled_at: float = 0.0  # of the oldest of the newest samples behind the value, Unix seconds
    error: str = ""  # why there is no value
    answered: bool = True  # False: the server gave no answer, and what it said before is not taken back


@dataclass(frozen=True, slots=True)
class Probed:
    """An endpoint was asked for one token, beside all traffic."""

    at: float  # when it was decided
    pool: str
    address: str
    started_at: float
    result: ProbeResult
    ttft_s: float | None = None  # where there was a token
    reason: str = ""  # where there was none


Observation = (
    AttemptStarted
    | FirstToken
    | Rejected
    | AttemptEnded
    | AnswerRead
    | StreamRead
    | SignalsRead
    | PrometheusSample
    | Probed
    | LoadReported
    | ClusterChanged
    | WorkerMissed
)
