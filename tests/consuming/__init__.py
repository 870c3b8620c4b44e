"""Tests of consumers: leases, acknowledgements, dead letters."""
