//! What is sent: copies of one frame, each with a stamp of its own.

use taut_port::Packet;
use taut_wire::{Error, StampLayout, UdpFlow};

/// A template frame and where its stamp goes.
#[derive(Debug, Clone)]
pub struct Stream {
    frame: Vec<u8>,
    layout: StampLayout,
    udp_port: u16,
}

impl Stream {
    /// Frames of `frame_size_bytes` (frame check sequence included: 64 is the smallest) of `flow`.
    ///
    /// # Errors
    /// Sizes and addresses that make no frame.
    pub fn new(flow: &UdpFlow, frame_size_bytes: usize) -> Result<Self, Error> {
        let frame = flow.frame(frame_size_bytes)?;
        let layout = StampLayout::new(&frame)?;
        Ok(Self {
            frame,
            layout,
            udp_port: flow.dst_port,
        })
    }

    /// Bytes of a frame as ports carry it, without frame check sequence.
    #[inline(always)]
    pub fn len_bytes(&self) -> u16 {
        self.frame.len() as u16
    }

    /// The destination port by which packets of this stream are known again.
    #[inline(always)]
    pub fn udp_port(&self) -> u16 {
        self.udp_port
    }

    /// Makes `packet` (of [`Stream::len_bytes`]) a copy of the template.
    #[inline(always)]
    pub(crate) fn copy_to(&self, packet: &mut Packet) {
        packet.bytes_mut().copy_from_slice(&self.frame);
    }

    /// Stamps a copy.
    #[inline(always)]
    pub(crate) fn stamp(&self, packet: &mut Packet, flow: u16, sequence: u64, now_ticks: u64) {
        // Cannot fail: the packet is as long as the template that the layout was made for.
        let _ = self
            .layout
            .write(packet.bytes_mut(), flow, sequence, now_ticks);
    }
}
