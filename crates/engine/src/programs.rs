//! A running chain in the kernel: its programs, and their replacement.

use crate::outcomes::{Outcomes, add_outcomes};
use crate::update::{Replaced, kept};
use crate::{Chain, ChainError, InKernel, Stage};
use taut_function::Count;
use taut_port::{Link, PortCounters, in_kernel};
use taut_xdp::forward::{KernelCounters, KernelForwarder};

/// The XDP programs of a running chain. Dropping this value detaches them from the interfaces.
#[derive(Debug)]
pub struct Programs {
    chain: Chain,
    // Fields are dropped in order: the programs before the maps that they use.
    forwarder: KernelForwarder,
    in_kernel: InKernel,
    /// Numbers of packets by outcome in the functions that were replaced.
    past_outcomes: Outcomes,
}

impl Programs {
    /// Attaches the XDP programs that replace the chain's worker to the interfaces of its ports.
    ///
    /// # Errors
    /// The errors are those of [`in_kernel::entrances`] and [`KernelForwarder::start`].
    pub fn start(chain: &Chain, programs: InKernel) -> Result<Self, ChainError> {
        let entrances = in_kernel::entrances(&chain.ports)?;
        Ok(Self {
            chain: chain.clone(),
            forwarder: KernelForwarder::start(&entrances, programs.program())?,
            in_kernel: programs,
            past_outcomes: Outcomes::new(),
        })
    }

    /// Replaces the functions, either in all directions or in none. No frame is lost, and each passes either only the
    /// old functions or only the new ones. Counters continue. A function with unchanged settings keeps its state.
    ///
    /// # Errors
    /// A function is not possible in the kernel, or the old or new chain has a function whose programs pass frames to a
    /// worker. Nothing changes then.
    pub fn replace(&mut self, functions: Vec<Stage>) -> Result<Replaced, ChainError> {
        let mut next = self.chain.clone();
        next.functions = functions;
        let mut in_kernel = next.in_kernel()?;
        if let Some(upcall) = self.in_kernel.upcall().or(in_kernel.upcall()) {
            return Err(ChainError::Function {
                function: upcall.function.clone(),
                reason: "in the kernel it cannot be replaced while packets pass; change its tables through its \
                        control socket, or take it down and up again"
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

    /// Returns the counters of all frames since the start.
    pub fn counters(&self) -> KernelCounters {
        self.forwarder.counters()
    }

    /// Returns, for each function, the number of packets by outcome since the function started.
    pub fn functions(&self) -> Vec<Count> {
        self.in_kernel.counts(&self.chain.functions)
    }

    /// Returns the counters of each port since the start; see [`KernelForwarder::interfaces`].
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

    /// Returns the link state of each interface; see [`KernelForwarder::links`].
    pub fn links(&mut self) -> Vec<Link> {
        self.forwarder.links().into_iter().map(Link::from).collect()
    }

    /// Returns for display, for each direction, how frames are forwarded.
    pub fn details(&self) -> Vec<String> {
        self.forwarder.details()
    }

    /// Detaches the XDP programs from the interfaces. Returns the total counters, and the packets by outcome, summed
    /// over all functions.
    pub fn end(self) -> (KernelCounters, Outcomes) {
        let counters = self.forwarder.end();
        let mut outcomes = Outcomes::new();
        add_outcomes(&mut outcomes, self.in_kernel.outcomes());
        add_outcomes(&mut outcomes, self.past_outcomes);
        (counters, outcomes)
    }
}
