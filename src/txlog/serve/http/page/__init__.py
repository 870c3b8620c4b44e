"""The live page at `/`: what the server does for a store that is looked at in a browser.

What the page shows comes as one stream of events (`txlog.page` draws it).

Contents:

    browser     SQL of the page: read-only, bounded in rows, bytes and time
    live        Live: looks at the store for all who watch; the routes of the page
    statement   the process in which one SELECT runs
"""
