//! Packet pool, `Batch`, trait `Port`, one folder per backend.
