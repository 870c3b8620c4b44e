"""Which consumer of a subscription gets which messages next, by the type of the subscription.

Contents:

    choice   the messages of one partition that a consumer gets next
"""
