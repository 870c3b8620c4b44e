"""Tests of transactions, their keys, states and time-outs."""
