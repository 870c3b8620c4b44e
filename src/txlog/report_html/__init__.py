"""A report of a store for people: one page of HTML that needs nothing but itself.

The page has no script, loads nothing and forbids loading by its own policy.

Contents:

    charts     columns, bars and lines as SVG, their axes and legends as HTML
    figures    what a report says: the overview, what hangs, messages by time
    page       the document: head, figures on top, sections in order
    sections   what is shown of which figure
    words      how values are written: counts, sizes, durations, instants, safe text
"""
