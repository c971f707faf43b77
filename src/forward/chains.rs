//! The chains to run, from chain files and options.

use super::arguments::Arguments;
use crate::exit::Failure;
use std::path::Path;
use taut_engine::{Chain, DEFAULT_BURST, Flush, NOT_IN_KERNEL, Place, Placement, Stage, Wait};
use taut_functions::FUNCTIONS;
use taut_port::PortSpec;

/// The chains to run, with their file names if there are several.
pub(super) type Chains = Vec<(Option<String>, Chain)>;

pub(super) fn chains(arguments: &Arguments) -> Result<Chains, Failure> {
    if arguments.chain.len() < 2 {
        let mut chain = put_together(arguments)?;
        choose_cores(&mut chain)?;
        if chain.workers > 1 && arguments.interruptions.is_some() {
            return Err(Failure::Input(
                "--interruptions: supported with one worker only".to_string(),
            ));
        }
        return Ok(vec![(None, chain)]);
    }
    if arguments.of_one_worker() {
        return Err(Failure::Input(
            "with several chain files, set options in the files: omit --port, --in-kernel, --flush, --wait, --burst, \
             --core, --workers, --cores, --metrics and --interruptions"
                .to_string(),
        ));
    }
    let chains = arguments.chain.iter().map(|path| {
        let mut chain = load(path)?;
        if chain.place == Place::Kernel {
            return Err(Failure::Input(format!(
                "{}: place = \"kernel\": run it in a taut forward of its own",
                path.display()
            )));
        }
        choose_cores(&mut chain)?;
        let stem = path.file_stem().unwrap_or(path.as_os_str());
        Ok((Some(stem.to_string_lossy().into_owned()), chain))
    });
    chains.collect()
}

/// Assigns a core to each of several workers if the chain does not.
pub(crate) fn choose_cores(chain: &mut Chain) -> Result<(), Failure> {
    if chain.workers > 1 && chain.cores.is_empty() {
        chain.cores = taut_host::cores_for(chain.workers).ok_or_else(|| {
            let cores = taut_host::allowed_cpus().len();
            Failure::Input(format!(
                "workers = {}: each needs a core of its own, but this process may use {cores} \
                 (/proc/self/status, Cpus_allowed_list); use {cores} or fewer workers, or allow more cores (taskset)",
                chain.workers,
            ))
        })?;
    }
    Ok(())
}

/// Builds the chain to run, from the chain file or from the options.
fn put_together(arguments: &Arguments) -> Result<Chain, Failure> {
    let ports = arguments.port.iter().map(|p| PortSpec::parse(p));
    let ports: Vec<PortSpec> = ports.collect::<Result<_, _>>()?;
    let mut chain = match arguments.chain.first() {
        Some(path) => {
            let mut chain = load(path)?;
            if !ports.is_empty() {
                chain.ports = ports;
            }
            chain
        }
        None => {
            let functions = arguments
                .function
                .iter()
                .map(|text| Stage::parse(text, FUNCTIONS))
                .collect::<Result<_, _>>()?;
            Chain::new(ports, functions)
        }
    };
    chain.flush = arguments.flush.unwrap_or(chain.flush);
    chain.wait = arguments.wait.unwrap_or(chain.wait);
    chain.burst = arguments.burst.unwrap_or(chain.burst);
    chain.core = arguments.core.or(chain.core);
    if !arguments.cores.is_empty() {
        chain.workers = arguments.cores.len();
        chain.cores.clone_from(&arguments.cores);
        chain.core = None;
    }
    if let Some(workers) = arguments.workers {
        chain.workers = workers;
        if chain.cores.len() != workers && arguments.cores.is_empty() {
            chain.cores.clear();
        }
    }
    chain
        .check()
        .map_err(|e| Failure::Input(format!("{e}; see taut forward --help")))?;
    if arguments.in_kernel {
        chain.place = Place::Kernel;
    }
    if chain.place == Place::Kernel
        && (chain.core.is_some()
            || chain.workers > 1
            || chain.flush != Flush::default()
            || chain.queue.is_some()
            || chain.wait != Wait::default()
            || chain.burst != DEFAULT_BURST)
    {
        return Err(Failure::Input(NOT_IN_KERNEL.to_string()));
    }
    Ok(chain)
}

/// Loads the chain file of a chain that one worker is to run completely.
fn load(path: &Path) -> Result<Chain, Failure> {
    let chain = Chain::load(path, FUNCTIONS)?;
    if chain.placement == Placement::Compact {
        return Ok(chain);
    }
    Err(Failure::Input(format!(
        "{0}: its placement needs several workers; run it with: taut chain up {0}",
        path.display()
    )))
}
