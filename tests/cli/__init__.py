"""Tests of the commands: arguments, output, help, what a terminal shows."""
