//! A chain in the kernel while it runs: its programs, and others that are put in their place.

use crate::outcomes::{Outcomes, add_outcomes};
use crate::update::{Replaced, kept};
use crate::{Chain, ChainError, InKernel, Stage};
use taut_function::Count;
use taut_port::{Link, PortCounters, in_kernel};
use taut_xdp::forward::{KernelCounters, KernelForwarder};

/// The programs of a chain. Dropping it takes them off the interfaces.
#[derive(Debug)]
pub struct Programs {
    chain: Chain,
    // Programs go before what they work with.
    forwarder: KernelForwarder,
    in_kernel: InKernel,
    /// Counts of what became of packets in functions that have left.
    past_outcomes: Outcomes,
}

impl Programs {
    /// Attaches what takes the place of the chain's worker to its ports' interfaces.
    ///
    /// # Errors
    /// [`in_kernel::entrances`] and [`KernelForwarder::start`].
    pub fn start(chain: &Chain, programs: InKernel) -> Result<Self, ChainError> {
        let entrances = in_kernel::entrances(&chain.ports)?;
        Ok(Self {
            chain: chain.clone(),
            forwarder: KernelForwarder::start(&entrances, programs.program())?,
            in_kernel: programs,
            past_outcomes: Outcomes::new(),
        })
    }

    /// Goes on with other functions, in all directions or in none. A frame meets the old ones or the new ones, and none is
    /// lost; counts go on. A function whose settings stay the same is the same, with all that it knows.
    ///
    /// # Errors
    /// When a function cannot be in the kernel; for one whose programs hand frames up, before or after. Nothing is changed then.
    pub fn replace(&mut self, functions: Vec<Stage>) -> Result<Replaced, ChainError> {
        let mut next = self.chain.clone();
        next.functions = functions;
        let mut in_kernel = next.in_kernel()?;
        if let Some(upcall) = self.in_kernel.upcall().or(in_kernel.upcall()) {
            return Err(ChainError::Function {
                function: upcall.function.clone(),
                reason: "in the kernel it is not exchanged while packets pass; change what it knows through its control \
                         socket, or take it down and up again"
                    .to_string(),
            });
        }
        let kept = kept(&self.chain.functions, &next.functions);
        in_kernel.keep(&self.in_kernel, &kept);
        self.forwarder.replace(in_kernel.program())?;
        add_outcomes(&mut self.past_outcomes, self.in_kernel.outcomes());
        let kept = kept.iter().flatten().count();
        let made = next.functions.len() - kept;
        self.in_kernel = in_kernel;
        self.chain = next;
        Ok(Replaced {
            kept,
            made,
            pause_ticks: 0,
        })
    }

    /// Returns what has passed so far.
    pub fn counters(&self) -> KernelCounters {
        self.forwarder.counters()
    }

    /// Returns what became of packets in functions that tell causes apart, since each began.
    pub fn functions(&self) -> Vec<Count> {
        self.in_kernel.counts(&self.chain.functions)
    }

    /// Returns what has passed each port so far: [`KernelForwarder::interfaces`].
    pub fn ports(&self) -> Vec<PortCounters> {
        let passed = self.forwarder.interfaces().into_iter();
        passed
            .map(|passed| PortCounters {
                rx_packets: passed.rx_packets,
                rx_bytes: passed.rx_bytes,
                tx_packets: passed.tx_packets,
                tx_bytes: passed.tx_bytes,
                ..PortCounters::default()
            })
            .collect()
    }

    /// State of each interface: [`KernelForwarder::links`].
    pub fn links(&mut self) -> Vec<Link> {
        self.forwarder.links().into_iter().map(Link::from).collect()
    }

    /// Describes what became of each direction, for people to read.
    pub fn details(&self) -> Vec<String> {
        self.forwarder.details()
    }

    /// Takes the programs off the interfaces: what has passed in all, and what became of packets in functions that tell
    /// causes apart, one sum for each cause.
    pub fn end(self) -> (KernelCounters, Outcomes) {
        let counters = self.forwarder.end();
        let mut outcomes = Outcomes::new();
        add_outcomes(&mut outcomes, self.in_kernel.outcomes());
        add_outcomes(&mut outcomes, self.past_outcomes);
        (counters, outcomes)
    }
}
