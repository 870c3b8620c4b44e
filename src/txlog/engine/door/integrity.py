"""Damage: finding it, recording it, and repairing what can be repaired."""

from txlog.engine.plan.damage import damage_error, find_damage, quarantine_wall, wall
from txlog.engine.upkeep.checkpoint.quarantine import DIRECTORY, check_files, record_damage
from txlog.engine.upkeep.repair.plan import ROUNDS_MAX, RepairStep, make_plan, perform
from txlog.engine.upkeep.verify.findings import Findings, Problem, silent
from txlog.engine.upkeep.verify.verify import glance, verify
