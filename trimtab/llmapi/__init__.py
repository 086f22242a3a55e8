"""Pure readers of what engines answer: streams, errors, retry-after, and rejection rules."""
