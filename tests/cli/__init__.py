"""Tests of the commands: arguments, output, help, and use at a terminal."""
