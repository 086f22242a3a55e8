"""Replays of traces: what a command wants of them, their tables and plots."""
