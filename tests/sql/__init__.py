"""Tests of messages and lists as SQL reads them."""
