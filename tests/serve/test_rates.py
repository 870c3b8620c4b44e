"""Rates of counters between the samples of two requests."""

from __future__ import annotations

from txlog.serve.http.core.context import SAMPLE_AGE_MAX_MS, SAMPLE_GAP_MS, Rates


def test_a_rate_is_that_since_the_sample_before() -> None:
    rates = Rates()
    assert rates.of("messages", 10, 0) == 0.0, "the first sample has none"
    assert rates.of("messages", 30, 2 * SAMPLE_GAP_MS) == 10.0
    assert rates.of("messages", 5, 3 * SAMPLE_GAP_MS) == 0.0, "the counter was reset"


def test_counters_of_clients_that_left_are_dropped() -> None:
    """Kills: memory that grows with each reconnect, as a producer's name has its address."""
    rates = Rates()
    for turn in range(1000):
        rates.of("topic", turn, turn * SAMPLE_GAP_MS)
        rates.of(f"producer of 127.0.0.1:{turn}", 1, turn * SAMPLE_GAP_MS)
    assert len(rates) <= 2 + SAMPLE_AGE_MAX_MS // SAMPLE_GAP_MS
