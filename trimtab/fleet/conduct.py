"""How one incarnation of an endpoint behaves, by its attempts: first tokens, errors, refusals, silence."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from trimtab.fleet.attempt import Attempt
from trimtab.fleet.averages import Ewma, FadingShare
from trimtab.fleet.coverage import Coverage
from trimtab.fleet.held import Event, Held
from trimtab.fleet.judgement import (
    Judgement,
    as_errors,
    explain,
    is_success,
    judge_end,
    judge_status,
    judge_verdict,
)
from trimtab.fleet.ledger import Ledger
from trimtab.fleet.observation import AttemptEnded, AttemptStarted, FirstToken, Outcome, Rejected, StreamRead
from trimtab.fleet.pace import Pace
from trimtab.fleet.silence import Silence
from trimtab.fleet.snapshot import EndpointId, TokenSample

# Long enough to outlast a burst, short enough that an endpoint is not held to what it was a minute ago.
ERROR_HALF_LIFE_S = 10.0
# So many attempts without an error are imagined before the first: one failure of one attempt is a share of
# 0.2, and an endpoint that gets no more traffic is forgiven as its errors fade.
ERROR_PRIOR = 4.0
# What was learned from samples is unknown again when none has come for so long, over a restart too.
MEMORY_S = 600.0
# A verdict, or a first token, that comes after the end of its attempt comes within this time.
VERDICT_WAIT_S = 1.0


@dataclass(frozen=True, slots=True)
class Judged:
    """What one attempt said of its endpoint. An attempt may be judged again when its verdict comes late."""

    endpoint: EndpointId
    at: float
    started_at: float
    judgement: Judgement
    retry_after_s: float | None = None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Spoke:
    """An attempt that was sent at `started_at` showed its first token."""

    endpoint: EndpointId
    at: float
    started_at: float


Evidence = Judged | Spoke | TokenSample


class Conduct:
    """What the attempts show. `now` is when something arrived; each observation has its own time.

    Attempts that started before `born_at` are another incarnation's, and so is what is heard of the requests
    in `departed` unless they are tried anew. What shaping and the law must know is told to `tell`.
    """

    def __init__(
        self,
        endpoint: EndpointId,
        *,
        born_at: float,
        ttft_alpha: float,
        coverage: Coverage,
        pace: Pace,
        departed: frozenset[str],
        tell: Callable[[Evidence], None],
    ) -> None:
        self._endpoint = endpoint
        self._born_at = born_at
        self._departed = departed
        self._coverage = coverage
        self._pace = pace
        self._tell = tell
        self._held = Held()
        self._joinable: set[str] = set()  # requests of which something is held and an attempt is now known
        self._unsettled: deque[tuple[float, Attempt]] = deque()  # ended, and something may still come
        self._silence = Silence()
        self.ledger = Ledger(born_at)
        self.ttft = Ewma(ttft_alpha, MEMORY_S)
        self.errors = FadingShare(ERROR_HALF_LIFE_S)
        self.failures_in_row = 0

    def started(self, started: AttemptStarted) -> None:
        if self.ledger.start(started, missed=self._coverage.missed(started.at)) is None:
            return
        if started.prompt_bytes is not None:
            self._pace.sent(started.at, started.prompt_bytes)
        if self._held.of(started.request_id):
            # Not at once: the next start in the same batch may be the better match.
            self._joinable.add(started.request_id)

    def doubt(self) -> None:
        """Tokens may have gone unseen: no stream that runs already shows silence by waiting."""
        self.ledger.doubt(self._coverage.missed_until)

    def heard(self, now: float, event: Event) -> None:
        """Take in what was heard of an attempt, and hold it while neither a start nor an end is known."""
        if event.at < self._born_at or self._join(now, event) or event in self._held:
            return
        if event.request_id in self._departed:
            return
        self._held.hold(now, event)
        if isinstance(event, Rejected):
            # A refusal does not wait for the access log. Its attempt is not counted again once it is known.
            self._count(min(now, event.at), event.at, _verdict(event), event.retry_after_s, explain(event))

    def ended(self, now: float, ended: AttemptEnded) -> None:
        attempt = self.ledger.end(now, ended)
        if attempt is None:
            return
        for event in self._held.of(ended.request_id):
            self._join(now, event)
        if attempt.judgement is None:
            judgement = judge_end(ended, spoke=attempt.token_at is not None)
            if judgement is not None:
                self._judge(attempt, min(now, ended.at), judgement, why=explain(ended))
        if attempt.token_at is None and attempt.rejected is None and ended.outcome is Outcome.ABORTED:
            self._gave_up(now, attempt, ended)
        answered = _is_streamed_answer(attempt, ended)
        if attempt.judgement is None or (answered and attempt.token_at is None):
            self._unsettled.append((now, attempt))
        elif answered and ended.outcome is Outcome.COMPLETE:
            self._coverage.add(min(now, ended.at), seen=True)

    def join_held(self, now: float) -> None:
        """After a batch: join what was held to the attempts that the batch brought."""
        for request_id in sorted(self._joinable):
            for event in self._held.of(request_id):
                self._join(now, event)
        self._joinable.clear()

    def settle(self, now: float) -> None:
        """Judge what was waited for in vain, and forget what is old."""
        while self._unsettled and self._unsettled[0][0] <= now - VERDICT_WAIT_S:
            self._close(now, self._unsettled.popleft()[1])
        self._held.tidy(now)
        self.ledger.tidy(now)

    def wait(self, now: float) -> float:
        """How long [s] a stream has waited for its first token by now, as far as that is believed."""
        return self.ledger.wait(now, self._coverage.silent_rank(now))

    def silence(self, now: float) -> float:
        """The longest wait [s] for a first token that is seen, or remembered of clients that gave up."""
        return max(self.wait(now), self._silence.wait(now))

    def known_ttft(self, now: float) -> float | None:
        """The mean of samples [s], raised to what is seen to take longer now. None: nothing was seen."""
        mean = self.ttft.value(now)
        longest = self.silence(now)
        if mean is None:
            return longest or None
        return max(mean, longest)

    def _join(self, now: float, event: Event) -> bool:
        """Give an event to its attempt: the newest of its request that had started and that it fits."""
        attempt = self.ledger.newest(event.request_id, event.at, lambda candidate: _fits(event, candidate))
        if attempt is None:
            return False
        was_held = event in self._held
        if was_held:
            self._held.drop(event)
        at = min(now, event.at)
        match event:
            case FirstToken() if attempt.token_at is None:
                self._speak(now, attempt, event.at)
            case StreamRead():
                if event.at > attempt.read_until:
                    attempt.read_until = event.at
                    self._pace.decoded(at, event.gaps_s)
                if event.verdict and attempt.judgement is not Judgement.FAILURE:
                    judgement = judge_verdict(event.verdict, 200, in_stream=True)
                    self._judge(attempt, at, judgement, why="an error event late in a stream")
            case Rejected() if attempt.rejected is None:
                attempt.rejected = event
                if was_held:  # and counted when it came
                    self._take_back(attempt)
                    attempt.judgement, attempt.judged_at = _verdict(event), at
                else:
                    self._judge(attempt, at, _verdict(event), event.retry_after_s, explain(event))
            case _:
                pass  # said before
        return True

    def _speak(self, now: float, attempt: Attempt, token_at: float) -> None:
        attempt.token_at = token_at
        self.ledger.spoke(attempt, all_watched=self._coverage.silent_rank(now) == 0)
        self._silence.spoke(attempt.ended.at if attempt.ended else token_at)
        self._tell(Spoke(self._endpoint, token_at, attempt.started_at))
        if self._coverage.missed(attempt.started_at):
            return
        ttft_s = max(0.0, token_at - attempt.started_at)
        self.ttft.add(token_at, ttft_s)
        self._pace.spoke(token_at, ttft_s)
        if attempt.seen_to_start and attempt.prompt_bytes is not None:
            self._tell(
                TokenSample(
                    endpoint=self._endpoint,
                    at=token_at,
                    ttft_s=ttft_s,
                    prompt_bytes=attempt.prompt_bytes,
                    outstanding_prompt_bytes=attempt.outstanding_prompt_bytes,
                    in_flight=attempt.in_flight,
                )
            )

    def _gave_up(self, now: float, attempt: Attempt, ended: AttemptEnded) -> None:
        """A client left before a token was seen: unless it may have been overlooked, the endpoint was silent."""
        overlooked = self._coverage.missed(attempt.started_at) or self._coverage.silent_rank(now) > 0
        if (attempt.streamed or ended.streamed) and not (overlooked and ended.first_byte_s is not None):
            self._silence.gave_up(min(now, ended.at), max(0.0, ended.at - attempt.started_at))

    def _close(self, now: float, attempt: Attempt) -> None:
        """Nothing more is awaited of an ended attempt: take it as it is."""
        ended = attempt.ended
        if ended is None:
            return
        at = min(now, ended.at)
        if attempt.judgement is None:
            self._judge(attempt, at, judge_status(ended.status), why=explain(ended))
        if not _is_streamed_answer(attempt, ended) or ended.first_byte_s is None:
            return
        if self._coverage.missed(attempt.started_at):
            return  # that it went unseen says nothing of those that come
        if ended.outcome is Outcome.COMPLETE:
            self._coverage.add(at, seen=attempt.token_at is not None)
            unwatched = True
        else:
            unwatched = ended.outcome is Outcome.ABORTED and self._coverage.silent_rank(at) > 0
        if attempt.token_at is None and unwatched:
            self._speak(now, attempt, attempt.started_at + ended.first_byte_s)

    def _judge(
        self,
        attempt: Attempt,
        at: float,
        judgement: Judgement,
        retry_after_s: float | None = None,
        why: str = "",
    ) -> None:
        self._take_back(attempt)
        attempt.judgement, attempt.judged_at = judgement, at
        self._count(at, attempt.started_at, judgement, retry_after_s, why)

    def _take_back(self, attempt: Attempt) -> None:
        if attempt.judgement is not None:
            errors, attempts = as_errors(attempt.judgement)
            self.errors.add(attempt.judged_at, -errors, -attempts)
        if attempt.judgement is Judgement.FAILURE:
            self.failures_in_row = max(0, self.failures_in_row - 1)

    def _count(self, at: float, started_at: float, judgement: Judgement, retry_after_s: float | None, why: str) -> None:
        self.errors.add(at, *as_errors(judgement))
        if judgement is Judgement.FAILURE:
            self.failures_in_row += 1
        elif judgement is Judgement.SUCCESS:
            self.failures_in_row = 0
        self._tell(Judged(self._endpoint, at, started_at, judgement, retry_after_s, why))


def _verdict(rejected: Rejected) -> Judgement:
    return judge_verdict(rejected.verdict, rejected.status, rejected.in_stream)


def _is_streamed_answer(attempt: Attempt, ended: AttemptEnded) -> bool:
    return ended.streamed and is_success(ended.status) and attempt.rejected is None


def _fits(event: Event, attempt: Attempt) -> bool:
    """Whether an event can belong to an attempt that started before it."""
    ended = attempt.ended
    if ended is not None and event.at > ended.at + VERDICT_WAIT_S:
        return False
    match event:
        case FirstToken():
            return (
                (attempt.token_at is None or attempt.token_at == event.at)
                and (attempt.rejected is None or attempt.rejected.at > event.at)
                and (ended is None or is_success(ended.status))
            )
        case Rejected(in_stream=True):
            # The gate makes the error out of it that it is, and Envoy logs that.
            status_fits = ended is None or ended.status > 0
            return status_fits and (attempt.rejected is None or attempt.rejected == event)
        case Rejected():
            status_fits = ended is None or ended.status == event.status
            return status_fits and (attempt.rejected is None or attempt.rejected == event)
        case StreamRead():
            return ended is None or is_success(ended.status)
