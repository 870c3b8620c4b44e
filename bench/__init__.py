"""Scenarios that measure txlog and its peers in turns, or kill its processes and check the store.

`python -m bench` lists them; `python -m bench SCENARIO` runs one.
"""
