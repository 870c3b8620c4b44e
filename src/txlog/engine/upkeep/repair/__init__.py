"""Repair: the state that a damaged store can be brought back to.

New files come first, then one manifest or frame that names them, so after a crash anywhere the next
repair continues.

Contents:

    files   published files made again or salvaged; a journal that continues after a loss
    plan    the damage, the cost and order of the steps; taking them under their locks
"""
