"""Simulated engines, request traces, and a client that replays them."""
