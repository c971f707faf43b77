//! The classes of a worker's packets, if a classifier selects one of several chains for each packet: the packets by
//! class, the functions of each chain, and the counters.

use crate::chain::class_of;
use crate::outcomes::Outcomes;
use crate::{Classification, Stage};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use taut_function::classifier::Classifier;
use taut_function::names::lasting;
use taut_function::{Count, CountKind, Counted, says_dropped};
use taut_port::{BATCH_CAPACITY, Batch};

/// The name under which the counters of the classes are published.
const FUNCTION: &str = "classifier";

/// The class of a function that belongs to no chain of the classifier.
const NO_CLASS: usize = usize::MAX;

/// The classifier of a worker, and its state.
pub(crate) struct Classes {
    classifier: Arc<Classifier>,
    chains: Vec<String>,
    /// The packets of a batch by class; each entry is the batch of one class.
    pub(crate) parts: Vec<Batch>,
    /// The class whose packets each function processes, in the order of the worker's functions.
    of_function: Vec<usize>,
    counts: Arc<ClassCounts>,
}

/// The number of packets of each class. Only the worker writes.
#[derive(Debug)]
struct ClassCounts {
    /// The name of the count of each class, by index of the class.
    names: Vec<&'static str>,
    packets: Vec<AtomicU64>,
}

/// Returns the name of the count of each class: of the chains, of packets without a chain, and of dropped packets.
pub(crate) fn names(chains: &[String]) -> Vec<&'static str> {
    let chains = chains.iter();
    let chains = chains.map(|chain| lasting(&format!("to chain {chain}")));
    chains
        .chain(["forwarded without a chain", "dropped by the classifier"])
        .collect()
}

/// Returns a count of a class for display, with the name from [`names`].
pub(crate) fn count(name: &str, count: u64) -> Count {
    Count {
        function: FUNCTION.to_string(),
        kind: CountKind::of_outcome(says_dropped(name)),
        name: name.to_string(),
        about: String::new(),
        count,
    }
}

impl Classes {
    pub(crate) fn new(classification: &Classification, stages: &[Stage]) -> Self {
        let chains = classification.chains.clone();
        let names = names(&chains);
        let mut classes = Self {
            classifier: Arc::clone(&classification.classifier),
            chains,
            parts: names.iter().map(|_| Batch::new()).collect(),
            of_function: Vec::new(),
            counts: Arc::new(ClassCounts {
                packets: names.iter().map(|_| AtomicU64::new(0)).collect(),
                names,
            }),
        };
        classes.suit(stages);
        classes
    }

    /// Updates the classes of the functions after a change; `stages` are those from which the functions were made.
    pub(crate) fn suit(&mut self, stages: &[Stage]) {
        let classes = stages.iter().map(|it| class_of(it, &self.chains));
        self.of_function = classes.map(|it| it.unwrap_or(NO_CLASS)).collect();
    }

    /// Returns the first of the stages whose chain the classifier does not have; none if it has the chains of all.
    pub(crate) fn unknown_chain<'a>(&self, stages: &'a [Stage]) -> Option<&'a Stage> {
        let mut stages = stages.iter();
        stages.find(|stage| class_of(stage, &self.chains).is_none())
    }

    /// Returns true if the function at `place` belongs to the chain of class `class`.
    #[inline]
    pub(crate) fn has(&self, class: usize, place: usize) -> bool {
        self.of_function.get(place) == Some(&class)
    }

    /// Returns true if the functions at the positions `one` and `other` belong to the same chain.
    pub(crate) fn are_together(&self, one: usize, other: usize) -> bool {
        self.of_function.get(one) == self.of_function.get(other)
    }

    /// Returns the class of packets that the classifier drops.
    #[inline]
    pub(crate) fn dropped(&self) -> usize {
        self.chains.len() + 1
    }

    /// Classifies a batch that has arrived at port `port`. If all packets have the same class, they stay in the batch,
    /// and their class is returned. Otherwise the packets move to the empty batches `parts`, one for each class.
    #[inline]
    pub(crate) fn divide(
        &mut self,
        batch: &mut Batch,
        parts: &mut [Batch],
        port: usize,
    ) -> Option<usize> {
        if batch.is_empty() {
            return None;
        }
        let mut classes = [0; BATCH_CAPACITY];
        if let Some(class) = self.classifier.classify(batch, port, &mut classes) {
            let class = usize::from(class);
            self.count_packets(class, batch.len());
            return Some(class);
        }
        for part in &mut *parts {
            part.set_limit(BATCH_CAPACITY);
        }
        let lost = batch.deal(&classes, parts);
        debug_assert_eq!(lost, 0, "each class has space for a whole batch");
        for (class, part) in parts.iter().enumerate() {
            self.count_packets(class, part.len());
        }
        None
    }

    #[inline]
    fn count_packets(&self, class: usize, packets: usize) {
        if let Some(counter) = self.counts.packets.get(class) {
            // The worker is the only writer, so no update is lost; readers need no order.
            let now = counter.load(Ordering::Relaxed) + packets as u64;
            counter.store(now, Ordering::Relaxed);
        }
    }

    /// Returns the packet counters of the classes, which any thread can read.
    pub(crate) fn counted(&self) -> Arc<dyn Counted> {
        Arc::clone(&self.counts) as Arc<dyn Counted>
    }

    /// Returns the number of packets of each class.
    pub(crate) fn outcomes(&self) -> Outcomes {
        self.counts.each().collect()
    }
}

impl ClassCounts {
    fn each(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let packets = self.packets.iter().map(|it| it.load(Ordering::Relaxed));
        self.names.iter().copied().zip(packets)
    }
}

impl Counted for ClassCounts {
    fn counts(&self) -> Vec<Count> {
        self.each()
            .map(|(name, packets)| count(name, packets))
            .collect()
    }
}
