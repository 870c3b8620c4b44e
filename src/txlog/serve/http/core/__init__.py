"""What all endpoints of HTTP share.

Contents:

    answers     answers and errors as JSON, a message as headers and body, bodies of requests
    bounds      connections, time and memory of clients, and the names they ask for
    declared    what an endpoint is, and OpenAPI made from it
    gate        what all handlers share, and the gate that each request passes
    rates       how fast counters grow
    works       calls of the store that may take long, in threads of their own
"""
