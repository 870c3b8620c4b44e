"""The tests of txlog."""
