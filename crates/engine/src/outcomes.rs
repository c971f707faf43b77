//! Sums of the outcomes of packets over several functions.

/// Numbers of packets, each with the name of the outcome that it counts.
pub type Outcomes = Vec<(&'static str, u64)>;

/// Adds each number of packets to the sum with the same outcome.
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
