"""Decisions: the ops and rows that a request appends.

Each is a function (view, now) -> Decision. It checks the request against the state at one LSN and
returns the frame to append; it changes nothing itself.

Contents:

    consuming/      delivering, acknowledging, seeking, skipping
    draft           the frame that a decision builds
    sending/        messages, watermarks and adopted files
    topics/         topics, subscriptions, policies, trimming, upkeep of their files
    transactions/   beginning, ending, fencing and expiring transactions
"""
