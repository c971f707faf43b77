//! The calendar of reservations: which user has which nodes at which times. No two reservations share a node at any
//! time.

use crate::time::Seconds;
use std::collections::BTreeSet;
use std::fmt;

/// A span of time, which includes its begin and excludes its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// Begin of the span.
    pub from: Seconds,
    /// End of the span.
    pub until: Seconds,
}

impl Span {
    /// Returns true if the spans overlap.
    pub fn meets(self, other: Self) -> bool {
        self.from < other.until && other.from < self.until
    }

    /// Returns true if the span contains this time.
    pub fn contains(self, at: Seconds) -> bool {
        self.from <= at && at < self.until
    }
}

/// A reservation: the nodes that a user has during a span of time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reservation {
    /// Number of the reservation.
    pub id: u64,
    /// Name of the user who has reserved the nodes.
    pub user: String,
    /// Names of the reserved nodes.
    pub nodes: BTreeSet<String>,
    /// Time for which the nodes are reserved.
    pub span: Span,
}

/// The nodes of a running experiment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Occupied {
    /// Number of the experiment.
    pub experiment: u64,
    /// Name of the user who submitted the experiment.
    pub user: String,
    /// Names of the nodes that the experiment uses.
    pub nodes: BTreeSet<String>,
    /// Time from the start of the experiment to its latest possible end.
    pub span: Span,
    /// Number of the reservation in which the experiment runs; `None` if its nodes are not reserved.
    pub reservation: Option<u64>,
}

/// The reservation or experiment that has a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Holder {
    /// The reservation with this number.
    Reservation(u64),
    /// The experiment with this number, which is running.
    Experiment(u64),
}

/// A requested node that is already reserved or in use, and the user, reservation or experiment that has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conflict {
    /// Name of the node.
    pub node: String,
    /// Name of the user who has the node.
    pub user: String,
    /// The reservation or experiment that has the node.
    pub holder: Holder,
    /// Time for which the node is reserved or in use.
    pub span: Span,
}

impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let until = crate::time::text(self.span.until);
        let (node, user) = (&self.node, &self.user);
        match self.holder {
            Holder::Reservation(id) => {
                let from = crate::time::text(self.span.from);
                write!(
                    f,
                    "{user} has {node} from {from} until {until} (reservation {id})"
                )
            }
            Holder::Experiment(id) => write!(
                f,
                "experiment {id} of {user} runs on {node} until {until} at the latest"
            ),
        }
    }
}

/// All current and future reservations, and the experiments that are running.
#[derive(Debug, Clone, Default)]
pub struct Calendar {
    /// The reservations, in any order.
    pub reservations: Vec<Reservation>,
    /// The nodes of the running experiments, in any order.
    pub running: Vec<Occupied>,
}

impl Calendar {
    /// Returns the earliest reservation or experiment in this span that has one of the nodes; `None` if all nodes are
    /// free. The reservation `except`, and the experiments that run in it, do not count.
    pub fn conflict(
        &self,
        nodes: &BTreeSet<String>,
        span: Span,
        except: Option<u64>,
    ) -> Option<Conflict> {
        let reserved = self.reservations.iter();
        let reserved = reserved
            .filter(|it| Some(it.id) != except)
            .map(|it| (&it.nodes, &it.user, Holder::Reservation(it.id), it.span));
        let running = self.running.iter();
        let running = running
            .filter(|it| it.reservation.is_none() || it.reservation != except)
            .map(|it| {
                let holder = Holder::Experiment(it.experiment);
                (&it.nodes, &it.user, holder, it.span)
            });
        let held = reserved
            .chain(running)
            .filter(|(.., held)| held.meets(span));
        let met = held.filter_map(|(of, user, holder, span)| {
            let node = nodes.intersection(of).next()?;
            Some((node, user, holder, span))
        });
        let first = met.min_by_key(|(.., span)| (span.from, span.until))?;
        let (node, user, holder, span) = first;
        Some(Conflict {
            node: node.clone(),
            user: user.clone(),
            holder,
            span,
        })
    }

    /// Returns the reservation with the number `id`.
    pub fn reservation(&self, id: u64) -> Option<&Reservation> {
        self.reservations.iter().find(|it| it.id == id)
    }

    /// Returns the reservation by which a user has all the given nodes at the given time.
    pub fn reservation_of(
        &self,
        user: &str,
        nodes: &BTreeSet<String>,
        at: Seconds,
    ) -> Option<&Reservation> {
        self.reservations
            .iter()
            .find(|it| it.user == user && it.span.contains(at) && it.nodes.is_superset(nodes))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    const NODES: [&str; 4] = ["a", "b", "c", "d"];
    const USERS: [&str; 2] = ["alice", "bob"];
    /// Number of points in time in the brute-force model of the calendar.
    const TIMES: usize = 60;

    fn nodes(bits: u8) -> BTreeSet<String> {
        let chosen = NODES.iter().enumerate();
        chosen
            .filter(|(number, _)| bits & (1 << number) != 0)
            .map(|(_, name)| (*name).to_owned())
            .collect()
    }

    /// A change of the calendar by one of two users.
    #[derive(Debug, Clone)]
    enum Act {
        Reserve(usize, u8, u64, u64),
        Extend(usize, u64),
        Release(usize),
    }

    fn act() -> impl Strategy<Value = Act> {
        let times = TIMES as u64;
        prop_oneof![
            4 => (0..2_usize, 1..16_u8, 0..times - 1, 1..12_u64)
                .prop_map(move |(user, bits, from, long)| Act::Reserve(user, bits, from, (from + long).min(times))),
            2 => (any::<usize>(), 1..=times).prop_map(|(which, until)| Act::Extend(which, until)),
            1 => any::<usize>().prop_map(Act::Release),
        ]
    }

    /// The brute-force model of the calendar: for each node and each time, the number of the reservation that has the
    /// node.
    type Grid = [[Option<u64>; TIMES]; NODES.len()];

    fn taken(grid: &Grid, bits: u8, span: Span, except: Option<u64>) -> Option<u64> {
        let times = span.from as usize..(span.until as usize).max(span.from as usize);
        let mut held = times.flat_map(|time| {
            let of_node = move |node: usize| (bits & (1 << node) != 0).then(|| grid[node][time]);
            (0..NODES.len()).filter_map(of_node).flatten()
        });
        held.find(|id| Some(*id) != except)
    }

    fn fill(grid: &mut Grid, bits: u8, span: Span, with: Option<u64>) {
        for (node, times) in grid.iter_mut().enumerate() {
            if bits & (1 << node) != 0 {
                times[span.from as usize..span.until as usize].fill(with);
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn two_users_and_200_reservations_agree_with_brute_force(acts in prop::collection::vec(act(), 200)) {
            let mut calendar = Calendar::default();
            let mut grid: Grid = [[None; TIMES]; NODES.len()];
            let mut masks = Vec::new();
            for act in acts {
                match act {
                    Act::Reserve(user, bits, from, until) => {
                        let span = Span { from, until };
                        let found = calendar.conflict(&nodes(bits), span, None);
                        let expected = taken(&grid, bits, span, None);
                        prop_assert_eq!(found.is_some(), expected.is_some());
                        if let Some(conflict) = found {
                            let Holder::Reservation(id) = conflict.holder else { panic!() };
                            let named = calendar.reservation(id).unwrap();
                            prop_assert_eq!(&conflict.user, &named.user);
                            prop_assert!(named.nodes.contains(&conflict.node) && named.span.meets(span));
                            continue;
                        }
                        let id = masks.len() as u64;
                        masks.push(bits);
                        fill(&mut grid, bits, span, Some(id));
                        calendar.reservations.push(Reservation { id, user: USERS[user].to_owned(), nodes: nodes(bits), span });
                    }
                    Act::Extend(which, until) if !calendar.reservations.is_empty() => {
                        let at = which % calendar.reservations.len();
                        let Reservation { id, span, .. } = calendar.reservations[at].clone();
                        let (bits, wanted) = (masks[id as usize], Span { from: span.from, until });
                        if until <= span.from {
                            continue;
                        }
                        let found = calendar.conflict(&nodes(bits), wanted, Some(id));
                        prop_assert_eq!(found.is_some(), taken(&grid, bits, wanted, Some(id)).is_some());
                        if found.is_none() {
                            fill(&mut grid, bits, span, None);
                            fill(&mut grid, bits, wanted, Some(id));
                            calendar.reservations[at].span = wanted;
                        }
                    }
                    Act::Release(which) if !calendar.reservations.is_empty() => {
                        let at = which % calendar.reservations.len();
                        let gone = calendar.reservations.swap_remove(at);
                        fill(&mut grid, masks[gone.id as usize], gone.span, None);
                    }
                    Act::Extend(..) | Act::Release(_) => {}
                }
            }
            // At each time, each node has the same holder in the calendar as in the model.
            for (node, times) in grid.iter().enumerate() {
                for (time, holder) in times.iter().enumerate() {
                    let at = Span { from: time as u64, until: time as u64 + 1 };
                    let found = calendar.conflict(&nodes(1 << node), at, None).map(|it| it.holder);
                    prop_assert_eq!(found, holder.map(Holder::Reservation));
                }
            }
        }
    }

    #[test]
    fn a_conflict_names_the_first_holder_and_its_end() {
        let span = |from, until| Span { from, until };
        let calendar = Calendar {
            reservations: vec![
                Reservation {
                    id: 1,
                    user: "bob".to_owned(),
                    nodes: nodes(0b11),
                    span: span(7200, 10_800),
                },
                Reservation {
                    id: 2,
                    user: "carol".to_owned(),
                    nodes: nodes(0b1),
                    span: span(3600, 7200),
                },
            ],
            running: vec![Occupied {
                experiment: 5,
                user: "alice".to_owned(),
                nodes: nodes(0b100),
                span: span(0, 60),
                reservation: None,
            }],
        };
        let at = |bits, from, until| {
            let found = calendar.conflict(&nodes(bits), span(from, until), None);
            found.map(|it| it.to_string())
        };
        let carol =
            "carol has a from 1970-01-01T01:00:00Z until 1970-01-01T02:00:00Z (reservation 2)";
        assert_eq!(at(0b11, 0, 9000).as_deref(), Some(carol));
        let alice = "experiment 5 of alice runs on c until 1970-01-01T00:01:00Z at the latest";
        assert_eq!(at(0b100, 0, 1).as_deref(), Some(alice));
        assert_eq!(at(0b1, 0, 3600), None);
        assert_eq!(at(0b100, 60, 90), None);
    }
}
