//! What a number means: latency histograms, jitter, sequence accounting, quantiles with confidence intervals, rate searches. No I/O.
