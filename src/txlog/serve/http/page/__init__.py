"""The live page at `/`: a store looked at in a browser, drawn with the charts of `txlog report`.

The page has no script or style in itself and loads nothing from elsewhere. What it shows comes as
one stream of events; a section is sent when it has changed.

Contents:

    browser     SQL of the page: read-only, bounded in rows, bytes and time
    live        Live: looks at the store while somebody watches, and tells all who do
    routes      the page, its style and script, the stream, the query
    sections    what the page shows, as HTML
    statement   the process in which one SELECT runs
"""
