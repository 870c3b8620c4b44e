"""Scenarios: they measure txlog and its peers in turns, or kill its processes and count.

`python -m bench` lists them; `python -m bench SCENARIO` runs one.
"""
