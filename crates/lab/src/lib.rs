//! Results folders, figures, reports and comparisons.
