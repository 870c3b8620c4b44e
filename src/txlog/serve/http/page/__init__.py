"""The live page at `/`: it shows a store and its server at work, in a browser.

The server sends the page's content as one stream of events. `txlog.page` draws it.

Contents:

    actions     publish, seek, redeliver, abort, for a page whose server allows it
    browser     SQL of the page: read-only, limited in rows, bytes and time
    fragments   the views of a topic, a subscription, a message, a transaction, of clients
    live        LivePage: reads the store for all viewers; the routes of the page
    statement   the child process that runs one SELECT after another
"""
