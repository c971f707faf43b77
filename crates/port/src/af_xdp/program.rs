//! The XDP program for the sockets of one interface.

use super::filter::Filter;
use crate::PortError;
use libbpf_rs::{MapCore, MapFlags, Object};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use taut_xdp::Mode;
use taut_xdp::program::{Attachment, TO_SOCKET, as_io, load, map};

/// The settings that are written into the XDP program when it is loaded.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Settings {
    pub(super) filter: Filter,
    /// True if frames get an arrival timestamp.
    pub(super) stamped: bool,
}

impl Settings {
    /// Returns the settings in the format of the XDP program's constants.
    fn constants(&self) -> Vec<u8> {
        let mut bytes = self.filter.constants();
        bytes.extend(u32::from(self.stamped).to_ne_bytes());
        bytes
    }
}

/// A loaded program, attached to one interface.
pub(super) struct Program {
    attachment: Attachment,
    object: Object,
    pub(super) settings: Settings,
}

impl Program {
    /// Loads the XDP program without attaching it, to check whether this process may load XDP programs.
    pub(super) fn probe() -> Result<(), PortError> {
        Self::load("loading an XDP program", &Settings::default()).map(drop)
    }

    pub(super) fn load(what: &str, settings: &Settings) -> Result<Object, PortError> {
        Ok(load(what, TO_SOCKET, &settings.constants())?)
    }

    /// Attaches the XDP program to the interface with the given index, in the first of `modes` that works.
    pub(super) fn attach(
        what: &str,
        name: &str,
        interface: u32,
        modes: &[Mode],
        settings: &Settings,
    ) -> Result<Self, PortError> {
        let object = Self::load(what, settings)?;
        Ok(Self {
            attachment: Attachment::new(what, &object, name, interface, modes)?,
            object,
            settings: settings.clone(),
        })
    }

    pub(super) fn mode(&self) -> Mode {
        self.attachment.mode
    }

    /// Redirects the frames of a receive queue to a socket, which must be bound to that queue.
    pub(super) fn redirect(&self, queue: u32, socket: impl AsFd) -> io::Result<()> {
        redirect(&self.object, queue, socket)
    }
}

pub(super) fn redirect(object: &Object, queue: u32, socket: impl AsFd) -> io::Result<()> {
    let descriptor = socket.as_fd().as_raw_fd();
    map(object, "sockets")?
        .update(
            &queue.to_ne_bytes(),
            &descriptor.to_ne_bytes(),
            MapFlags::ANY,
        )
        .map_err(as_io)
}
