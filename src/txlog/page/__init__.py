"""The HTML pages about a store: `txlog report`, and the live page of `serve`.

Both use the same sections and charts. A report is one HTML file without a script: it loads nothing,
and its content security policy forbids loading. The live page has no inline script or style and
loads nothing from other servers; the server sends a section again when it has changed.

Door: figures, forms, live, report, views.

Contents:

    charts     columns, bars and lines as SVG, their axes and legends as HTML
    figures    the figures of a report: the overview, hanging transactions, messages by time
    forms      the actions of the live page: forms, plans, outcomes
    live       the live page: its figures, its own sections, its document, style and script
    report     the document of a report: head, figures on top, sections in order
    sections   one function per section
    views      the live page about a topic, a subscription, a message, a transaction, clients
    words      the text of values: counts, sizes, durations, instants, escaped text
"""
