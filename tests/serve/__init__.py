"""Tests of `txlog serve`."""
