"""Tests of the asynchronous client: its calls, its waits, and what a cancellation leaves."""
