//! A chain in the kernel: the XDP programs that replace its worker, and their counters.

use crate::chain::Stage;
use crate::classes;
use crate::counters::{add_counts, outcome};
use crate::outcomes::Outcomes;
use crate::team::shared_by;
use crate::{Chain, ChainError};
use std::sync::Arc;
use taut_function::{Count, Shared, UpcallError, says_dropped};
use taut_port::{Direction, Pairs};
use taut_xdp::forward::{HeaderChange, KernelProgram};
use taut_xdp::functions::{KernelClassifier, KernelFunction, KernelFunctions, KernelStage};
use taut_xdp::upcall::UpcallPrograms;

/// The form of a chain in the kernel. Lists have one entry per port, for the frames that leave through that port.
#[derive(Debug)]
#[allow(
    clippy::large_enum_variant,
    reason = "one per forwarder, and it stays where it is made"
)]
pub enum InKernel {
    /// A chain whose functions only change addresses, or that has no functions.
    Headers(Vec<HeaderChange>),
    /// A chain with one function that has XDP programs of its own, and then functions that change addresses.
    Upcall(Upcall, Vec<HeaderChange>),
    /// A chain with functions that do more than change addresses, but pass no frames to a worker.
    Functions {
        /// The functions of the chain in their form for the kernel.
        functions: Box<KernelFunctions>,
        /// Names of the outcomes (such as causes of drops) that each function counts, by index of the function.
        outcomes: Vec<Vec<&'static str>>,
        /// Names of the counts of the classifier's classes; empty without a classifier.
        classes: Vec<&'static str>,
    },
}

/// XDP programs that forward or drop some frames, and pass all others to a worker with the same functions
/// ([`crate::UpcallWorker`]).
#[derive(Debug, Clone)]
pub struct Upcall {
    /// Name of the function that the XDP programs belong to.
    pub(crate) function: String,
    pub(crate) programs: Arc<dyn UpcallPrograms>,
    /// State that each function shares with its XDP programs, by index of the function in the chain.
    pub(crate) shared: Vec<Shared>,
}

impl InKernel {
    /// Returns the XDP program to attach to interfaces.
    pub fn program(&self) -> KernelProgram<'_> {
        match self {
            Self::Headers(changes) => KernelProgram::Headers(changes),
            Self::Upcall(upcall, changes) => KernelProgram::Upcall(&*upcall.programs, changes),
            Self::Functions { functions, .. } => KernelProgram::Functions(functions),
        }
    }

    /// Takes over the shared state of unchanged functions from the XDP programs `before`, which `self` replaces. `kept`
    /// has for each function of `self` its index in `before`, or None for a new function. Call this before the first
    /// program is loaded.
    pub(crate) fn keep(&mut self, before: &Self, kept: &[Option<usize>]) {
        if let (Self::Functions { functions, .. }, Self::Functions { functions: old, .. }) =
            (self, before)
        {
            functions.keep(old, kept);
        }
    }

    /// Returns the XDP programs that pass frames to a worker, which has to run in addition; None if all programs work
    /// without a worker.
    pub fn upcall(&self) -> Option<&Upcall> {
        match self {
            Self::Upcall(upcall, _) => Some(upcall),
            _ => None,
        }
    }

    /// Returns the numbers of packets by outcome (the name of a count) of all functions, in the order of the chain. The
    /// result is empty if the XDP programs pass frames to a worker, which then counts outcomes.
    pub fn outcomes(&self) -> Outcomes {
        let Self::Functions {
            functions,
            outcomes,
            classes,
        } = self
        else {
            return Outcomes::new();
        };
        let numbered = outcomes.iter().enumerate();
        let of_functions = numbered
            .flat_map(|(number, names)| names.iter().copied().zip(functions.outcomes(number)));
        let of_classes = classes.iter().copied().zip(functions.classes());
        of_functions.chain(of_classes).collect()
    }

    /// Returns the numbers of packets by function and outcome, with names for display. `stages` are the stages of the
    /// functions.
    pub(crate) fn counts(&self, stages: &[Stage]) -> Vec<Count> {
        let Self::Functions {
            functions,
            outcomes,
            classes,
        } = self
        else {
            return Vec::new();
        };
        let mut counts = Vec::new();
        for (number, (stage, names)) in stages.iter().zip(outcomes).enumerate() {
            let counted = names.iter().zip(functions.outcomes(number));
            let each = counted.map(|(name, n)| outcome(&stage.name, name, says_dropped(name), n));
            add_counts(&mut counts, each);
        }
        let of_classes = classes.iter().zip(functions.classes());
        counts.extend(of_classes.map(|(name, frames)| classes::count(name, frames)));
        counts
    }
}

impl Chain {
    /// Returns the XDP programs that replace the chain's worker in the kernel.
    ///
    /// # Errors
    /// Fails if a function or its settings cannot run in the kernel, if the functions cannot run there together, or if
    /// the machine lacks a requirement.
    pub fn in_kernel(&self) -> Result<InKernel, ChainError> {
        let upcall = self.upcall()?;
        let classifier = self.kernel_classifier(upcall.as_ref())?;
        let ports = 0..self.ports.len();
        let directions = ports.map(|port| self.kernel_stages(port));
        let directions = directions.collect::<Result<Vec<_>, _>>()?;
        let changes: Option<Vec<_>> = directions
            .iter()
            .map(|stages| stages.iter().try_fold(HeaderChange::NONE, then))
            .collect();
        match (upcall, changes) {
            (None, Some(changes)) if classifier.is_none() => Ok(InKernel::Headers(changes)),
            (Some(upcall), Some(changes))
                if !upcall.programs.sends()
                    || changes.iter().all(|it| *it == HeaderChange::NONE) =>
            {
                Ok(InKernel::Upcall(upcall, changes))
            }
            (Some(upcall), _) => {
                let others = match upcall.programs.sends() {
                    true => "forward",
                    false => "forward, mac-rewrite and mac-swap",
                };
                Err(ChainError::Function {
                    function: upcall.function,
                    reason: format!(
                        "in the kernel it can be combined with {others} only: leave the others out, or run the \
                        chain in user space"
                    ),
                })
            }
            (None, _) => Ok(InKernel::Functions {
                functions: Box::new(KernelFunctions::new(directions, classifier)?),
                outcomes: self.names_of_outcomes()?,
                classes: match &self.classification {
                    Some(it) => classes::names(&it.chains),
                    None => Vec::new(),
                },
            }),
        }
    }

    /// Returns the classifier of the chain in its form for the kernel; None if the chain has none.
    fn kernel_classifier(
        &self,
        upcall: Option<&Upcall>,
    ) -> Result<Option<KernelClassifier>, ChainError> {
        let Some(classification) = &self.classification else {
            return Ok(None);
        };
        if let Some(upcall) = upcall {
            return Err(ChainError::Function {
                function: upcall.function.clone(),
                reason: "in the kernel no [[classifier]] selects its packets: give it ports of its own, or run the \
                         chain in user space"
                    .to_string(),
            });
        }
        let classifier = classification.in_kernel(&self.functions, self.ports.len())?;
        Ok(Some(classifier))
    }

    /// Returns the functions that change or drop frames that leave through a port, in the order in which the frames
    /// pass.
    fn kernel_stages(&self, port: usize) -> Result<Vec<KernelStage>, ChainError> {
        let mut stages: Vec<_> = self.functions.iter().enumerate().collect();
        let from = Pairs::of(self.ports.len()).partner(port);
        if Direction::from_port(from) == Direction::Back {
            stages.reverse();
        }
        let stage = |(number, stage): (usize, &Stage)| {
            let function = stage
                .catalog
                .in_kernel(&stage.name, stage.settings.clone(), port);
            function
                .map(|function| KernelStage { number, function })
                .map_err(|e| wrong(stage, e.to_string()))
        };
        let stages: Result<Vec<_>, _> = stages.into_iter().map(stage).collect();
        let nothing = KernelFunction::Headers(HeaderChange::NONE);
        stages.map(|stages| {
            stages
                .into_iter()
                .filter(|it| it.function != nothing)
                .collect()
        })
    }

    fn names_of_outcomes(&self) -> Result<Vec<Vec<&'static str>>, ChainError> {
        let names = |stage: &Stage| {
            let built = stage.catalog.build(&stage.name, stage.settings.clone());
            let outcomes = built.map_err(|e| wrong(stage, e.to_string()))?.outcomes();
            Ok(outcomes.into_iter().map(|(name, _)| name).collect())
        };
        self.functions.iter().map(names).collect()
    }

    /// Makes the XDP programs that pass frames to a worker; None if no function of the chain has such programs.
    fn upcall(&self) -> Result<Option<Upcall>, ChainError> {
        let mut found = None;
        let shared = shared_by(&self.functions, &self.names_of_ports());
        for (stage, own) in self.functions.iter().zip(&shared) {
            let Some(upcall) = stage.catalog.upcall(&stage.name) else {
                continue;
            };
            if found.is_some() {
                return Err(wrong(
                    stage,
                    "at most once per chain in the kernel".to_string(),
                ));
            }
            let made = (upcall.make)(stage.settings.clone(), self.ports.len(), own);
            let programs = made.map_err(|e| match e {
                UpcallError::Settings(e) => wrong(stage, e.to_string()),
                UpcallError::System(e) => e.into(),
            })?;
            found = Some((stage.name.clone(), programs));
        }
        Ok(found.map(|(function, programs)| Upcall {
            function,
            programs,
            shared,
        }))
    }
}

/// Returns a change of addresses with the effect of `sum` followed by that of the function `stage`. None if that
/// function does more than change addresses.
fn then(sum: HeaderChange, stage: &KernelStage) -> Option<HeaderChange> {
    match stage.function {
        KernelFunction::Headers(change) => Some(sum.then(change)),
        _ => None,
    }
}

fn wrong(stage: &Stage, reason: String) -> ChainError {
    ChainError::Function {
        function: stage.name.clone(),
        reason,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::Place;
    use taut_functions::FUNCTIONS;
    use taut_xdp::forward::Address;

    fn chain(functions: &str) -> Chain {
        let text = format!("place = \"kernel\"\nports = [\"null:\", \"null:\"]\n{functions}");
        Chain::parse(&text, "x.toml", FUNCTIONS).unwrap()
    }

    #[test]
    fn kernel_chains_change_mac_addresses_depending_on_the_egress_port() {
        let chain = chain(
            "[[function]]\nname = \"mac-swap\"\n\
             [[function]]\nname = \"mac-rewrite\"\nsource = [\"02:00:00:00:00:01\"]\n",
        );
        assert_eq!(chain.place, Place::Kernel);
        let InKernel::Headers(changes) = chain.in_kernel().unwrap() else {
            panic!("addresses only");
        };
        assert_eq!(changes[1], HeaderChange::SWAP);
        assert_eq!(
            changes[0],
            HeaderChange {
                // In the reverse direction, frames pass the last function first: rewrite, then swap.
                destination: Address::Fixed([2, 0, 0, 0, 0, 1]),
                ..HeaderChange::SWAP
            }
        );
    }

    #[test]
    fn the_reverse_direction_reverses_functions_and_preserves_their_numbers() {
        let chain = chain(
            "[[function]]\nname = \"forward\"\n[[function]]\nname = \"ats\"\n\
             [[function]]\nname = \"balance\"\nport = 1\nhops = [\"02:00:00:00:00:01\"]\n",
        );
        let back = chain.kernel_stages(0).unwrap();
        let stage = |number, function| KernelStage { number, function };
        assert_eq!(
            back,
            [
                stage(2, KernelFunction::Passes { outcome: 1 }),
                stage(1, KernelFunction::Ats { mtu: 1500 })
            ]
        );
        let numbers: Vec<_> = chain
            .kernel_stages(1)
            .unwrap()
            .iter()
            .map(|it| it.number)
            .collect();
        assert_eq!(numbers, [1, 2]);
    }

    /// The chains of [`classified`]: each writes an address of its own, so that a frame shows its class.
    const MARKS: [(&str, u8); 2] = [("voice", 0xa), ("bulk", 0xb)];

    /// Returns a chain with the rules by which tests/data/scapy_classes.py has classified its frames.
    fn classified() -> Chain {
        let mut functions = String::new();
        for (chain, mark) in MARKS {
            functions += &format!(
                "[[function]]\nchain = \"{chain}\"\nname = \"mac-rewrite\"\nsource = \"02:00:00:00:00:{mark:02x}\"\n"
            );
        }
        chain(&format!(
            "default = \"forward\"\nclassifier = [
            {{ chain = 'drop', ethertype = 'arp', port = 1 }},
            {{ chain = 'voice', port = 0, dscp = 'ef', protocol = 'udp', destination_port = '5000-5999' }},
            {{ chain = 'forward', vlan = 6, ethertype = 'ipv6' }},
            {{ chain = 'bulk', source = '10.1.0.0/16', symmetric = true }},
            {{ chain = 'drop', protocol = 'sctp' }},
            {{ chain = 'voice', source_port = 53 }},
            {{ chain = 'bulk', source = '2001:db8::/32' }},
            ]\n{functions}"
        ))
    }

    /// Returns scapy's frames with their ingress ports, whole, truncated at every length, and damaged.
    fn frames() -> Vec<(usize, Vec<u8>)> {
        let mut random = fastrand::Rng::with_seed(17);
        let mut frames = Vec::new();
        let text = include_str!("../../../tests/data/scapy_classes.txt");
        for (number, line) in text.lines().enumerate() {
            let [port, _, hex] = *line.split(' ').collect::<Vec<_>>() else {
                panic!("{line}")
            };
            let digits = hex.as_bytes().chunks(2).map(|it| std::str::from_utf8(it));
            let byte = |two: Result<&str, _>| u8::from_str_radix(two.unwrap(), 16).unwrap();
            let frame: Vec<u8> = digits.map(byte).collect();
            let port = port.parse().unwrap();
            if number % 4 == 0 {
                let cut = (14..frame.len()).map(|length| (port, frame[..length].to_vec()));
                frames.extend(cut);
            }
            for _ in 0..30 {
                let mut damaged = frame.clone();
                for _ in 0..random.usize(1..4) {
                    let at = random.usize(12..damaged.len().min(80));
                    damaged[at] ^= 1 << random.u8(0..8);
                }
                frames.push((port, damaged));
            }
            frames.push((port, frame));
        }
        frames
    }

    #[test]
    fn the_kernel_selects_the_same_chain_as_user_space() {
        let chain = classified();
        let made = match chain.in_kernel() {
            Ok(made) => made,
            Err(ChainError::Port(e)) if e.is_missing() => {
                println!("skipped: {e}");
                return;
            }
            Err(e) => panic!("{e}"),
        };
        let InKernel::Functions { functions, .. } = &made else {
            panic!("a classifier needs functions")
        };
        let programs = [0, 1].map(|to| functions.dry_run(to).unwrap());
        let classifier = &chain.classification.as_ref().unwrap().classifier;
        let pool = taut_port::PoolHandle::new(4, false).unwrap();
        let mut expected = [0; 4];
        for (port, frame) in frames() {
            let mut batch = taut_port::Batch::new();
            pool.fill(&mut batch, 1, frame.len() as u16);
            batch.packet_mut(0).bytes_mut().copy_from_slice(&frame);
            let mut classes = [0; taut_port::BATCH_CAPACITY];
            let class = classifier.classify(&mut batch, port, &mut classes).unwrap();
            expected[usize::from(class)] += 1;
            let passed = programs[1 - port].pass(&frame, 1).unwrap().frame;
            let found = match &passed {
                None => 3,
                Some(it) if *it == frame => 2,
                Some(it) => MARKS.iter().position(|(_, mark)| it[11] == *mark).unwrap(),
            };
            assert_eq!(found, usize::from(class), "from port {port}: {frame:02x?}");
        }
        assert!(expected.iter().all(|it| *it > 50), "{expected:?}");
        assert_eq!(functions.classes(), expected);
        let counted = made.outcomes();
        assert!(
            counted.contains(&("to chain voice", expected[0])),
            "{counted:?}"
        );
    }

    #[test]
    fn chains_that_no_rule_selects_are_refused_in_the_kernel() {
        let mut chain = classified();
        chain.functions[0].chain = Some("middle".to_string());
        let error = chain.in_kernel().unwrap_err().to_string();
        assert!(
            error.contains("none of those that the classifier"),
            "{error}"
        );
    }
}
