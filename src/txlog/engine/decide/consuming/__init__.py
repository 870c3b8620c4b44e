"""Decisions about the messages of a subscription.

Who is handed which, what is acknowledged, and where the subscription stands.

Contents:

    acknowledge       one by one or up to a position, plain or in a transaction
    dead_letters      moving messages to the dead-letter topic or the retry topic
    lease             handing messages to a consumer, and taking them back
    promotion         delivering delayed messages early, or cancelling them
    seek              moving a subscription, forward or back
    skip              acknowledging what would come next, without naming it
    watermark_offer   which watermark a consumer may be handed, and the frame that keeps it
"""
