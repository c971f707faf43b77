//! A port with nothing behind it: what it is given vanishes, and on request it makes packets from
//! nothing. The floor of what any port costs.

use crate::{Backend, Batch, Handling, Link, PoolHandle, Port, PortCounters, PortError, PortSpec};
use crate::{Joinable, Part, Receives, Resources, Sends, Split, Supply};

/// `null:[source=N][,size=BYTES]`.
pub(crate) const BACKEND: Backend = Backend {
    name: "null",
    summary: "no device: swallows what is sent; with source=N also delivers bursts of N packets",
    target: "",
    options: &[
        (
            "source",
            "packets delivered per receive call, 0 to 64 (default 0)",
        ),
        (
            "size",
            "length of their frames with check sequence, 64 to 1518 bytes (default 64)",
        ),
    ],
    frames: |_| 0,
    aligned: false,
    handling: &[Handling {
        variant: "",
        receives: Receives::InPool,
        sends: Sends::FromAnywhere,
    }],
    passes_on: false,
    wakes: false,
    probe: || Ok("always there".to_string()),
    open,
    split: Split::Joinable(joinable),
};

/// Lengths of the frames that a source delivers, bytes with check sequence.
const FRAME_BYTES: std::ops::RangeInclusive<u64> = 64..=1518;
/// Length of the check sequence, which packets come without.
const CHECK_BYTES: u16 = 4;

struct NullPort {
    pool: PoolHandle,
    source: usize,
    /// Length of the packets, bytes.
    len_bytes: u16,
    counters: PortCounters,
}

fn open(spec: &PortSpec, resources: &mut Resources) -> Result<Box<dyn Port>, PortError> {
    if !spec.target().is_empty() {
        return Err(spec.error("null has no target; write \"null:\""));
    }
    let source = spec.number("source", 0..=64)?.unwrap_or(0);
    let size_bytes = spec
        .number("size", FRAME_BYTES)?
        .unwrap_or(*FRAME_BYTES.start());
    Ok(Box::new(NullPort {
        pool: resources.pool(),
        source: source as usize,
        len_bytes: size_bytes as u16 - CHECK_BYTES,
        counters: PortCounters::default(),
    }))
}

fn joinable(spec: &PortSpec) -> Result<Joinable, PortError> {
    let spec = spec.clone();
    Ok(Box::new(move |_| {
        let spec = spec.clone();
        Ok(Box::new(move |resources: &mut Resources| open(&spec, resources)) as Part)
    }))
}

impl Port for NullPort {
    #[inline]
    fn rx(&mut self, batch: &mut Batch) -> usize {
        let n = self.pool.fill(batch, self.source, self.len_bytes);
        self.counters.rx_packets += n as u64;
        self.counters.rx_bytes += n as u64 * u64::from(self.len_bytes);
        n
    }

    #[inline]
    fn tx(&mut self, batch: &mut Batch) -> usize {
        let n = batch.len();
        self.counters.tx_packets += n as u64;
        self.counters.tx_bytes += batch.packets().iter().map(|p| p.len() as u64).sum::<u64>();
        batch.clear();
        n
    }

    fn link(&mut self) -> Link {
        Link::Up
    }

    fn counters(&mut self) -> PortCounters {
        self.counters
    }

    fn supply(&mut self) -> Supply {
        if self.source == 0 {
            Supply::None
        } else {
            Supply::Open
        }
    }
}
