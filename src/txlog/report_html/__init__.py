"""A report on a store for people: one self-contained HTML page.

The page has no script, loads nothing and forbids loading by its own policy.

Contents:

    charts     columns, bars and lines as SVG, their axes and legends as HTML
    figures    what a report says: the overview, hanging transactions, messages by time
    page       the document: head, figures on top, sections in order
    sections   how each figure is shown
    words      how values are written: counts, sizes, durations, instants, escaped text
"""
