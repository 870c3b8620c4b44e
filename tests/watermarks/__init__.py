"""Tests of event-time watermarks."""
