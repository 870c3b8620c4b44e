"""What a store looks like to people in a browser: `txlog report`, and the live page of `serve`.

Both are made of the same sections and charts. A report is one self-contained HTML page: it has no
script, loads nothing and forbids loading by its own policy. The live page has no script or style in
itself and loads nothing from elsewhere; the server sends a section again when it has changed.

Contents:

    charts     columns, bars and lines as SVG, their axes and legends as HTML
    figures    what a report says: the overview, hanging transactions, messages by time
    live       the live page: its figures, what only it shows, its document, style and script
    report     the document of a report: head, figures on top, sections in order
    sections   how each figure is shown
    words      how values are written: counts, sizes, durations, instants, escaped text
"""
