"""What the attempts and probes of an endpoint say to its health, and to the strategy."""

from dataclasses import dataclass

from trimtab.endpoint.attempt import AttemptOutcome
from trimtab.endpoint.failure_signals import FailureSignal, Suspected
from trimtab.endpoint.snapshot import EndpointId, TokenSample
from trimtab.observation.kinds import Probed


@dataclass(frozen=True, slots=True)
class OutcomeSeen:
    """What one attempt said of its endpoint. An attempt may be judged again when its verdict comes late."""

    endpoint: EndpointId
    at: float
    started_at: float
    judgement: AttemptOutcome
    retry_after_s: float | None = None
    why: str = ""
    generated: bool = False  # it took the model, or, of a failure, its answer had begun; a hung engine has others
    failure_signal: FailureSignal | None = None  # what it shows beyond being a failure
    others_answer: bool = False  # other endpoints gave output to such requests lately


@dataclass(frozen=True, slots=True)
class TokenSeen:
    """An attempt that was sent at `started_at` showed its first token, or a further one after a suspicion."""

    endpoint: EndpointId
    at: float
    started_at: float
    further: bool = False


@dataclass(frozen=True, slots=True)
class ProbeSeen:
    """What a probe found at an endpoint."""

    endpoint: EndpointId
    probed: Probed


Evidence = OutcomeSeen | TokenSeen | Suspected | ProbeSeen | TokenSample
