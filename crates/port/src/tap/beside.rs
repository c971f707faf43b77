//! A tap interface outside the data path, for frames too rare for a port: one frame at a time, on any thread.

use super::device::{Device, Settings};
use crate::PortError;
use rustix::io::{read, write};
use taut_sys::Alarm;

/// The length in frames of the transmit queue that the kernel gives to an interface by default.
const QUEUE_FRAMES: u32 = 1000;

/// A tap interface that is up. Dropping it deletes the interface.
#[derive(Debug)]
pub struct Tap(Device);

impl Tap {
    /// Makes an interface with the given name ([`super::is_name`]), MAC address and MTU in bytes, without an IP
    /// address.
    ///
    /// # Errors
    /// The process lacks the privilege, or an interface of that name exists.
    pub fn create(name: &str, mac: [u8; 6], mtu: u16) -> Result<Self, PortError> {
        let settings = Settings {
            mac: Some(mac),
            address: None,
            mtu_bytes: mtu.into(),
            queue_frames: QUEUE_FRAMES,
            has_queues: false,
        };
        Device::create(&format!("making the tap interface {name}"), name, &settings).map(Self)
    }

    /// Returns the index of this interface, named `name`, in the network namespace in which it was made.
    ///
    /// # Errors
    /// The interface was deleted.
    pub fn number(&self, name: &str) -> std::io::Result<u32> {
        let found = taut_sys::interface::Interface::find(self.0.lookup(), name)?;
        Ok(found.index)
    }

    /// Sets the carrier state of the interface, by which routing daemons detect a broken link.
    pub fn set_carrier(&self, is_there: bool) {
        self.0.set_carrier(is_there);
    }

    /// Passes a frame to the kernel. Returns false if the kernel refuses it: it is too short, or the interface is down
    /// or deleted.
    pub fn send(&self, frame: &[u8]) -> bool {
        write(self.0.file(), frame).is_ok()
    }

    /// Receives the next frame from the kernel into `room`, truncated to the length of `room`; None if there is no
    /// frame.
    pub fn receive<'a>(&self, room: &'a mut [u8]) -> Option<&'a [u8]> {
        let length = read(self.0.file(), &mut *room).ok()?;
        room.get(..length)
    }

    /// Makes `alarm` watch the interface, so that a frame from the kernel wakes the sleeping thread.
    pub fn arm(&self, alarm: &mut Alarm) {
        alarm.watch(self.0.file());
    }
}
