"""Decisions for tests."""

from dataclasses import replace
from typing import Any

from trimtab.endpoint.snapshot import EndpointId, EndpointView
from trimtab.health.state import State
from trimtab.pool import EndpointDecision, PoolDecision


def endpoint(address: str, name: str, **changes: Any) -> EndpointDecision:
    """An idle endpoint that is up; `changes` name fields of the decision or of its view."""
    view = EndpointView(EndpointId(address), name, capacity=None)
    fields = EndpointView.__dataclass_fields__
    view = replace(view, **{key: value for key, value in changes.items() if key in fields})
    made = EndpointDecision(
        id=view.id,
        view=view,
        score=80,
        breakdown={},
        prediction_error=None,
        effective_score=80,
        share=0.5,
        weight=500,
        takes_work=True,
        state=State.UP,
        until=None,
        reason="up",
    )
    return replace(made, **{key: value for key, value in changes.items() if key not in fields})


def decision(pool: str, at: float, *names: str) -> PoolDecision:
    """A decision over idle endpoints 10.0.0.1:80, 10.0.0.2:80, ... with these names."""
    endpoints = tuple(endpoint(f"10.0.0.{i}:80", name) for i, name in enumerate(names, 1))
    return PoolDecision(pool, at, endpoints, changed=True)
