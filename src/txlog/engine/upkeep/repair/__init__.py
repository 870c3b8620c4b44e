"""Repair: plans the steps that restore a damaged store, and runs them.

Each step first makes new files, then one manifest or frame that names them. So after a crash
anywhere the next repair continues.

Contents:

    files   published files made again or salvaged; a journal that continues after a loss
    plan    the damage, the steps and their losses; running the steps under their locks
"""
