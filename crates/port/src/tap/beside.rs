//! A tap interface beside the data path, for what is not worth a port: one frame at a time, on any thread.

use super::device::{Device, Settings};
use crate::PortError;
use rustix::io::{read, write};
use taut_sys::Alarm;

/// Length of the queue that the kernel gives an interface of its own.
const QUEUE_FRAMES: u32 = 1000;

/// A tap interface that is on. It goes away with this.
#[derive(Debug)]
pub struct Tap(Device);

impl Tap {
    /// Makes an interface of that name ([`super::is_name`]), MAC address and MTU in bytes; it has no IP address.
    ///
    /// # Errors
    /// Without the right to, or when the name is taken.
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

    /// The kernel's number of the interface `name`, which this is, in the network namespace that it was made in.
    ///
    /// # Errors
    /// When it has gone.
    pub fn number(&self, name: &str) -> std::io::Result<u32> {
        let found = taut_sys::interface::Interface::find(self.0.lookup(), name)?;
        Ok(found.index)
    }

    /// Tells the kernel whether there is a carrier, by which daemons see that a link is cut.
    pub fn set_carrier(&self, is_there: bool) {
        self.0.set_carrier(is_there);
    }

    /// Hands the kernel a frame. False if it does not take it: it is too short, or the interface is down or gone.
    pub fn send(&self, frame: &[u8]) -> bool {
        write(self.0.file(), frame).is_ok()
    }

    /// The next frame that the kernel sends, if there is one; what is longer than `room` is cut.
    pub fn receive<'a>(&self, room: &'a mut [u8]) -> Option<&'a [u8]> {
        let length = read(self.0.file(), &mut *room).ok()?;
        room.get(..length)
    }

    /// Makes `alarm` ring when the kernel sends a frame.
    pub fn arm(&self, alarm: &mut Alarm) {
        alarm.watch(self.0.file());
    }
}
