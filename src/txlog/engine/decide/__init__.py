"""Decisions: functions that check a request and return the frame that the store appends for it.

Each takes a view (the state at one LSN) and the request, and returns a Decision; it changes nothing
itself. Code outside the engine imports decisions from `engine/door`.

Contents:

    consuming/      leasing, acknowledging, moving to dead letters, seeking, skipping
    draft           the frame that a decision builds
    sending/        messages, watermarks and adopted files
    topics/         topics, subscriptions, policies, trimming, upkeep of their files
    transactions/   beginning, ending, fencing and expiring transactions
"""
