//! The worker loop: rx, functions, tx, flush policies, counters.
