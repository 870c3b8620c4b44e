"""Parts that all HTTP endpoints share.

Contents:

    answers     JSON bodies, answers and errors, a message as headers and body
    bounds      limits on connections, time and memory, and the allowed host names
    context     the state that all handlers share, the gate, slow calls, rates of counters
    declared    the declaration of an endpoint, and the OpenAPI document made from it
"""
