"""Metrics and admin pages."""
