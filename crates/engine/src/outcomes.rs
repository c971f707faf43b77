//! Sums of the counts of packets by outcome (the name of what happened to a packet) over several functions.

/// Numbers of packets by outcome: the name of what happened to the packets, such as a cause of a drop.
pub type Outcomes = Vec<(&'static str, u64)>;

/// Adds the numbers of packets of one list to the sums for the same outcomes, in another list.
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
