"""Rows of the engine dashboard: one question, one file."""
