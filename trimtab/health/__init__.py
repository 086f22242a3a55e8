"""Whether an endpoint may take work: breaker, cool-down, probes and half-open probes."""
