"""What the attempts and probes of an endpoint say to its health, and to the strategy."""

from dataclasses import dataclass

from trimtab.endpoint.attempt import Judgement
from trimtab.endpoint.failure_signals import Sign, Suspected
from trimtab.endpoint.snapshot import EndpointId, TokenSample
from trimtab.observation.kinds import Probed


@dataclass(frozen=True, slots=True)
class Judged:
    """What one attempt said of its endpoint. An attempt may be judged again when its verdict comes late."""

    endpoint: EndpointId
    at: float
    started_at: float
    judgement: Judgement
    retry_after_s: float | None = None
    why: str = ""
    generated: bool = False  # it took the model, or, of a failure, its answer had begun; a hung engine has others
    sign: Sign | None = None  # what it is a sign of beyond being a failure
    others_answer: bool = False  # other endpoints gave output to such requests lately


@dataclass(frozen=True, slots=True)
class Spoke:
    """An attempt that was sent at `started_at` showed its first token, or a further one after a suspicion."""

    endpoint: EndpointId
    at: float
    started_at: float
    further: bool = False


@dataclass(frozen=True, slots=True)
class ProbeHeard:
    """What a probe found at an endpoint."""

    endpoint: EndpointId
    probed: Probed


Evidence = Judged | Spoke | Suspected | ProbeHeard | TokenSample
