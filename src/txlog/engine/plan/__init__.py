"""Decisions: functions from state and request to ops and rows; they check, and never mutate."""
