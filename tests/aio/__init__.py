"""Tests of the asynchronous client: its calls, its waits, and the state after a cancellation."""
