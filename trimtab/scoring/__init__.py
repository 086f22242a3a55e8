"""Scoring laws: one module each."""

from trimtab.scoring.health import Health, HealthPolicy
from trimtab.scoring.law import Law, Need, Score

ScoringPolicy = HealthPolicy


def default_scoring() -> ScoringPolicy:
    """The law of a pool that names none."""
    return HealthPolicy()


def make_law(policy: ScoringPolicy) -> Law:
    """The law that a pool's `scoring` names."""
    return Health(policy)


__all__ = ["Health", "HealthPolicy", "Law", "Need", "Score", "ScoringPolicy", "default_scoring", "make_law"]
