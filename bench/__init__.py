"""Owns the scenarios that measure txlog beside its peers, or kill its processes and count.

`python -m bench` lists them; `python -m bench SCENARIO` runs one.
"""
