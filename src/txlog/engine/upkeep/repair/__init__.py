"""Repair: the state that a damaged store can be brought back to.

New files come first, then one manifest or frame that names them, so after a crash anywhere the next
repair continues.

Contents:

    apply     one group of a plan, under the locks it needs
    files     published files, from the journal, from older files, or salvaged
    journal   continuing without durable frames that cannot be read
    plan      the damage, the cost of each step, and the order of the steps
"""
