//! The settings in a spec for the kernel and the driver, and explanations of why they may fail.

use super::filter::Filter;
use super::program::Settings;
use super::queues::{queues, ring_entries};
use super::socket::Binding;
use crate::{PortError, PortSpec};
use rustix::io::Errno;
use std::ops::RangeInclusive;
use taut_sys::interface;
use taut_xdp::Mode;

/// The copy mode of a socket: whether the kernel copies frames between the driver's memory and the packet memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Copying {
    /// Zero-copy if the driver supports it, otherwise the kernel copies.
    Auto,
    /// Zero-copy; binding fails if the driver does not support it.
    Zero,
    /// The kernel copies frames, although the driver may support zero-copy.
    Copy,
}

/// The settings in the spec of an `af_xdp` port.
pub(super) struct Wanted {
    pub(super) spec: PortSpec,
    pub(super) queues: RangeInclusive<u32>,
    pub(super) entries: u32,
    pub(super) modes: &'static [Mode],
    pub(super) program: Settings,
    pub(super) busy_poll: bool,
    pub(super) need_wakeup: bool,
    copying: Copying,
}

impl Wanted {
    pub(super) fn of(spec: &PortSpec) -> Result<Self, PortError> {
        spec.number("ring", 64..=32768)?;
        let copying = one_of(
            spec,
            "copy",
            &[
                ("auto", Copying::Auto),
                ("zero", Copying::Zero),
                ("copy", Copying::Copy),
            ],
        )?;
        let mut modes = Mode::wanted(spec.option("mode")).map_err(|reason| spec.error(reason))?;
        if copying == Copying::Zero {
            if modes == [Mode::Generic] {
                return Err(spec.error("copy=zero is the driver's work: leave out mode=generic"));
            }
            modes = &[Mode::Native];
        }
        Ok(Self {
            queues: queues(spec).ok_or_else(|| {
                spec.error("queue: expected a number from 0 to 1023, or a range 0-3")
            })?,
            entries: ring_entries(spec)
                .ok_or_else(|| spec.error("ring: expected a power of two"))?,
            modes,
            program: Settings {
                filter: match spec.option("filter") {
                    Some(text) => text.parse().map_err(|reason: String| spec.error(reason))?,
                    None => Filter::default(),
                },
                stamped: match spec.option("stamps") {
                    None => false,
                    Some("kernel") => true,
                    Some("hardware") => {
                        return Err(spec.error(
                            "stamps=hardware: AF_XDP ports read no hardware stamps; expected kernel",
                        ));
                    }
                    Some(other) => {
                        return Err(spec.error(format!("stamps={other}: expected kernel")));
                    }
                },
            },
            busy_poll: one_of(spec, "poll", &[("interrupt", false), ("busy", true)])?,
            need_wakeup: one_of(spec, "wakeup", &[("need", true), ("always", false)])?,
            copying,
            spec: spec.clone(),
        })
    }

    /// Describes the port for error messages.
    pub(super) fn what(&self) -> String {
        format!("opening {}", self.spec)
    }

    /// Returns the interface's name.
    pub(super) fn name(&self) -> &str {
        self.spec.target()
    }

    /// Returns the options for binding the port's sockets if the XDP program runs in `mode`.
    pub(super) fn binding(&self, mode: Mode) -> Binding {
        Binding {
            need_wakeup: self.need_wakeup,
            copy: match (self.copying, mode) {
                (Copying::Zero, _) => Some(false),
                (Copying::Auto, Mode::Native) => None,
                (Copying::Copy, _) | (Copying::Auto, Mode::Generic) => Some(true),
            },
        }
    }

    /// Returns the error that explains why the kernel refuses to bind a socket to the queue.
    pub(super) fn cannot_bind(&self, queue: u32, error: Errno) -> PortError {
        let (what, name) = (self.what(), self.name());
        match error {
            Errno::INVAL => PortError::missing(
                what,
                format!("queue {queue} of {name}, which has fewer; see: ethtool -l {name}"),
            ),
            Errno::BUSY => PortError::missing(
                what,
                format!("exclusive use of queue {queue} of {name}; another AF_XDP socket uses it"),
            ),
            Errno::NOBUFS => PortError::missing(
                what,
                "CAP_IPC_LOCK, or a higher limit on locked memory (ulimit -l), for its packet memory",
            ),
            Errno::OPNOTSUPP if self.copying == Copying::Zero => PortError::missing(
                what,
                format!(
                    "a driver of {name} with AF_XDP zero copy; copy=auto falls back to copying"
                ),
            ),
            Errno::PERM | Errno::ACCESS | Errno::AFNOSUPPORT => {
                interface::cannot_make_socket(what, "CONFIG_XDP_SOCKETS", error).into()
            }
            _ => PortError::system(what, error),
        }
    }

    /// Returns the error that explains why busy polling, in which receive calls run the driver's queue, is unavailable.
    pub(super) fn cannot_poll(&self, error: Errno) -> PortError {
        match error {
            Errno::PERM => PortError::missing(
                self.what(),
                "root or CAP_NET_ADMIN for poll=busy (run with sudo)",
            ),
            Errno::NOPROTOOPT => PortError::missing(
                self.what(),
                "Linux 5.11 or newer with CONFIG_NET_RX_BUSY_POLL for poll=busy",
            ),
            _ => PortError::system(self.what(), error),
        }
    }
}

/// Returns the value that `words` lists for the text of option `key`; the first entry of `words` is the default.
fn one_of<T: Copy>(spec: &PortSpec, key: &str, words: &[(&str, T)]) -> Result<T, PortError> {
    let value = spec.option(key).unwrap_or(words[0].0);
    let found = words.iter().find(|(word, _)| *word == value);
    found.map(|(_, meaning)| *meaning).ok_or_else(|| {
        let known: Vec<_> = words.iter().map(|(word, _)| *word).collect();
        spec.error(format!("{key}={value}: expected {}", known.join(" or ")))
    })
}
