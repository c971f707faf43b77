//! A chain in the kernel: which XDP programs take the place of its worker, and what they counted.

use crate::chain::Stage;
use crate::{Chain, ChainError, Outcomes};
use std::sync::Arc;
use taut_port::{Direction, Pairs};
use taut_xdp::forward::{HeaderChange, KernelProgram};
use taut_xdp::functions::{KernelFunction, KernelFunctions, KernelStage};
use taut_xdp::gateway::KernelGateway;

/// Form of a chain in the kernel. Lists have one entry for each port, for the frames that leave through it.
#[derive(Debug)]
#[allow(
    clippy::large_enum_variant,
    reason = "one per forwarder, and it stays where it is made"
)]
pub enum InKernel {
    /// A change of addresses at most.
    Headers(Vec<HeaderChange>),
    /// A gateway, then a change of addresses.
    Gateway(Arc<KernelGateway>, Vec<HeaderChange>),
    /// Functions in order.
    Functions {
        /// The functions, as the kernel has them.
        functions: Box<KernelFunctions>,
        /// Names of the functions' counts, by number of the function.
        outcomes: Vec<Vec<&'static str>>,
    },
}

impl InKernel {
    /// Returns the program for those who attach it to interfaces.
    pub fn program(&self) -> KernelProgram<'_> {
        match self {
            Self::Headers(changes) => KernelProgram::Headers(changes),
            Self::Gateway(gateway, changes) => KernelProgram::Gateway(gateway, changes),
            Self::Functions { functions, .. } => KernelProgram::Functions(functions),
        }
    }

    /// Goes on with functions of `before`: by number of the function here, the number there of the one that it is. To be said
    /// before the first program is loaded.
    pub(crate) fn keep(&mut self, before: &Self, kept: &[Option<usize>]) {
        if let (Self::Functions { functions, .. }, Self::Functions { functions: old, .. }) =
            (self, before)
        {
            functions.keep(old, kept);
        }
    }

    /// The gateway, if it is one.
    pub fn gateway(&self) -> Option<&Arc<KernelGateway>> {
        match self {
            Self::Gateway(gateway, _) => Some(gateway),
            _ => None,
        }
    }

    /// Returns what became of packets in functions that tell causes apart, in the order of the chain; that of a gateway
    /// is known to the worker beside it.
    pub fn outcomes(&self) -> Outcomes {
        let Self::Functions {
            functions,
            outcomes,
        } = self
        else {
            return Outcomes::new();
        };
        let numbered = outcomes.iter().enumerate();
        numbered
            .flat_map(|(number, names)| names.iter().copied().zip(functions.outcomes(number)))
            .collect()
    }
}

impl Chain {
    /// Returns what takes the place of the chain's worker in the kernel.
    ///
    /// # Errors
    /// When a function or its settings cannot be in the kernel, or not beside the others; for what the machine lacks.
    pub fn in_kernel(&self) -> Result<InKernel, ChainError> {
        let gateway = self.kernel_gateway()?;
        let ports = 0..self.ports.len();
        let directions = ports.map(|port| self.kernel_stages(port));
        let directions = directions.collect::<Result<Vec<_>, _>>()?;
        let changes: Option<Vec<_>> = directions
            .iter()
            .map(|stages| stages.iter().try_fold(HeaderChange::NONE, then))
            .collect();
        match (gateway, changes) {
            (None, Some(changes)) => Ok(InKernel::Headers(changes)),
            (Some(gateway), Some(changes)) => Ok(InKernel::Gateway(gateway, changes)),
            (Some(_), None) => Err(ChainError::Function {
                function: "gtpu".to_string(),
                reason: "in the kernel a gateway goes with forward, mac-rewrite and mac-swap only: leave the others out, \
                         or run the chain in user space"
                    .to_string(),
            }),
            (None, None) => Ok(InKernel::Functions {
                functions: Box::new(KernelFunctions::new(directions)?),
                outcomes: self.names_of_outcomes()?,
            }),
        }
    }

    /// Returns the functions that frames pass which leave through a port.
    fn kernel_stages(&self, port: usize) -> Result<Vec<KernelStage>, ChainError> {
        let mut stages: Vec<_> = self.functions.iter().enumerate().collect();
        let from = Pairs::of(self.ports.len()).partner(port);
        if Direction::from_port(from) == Direction::Back {
            stages.reverse();
        }
        let stage = |(number, stage): (usize, &Stage)| {
            let function = taut_function::in_kernel(&stage.name, stage.settings.clone(), port);
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
            let built = taut_function::build(&stage.name, stage.settings.clone());
            let outcomes = built.map_err(|e| wrong(stage, e.to_string()))?.outcomes();
            Ok(outcomes.into_iter().map(|(name, _)| name).collect())
        };
        self.functions.iter().map(names).collect()
    }

    /// The maps of the gateway in the kernel, if the chain has one.
    fn kernel_gateway(&self) -> Result<Option<Arc<KernelGateway>>, ChainError> {
        let mut found = None;
        for stage in &self.functions {
            let settings = taut_function::kernel_gateway(&stage.name, stage.settings.clone());
            let settings = settings.map_err(|e| wrong(stage, e.to_string()))?;
            if settings.is_some() && found.is_some() {
                return Err(wrong(
                    stage,
                    "one gateway at most in the kernel".to_string(),
                ));
            }
            found = found.or(settings);
        }
        let make = |settings| KernelGateway::new(settings, self.ports.len()).map(Arc::new);
        Ok(found.map(make).transpose()?)
    }
}

/// The change so far and that of one function more; none if it does something else.
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
    use taut_xdp::forward::Address;

    fn chain(functions: &str) -> Chain {
        let text = format!("place = \"kernel\"\nports = [\"null:\", \"null:\"]\n{functions}");
        Chain::parse(&text, "x.toml").unwrap()
    }

    #[test]
    fn a_chain_in_the_kernel_changes_addresses_by_outgoing_port() {
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
                // Rewritten, then swapped: the way back meets the last function first.
                destination: Address::Fixed([2, 0, 0, 0, 0, 1]),
                ..HeaderChange::SWAP
            }
        );
    }

    #[test]
    fn functions_keep_their_number_and_come_in_reverse_on_the_way_back() {
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
}
