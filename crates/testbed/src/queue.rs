//! The queue: computes when each waiting experiment can start. Experiments on the same nodes start in the order of
//! their submission. A later experiment may start earlier in a gap, if no earlier experiment has to wait longer because
//! of it (conservative backfilling: Mu'alem and Feitelson, IEEE TPDS 2001).

use crate::calendar::{Calendar, Span};
use crate::time::Seconds;
use std::collections::BTreeSet;

/// An experiment that waits for its nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Waiting {
    /// Number of the experiment.
    pub id: u64,
    /// Names of the nodes that the experiment needs.
    pub nodes: BTreeSet<String>,
    /// Maximum duration of the experiment, s.
    pub longest: Seconds,
    /// Number of the user's own reservation in which the experiment runs; `None` if it runs when its nodes are not
    /// reserved.
    pub reservation: Option<u64>,
}

/// Returns for each waiting experiment, in the order of submission, the latest span of time in which it runs if no
/// further reservations are made. The entry is `None` if the reservation in which the experiment is to run has no time
/// left.
///
/// An experiment starts at the begin of its planned span. If running experiments end early, the spans only become
/// earlier.
pub fn plan(now: Seconds, waiting: &[Waiting], calendar: &Calendar) -> Vec<Option<Span>> {
    let mut planned: Vec<Option<Span>> = Vec::with_capacity(waiting.len());
    for (number, experiment) in waiting.iter().enumerate() {
        let earlier = waiting[..number].iter().zip(&planned);
        let earlier = earlier.filter_map(|(it, span)| Some((&it.nodes, (*span)?)));
        let running = calendar.running.iter().map(|it| (&it.nodes, it.span));
        // A reservation blocks its nodes for all experiments except its own, which run only within the reservation.
        let own = experiment.reservation.map(|id| calendar.reservation(id));
        let window = match own {
            None => Span {
                from: now,
                until: Seconds::MAX,
            },
            Some(None) => {
                planned.push(None);
                continue;
            }
            Some(Some(it)) => Span {
                from: it.span.from.max(now),
                until: it.span.until,
            },
        };
        let reserved = calendar.reservations.iter().filter(|_| own.is_none());
        let reserved = reserved.map(|it| (&it.nodes, it.span));
        let held = earlier.chain(running).chain(reserved);
        let held = held.filter(|(nodes, _)| !experiment.nodes.is_disjoint(nodes));
        let mut held: Vec<Span> = held.map(|(_, span)| span).collect();
        held.sort_by_key(|span| span.from);
        planned.push(first_gap(window, experiment.longest.max(1), &held));
    }
    planned
}

/// Returns the first span in `window` that overlaps none of the spans in `held`, which are sorted by their begin. The
/// span has the length `longest`, or ends at the end of the window, if that is earlier.
fn first_gap(window: Span, longest: Seconds, held: &[Span]) -> Option<Span> {
    let mut gap = Span {
        from: window.from,
        until: window.from.saturating_add(longest).min(window.until),
    };
    for span in held {
        if span.from >= gap.until {
            break;
        }
        if span.meets(gap) {
            gap.from = span.until;
            gap.until = gap.from.saturating_add(longest).min(window.until);
        }
    }
    (gap.from < gap.until).then_some(gap)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::calendar::{Occupied, Reservation};
    use proptest::prelude::*;

    const NOW: Seconds = 100;

    fn set(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|it| (*it).to_owned()).collect()
    }

    fn waits(id: u64, names: &[&str], longest: Seconds) -> Waiting {
        Waiting {
            id,
            nodes: set(names),
            longest,
            reservation: None,
        }
    }

    fn reserved(id: u64, names: &[&str], from: Seconds, until: Seconds) -> Reservation {
        Reservation {
            id,
            user: "alice".to_owned(),
            nodes: set(names),
            span: Span { from, until },
        }
    }

    fn starts(waiting: &[Waiting], calendar: &Calendar) -> Vec<Option<Seconds>> {
        let planned = plan(NOW, waiting, calendar);
        planned.iter().map(|it| it.map(|span| span.from)).collect()
    }

    #[test]
    fn experiments_on_the_same_nodes_start_in_order_of_submission() {
        let waiting = [
            waits(1, &["a"], 50),
            waits(2, &["a", "b"], 10),
            waits(3, &["b"], 70),
        ];
        let free = Calendar::default();
        assert_eq!(starts(&waiting, &free), [Some(100), Some(150), Some(160)]);
    }

    #[test]
    fn a_short_experiment_starts_in_a_gap_before_earlier_experiments() {
        let waiting = [
            waits(1, &["a"], 50),
            waits(2, &["a", "b"], 10),
            waits(3, &["b"], 50),
        ];
        let free = Calendar::default();
        assert_eq!(starts(&waiting, &free), [Some(100), Some(150), Some(100)]);
    }

    #[test]
    fn experiments_start_only_where_reservations_leave_enough_time() {
        let calendar = Calendar {
            reservations: vec![reserved(7, &["a"], 130, 200)],
            running: Vec::new(),
        };
        let waiting = [waits(1, &["a"], 31), waits(2, &["a"], 30)];
        assert_eq!(starts(&waiting, &calendar), [Some(200), Some(100)]);
    }

    #[test]
    fn an_experiment_in_a_reservation_runs_only_within_it() {
        let calendar = Calendar {
            reservations: vec![reserved(7, &["a", "b"], 130, 200)],
            running: vec![Occupied {
                experiment: 9,
                user: "alice".to_owned(),
                nodes: set(&["a"]),
                span: Span {
                    from: 130,
                    until: 150,
                },
                reservation: Some(7),
            }],
        };
        let within = |id, names: &[&str], longest, reservation| Waiting {
            reservation: Some(reservation),
            ..waits(id, names, longest)
        };
        let waiting = [
            waits(1, &["a"], 40),
            within(2, &["a"], 10, 7),
            within(3, &["b"], 1000, 7),
            within(4, &["b"], 10, 7),
            within(5, &["a"], 10, 8),
        ];
        let planned = plan(NOW, &waiting, &calendar);
        let span = |from, until| Some(Span { from, until });
        let expected = [span(200, 240), span(150, 160), span(130, 200), None, None];
        assert_eq!(planned, expected);
    }

    fn cases() -> impl Strategy<Value = (Vec<Waiting>, Calendar)> {
        const NAMES: [&str; 3] = ["a", "b", "c"];
        let nodes = || {
            prop::collection::btree_set(prop::sample::select(&NAMES[..]), 1..3).prop_map(|it| {
                it.into_iter()
                    .map(str::to_owned)
                    .collect::<BTreeSet<String>>()
            })
        };
        let waiting = prop::collection::vec((nodes(), 1..40_u64), 0..12);
        let reservations = prop::collection::vec((nodes(), 80..200_u64, 1..50_u64), 0..8);
        (waiting, reservations).prop_map(|(waiting, reservations)| {
            let waiting = (1..).zip(waiting).map(|(id, (nodes, longest))| Waiting {
                id,
                nodes,
                longest,
                reservation: None,
            });
            let mut calendar = Calendar::default();
            for (id, (nodes, from, long)) in (1..).zip(reservations) {
                let span = Span {
                    from,
                    until: from + long,
                };
                if calendar.conflict(&nodes, span, None).is_none() {
                    let user = "bob".to_owned();
                    calendar.reservations.push(Reservation {
                        id,
                        user,
                        nodes,
                        span,
                    });
                }
            }
            (waiting.collect(), calendar)
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn no_node_has_two_users_and_nobody_starves((waiting, calendar) in cases()) {
            let planned = plan(NOW, &waiting, &calendar);
            for (number, (one, span)) in waiting.iter().zip(&planned).enumerate() {
                // Every experiment gets a span, and the earliest possible one: at every earlier start, one of its nodes
                // is in use.
                let span = span.unwrap();
                prop_assert_eq!(span.until - span.from, one.longest);
                prop_assert_eq!(calendar.conflict(&one.nodes, span, None), None);
                let free = |from: Seconds| {
                    let wanted = Span { from, until: from + one.longest };
                    let earlier = waiting[..number].iter().zip(&planned);
                    calendar.conflict(&one.nodes, wanted, None).is_none()
                        && earlier.into_iter().all(|(it, held)| {
                            it.nodes.is_disjoint(&one.nodes) || !held.unwrap().meets(wanted)
                        })
                };
                prop_assert!(free(span.from));
                prop_assert!((NOW..span.from).all(|from| !free(from)), "{} {:?}", number, planned);
            }
        }

        #[test]
        fn later_submissions_do_not_delay_earlier_ones((waiting, calendar) in cases()) {
            let planned = plan(NOW, &waiting, &calendar);
            for count in 0..waiting.len() {
                prop_assert_eq!(&plan(NOW, &waiting[..count], &calendar)[..], &planned[..count]);
            }
        }
    }
}
