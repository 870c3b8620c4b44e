"""Repair: what a damaged store can be made to be again.

New files come first, then one manifest or frame that names them, so a death anywhere leaves a store
that the next repair continues with.

Contents:

    apply     one group of a plan, under the locks it needs
    files     published files, from the journal, from older files, or salvaged
    journal   going on without frames that were durable and cannot be read
    plan      what is damaged, what each step costs, and the order of the steps
"""
