//! Sets the MAC addresses that the next device expects, as a router does.

use serde::Deserialize;
use taut_function::macs::{Macs, Text};
use taut_function::{
    Class, Context, Entry, Function, KernelVersion, Needs, SettingsError, Spread, settings,
};
use taut_port::Batch;
use taut_wire::ethernet::Ethernet;
use taut_xdp::forward::{Address, HeaderChange};
use taut_xdp::functions::KernelFunction;

pub(crate) const ENTRY: Entry = Entry {
    name: "mac-rewrite",
    summary: "sets MAC addresses",
    class: Class::Basic,
    ports: None,
    settings: SETTINGS,
    files: |_| Vec::new(),
    build: |table| {
        MacRewrite::new(settings(table)?).map(|rewrite| Box::new(rewrite) as Box<dyn Function>)
    },
    in_kernel: KernelVersion::Frames(|table, port| {
        let change = MacRewrite::new(settings(table)?)?.header_change(port);
        Ok(KernelFunction::Headers(change))
    }),
};

/// The descriptions of the settings, for `taut functions` and the pages of docs/reference.
const SETTINGS: &[taut_function::Setting] = &[(
    "source, destination",
    "none",
    "one or both: an address for all packets, or a list with one for each egress port (packets to further \
         ports keep theirs)",
)];

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Settings {
    source: Option<Text>,
    destination: Option<Text>,
}

pub(crate) struct MacRewrite {
    source: Macs,
    destination: Macs,
}

impl MacRewrite {
    pub(crate) fn new(settings: Settings) -> Result<Self, SettingsError> {
        if settings.source.is_none() && settings.destination.is_none() {
            return Err(SettingsError(
                "mac-rewrite needs `source`, `destination` or both: source = \"02:00:00:00:00:01\""
                    .to_string(),
            ));
        }
        Ok(Self {
            source: Macs::new("source", settings.source)?,
            destination: Macs::new("destination", settings.destination)?,
        })
    }

    /// Returns the header change for frames that leave through a port, as the XDP program needs it.
    fn header_change(&self, port: usize) -> HeaderChange {
        let fixed =
            |macs: &Macs, otherwise| macs.of(port).map_or(otherwise, |m| Address::Fixed(m.0));
        HeaderChange {
            destination: fixed(&self.destination, HeaderChange::NONE.destination),
            source: fixed(&self.source, HeaderChange::NONE.source),
        }
    }
}

impl Function for MacRewrite {
    fn needs(&self) -> Needs {
        Needs {
            spread: Spread::Any,
            sets_addresses: true,
            ..Needs::default()
        }
    }

    fn process(&mut self, batch: &mut Batch, context: &Context) {
        let of = |port| (self.source.of(port), self.destination.of(port));
        let (goes_together, usually) = (batch.goes_together(), of(context.to_port));
        for i in 0..batch.len() {
            // The slow path needs the original addresses of punted packets.
            if !batch.is_kept(i) {
                continue;
            }
            let (source, destination) = match goes_together {
                true => usually,
                false => of(batch.leaves_through(i, context.to_port)),
            };
            let Ok(mut frame) = Ethernet::new(batch.packet_mut_but_headers(i).bytes_mut()) else {
                batch.mark_dropped(i);
                continue;
            };
            if let Some(mac) = source {
                frame.set_source(mac);
            }
            if let Some(mac) = destination {
                frame.set_destination(mac);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use taut_port::PoolHandle;

    fn made(text: &str) -> Result<MacRewrite, SettingsError> {
        MacRewrite::new(settings(text.parse().unwrap())?)
    }

    /// Returns the addresses of a frame that leaves through `port`; None if it is dropped.
    fn rewritten(rewrite: &mut MacRewrite, len: u16, port: usize) -> Option<[u8; 12]> {
        let pool = PoolHandle::new(4, false).unwrap();
        let mut batch = Batch::new();
        pool.fill(&mut batch, 1, len);
        for (i, byte) in batch.packets_mut()[0].bytes_mut().iter_mut().enumerate() {
            *byte = i as u8;
        }
        let context = Context {
            to_port: port,
            ..Context::default()
        };
        rewrite.process(&mut batch, &context);
        batch
            .is_kept(0)
            .then(|| batch.packets()[0].bytes()[..12].try_into().unwrap())
    }

    #[test]
    fn a_single_mac_address_applies_to_all_egress_ports() {
        let mut rewrite = made("source = \"02:00:00:00:00:aa\"").unwrap();
        for port in [0, 1, 5] {
            assert_eq!(
                rewritten(&mut rewrite, 60, port).unwrap(),
                [0, 1, 2, 3, 4, 5, 2, 0, 0, 0, 0, 0xaa]
            );
        }
        assert_eq!(rewritten(&mut rewrite, 9, 0), None);
    }

    #[test]
    fn punted_packets_keep_their_mac_addresses() {
        let mut rewrite = made("destination = \"02:00:00:00:00:aa\"").unwrap();
        let pool = PoolHandle::new(4, false).unwrap();
        let mut batch = Batch::new();
        pool.fill(&mut batch, 2, 60);
        let before = batch.packets()[0].bytes().to_vec();
        batch.mark_punted(0, taut_port::Punt::Local);
        rewrite.process(&mut batch, &Context::default());
        assert_eq!(batch.packets()[0].bytes(), before);
        assert_eq!(batch.packets()[1].bytes()[5], 0xaa);
    }

    #[test]
    fn a_list_has_one_mac_address_for_each_egress_port() {
        let mut rewrite =
            made("destination = [\"02:00:00:00:00:aa\", \"02-00-00-00-00-BB\"]").unwrap();
        let first = |port, rewrite: &mut MacRewrite| rewritten(rewrite, 60, port).unwrap()[5];
        assert_eq!(
            [0, 1, 2].map(|port| first(port, &mut rewrite)),
            [0xaa, 0xbb, 5]
        );
        assert_eq!(
            rewrite.header_change(1).destination,
            Address::Fixed([2, 0, 0, 0, 0, 0xbb])
        );
        assert_eq!(rewrite.header_change(2), HeaderChange::NONE);
    }

    #[test]
    fn invalid_mac_rewrite_settings_are_refused_with_a_remedy() {
        for (text, part) in [
            ("", "needs `source`, `destination` or both"),
            (
                "source = \"02:00\"",
                "source = \"02:00\": expected a MAC address",
            ),
            ("source = 7", "expected a MAC address such as"),
            ("destination = [\"x\"]", "destination = \"x\""),
            (
                "sorce = \"02:00:00:00:00:aa\"",
                "unknown key `sorce`: expected `source` or `destination`; did you mean `source`?",
            ),
        ] {
            let error = made(text).err().unwrap().0;
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
