"""Scoring strategies: one module each."""

from trimtab.scoring.blend import Blend, BlendPolicy, BlendTerm, Reading
from trimtab.scoring.contract import Need, Score, Strategy
from trimtab.scoring.decode_p99 import DecodeP99, DecodeP99Policy
from trimtab.scoring.fused import Fused, FusedPolicy
from trimtab.scoring.health import Health, HealthPolicy
from trimtab.scoring.joint import Joint, JointPolicy
from trimtab.scoring.linear import Linear, LinearPolicy
from trimtab.scoring.middleware import Middleware, MiddlewarePolicy
from trimtab.scoring.predicted_ttft import PredictedTtft, PredictedTtftPolicy
from trimtab.scoring.reciprocal import Reciprocal, ReciprocalPolicy
from trimtab.scoring.throughput import Throughput, ThroughputPolicy
from trimtab.scoring.wdrm import Wdrm, WdrmPolicy

ScoringPolicy = (
    PredictedTtftPolicy
    | HealthPolicy
    | ReciprocalPolicy
    | LinearPolicy
    | FusedPolicy
    | JointPolicy
    | MiddlewarePolicy
    | DecodeP99Policy
    | WdrmPolicy
    | ThroughputPolicy
    | BlendPolicy
)


def default_scoring() -> ScoringPolicy:
    """The strategy of a pool that names none."""
    return PredictedTtftPolicy()


def make_strategy(policy: ScoringPolicy) -> Strategy:
    """The strategy that a pool's `scoring` names."""
    match policy:
        case HealthPolicy():
            return Health(policy)
        case PredictedTtftPolicy():
            return PredictedTtft(policy)
        case ReciprocalPolicy():
            return Reciprocal(policy)
        case LinearPolicy():
            return Linear(policy)
        case FusedPolicy():
            return Fused(policy)
        case JointPolicy():
            return Joint(policy)
        case MiddlewarePolicy():
            return Middleware(policy)
        case DecodeP99Policy():
            return DecodeP99(policy)
        case WdrmPolicy():
            return Wdrm(policy)
        case ThroughputPolicy():
            return Throughput(policy)
        case BlendPolicy():
            return Blend(policy)


__all__ = [
    "Blend",
    "BlendPolicy",
    "BlendTerm",
    "DecodeP99",
    "DecodeP99Policy",
    "Fused",
    "FusedPolicy",
    "Health",
    "HealthPolicy",
    "Joint",
    "JointPolicy",
    "Linear",
    "LinearPolicy",
    "Middleware",
    "MiddlewarePolicy",
    "Need",
    "PredictedTtft",
    "PredictedTtftPolicy",
    "Reading",
    "Reciprocal",
    "ReciprocalPolicy",
    "Score",
    "ScoringPolicy",
    "Strategy",
    "Throughput",
    "ThroughputPolicy",
    "Wdrm",
    "WdrmPolicy",
    "default_scoring",
    "make_strategy",
]
