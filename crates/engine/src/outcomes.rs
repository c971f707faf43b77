//! The outcomes of packets in functions, summed by cause.

/// Counts of packets by cause.
pub type Outcomes = Vec<(&'static str, u64)>;

/// Adds each count to the sum of the same cause.
pub(crate) fn add_outcomes(
    sums: &mut Outcomes,
    outcomes: impl IntoIterator<Item = (&'static str, u64)>,
) {
    for (cause, count) in outcomes {
        match sums.iter_mut().find(|(known, _)| *known == cause) {
            Some((_, sum)) => *sum += count,
            None => sums.push((cause, count)),
        }
    }
}
