"""Decisions: what a request changes, as ops and rows.

Each is a function (view, now) -> Decision. It checks the request against the state at one LSN and
says what to append; it changes nothing itself.

Contents:

    consuming/      delivering, acknowledging, seeking, skipping
    draft           the frame that a decision is putting together
    sending/        messages, watermarks and adopted files
    topics/         topics, subscriptions, policies, trimming, upkeep of their files
    transactions/   beginning, ending, fencing and expiring transactions
"""
