"""Endpoint states in tables for people."""

from rich.text import Text

_STYLE = {"up": "green", "slow-start": "yellow"}


def state_text(state: str) -> Text:
    """The state of an endpoint, in its colour."""
    return Text(state, style=_STYLE.get(state, "red"))
