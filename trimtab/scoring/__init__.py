"""Scoring laws: one module each."""

from trimtab.scoring.health import Health, HealthPolicy
from trimtab.scoring.law import Law, Need, Score
from trimtab.scoring.predicted_ttft import PredictedTtft, PredictedTtftPolicy

ScoringPolicy = HealthPolicy | PredictedTtftPolicy


def default_scoring() -> ScoringPolicy:
    """The law of a pool that names none."""
    return HealthPolicy()


def make_law(policy: ScoringPolicy) -> Law:
    """The law that a pool's `scoring` names."""
    match policy:
        case HealthPolicy():
            return Health(policy)
        case PredictedTtftPolicy():
            return PredictedTtft(policy)


__all__ = [
    "Health",
    "HealthPolicy",
    "Law",
    "Need",
    "PredictedTtft",
    "PredictedTtftPolicy",
    "Score",
    "ScoringPolicy",
    "default_scoring",
    "make_law",
]
