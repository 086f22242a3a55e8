"""Replay of traces in virtual time: simulated engines behind balancers, and the control loop as it runs live."""
