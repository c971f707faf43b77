//! A program without an interface: the kernel lets it have frames that this process makes up
//! (`BPF_PROG_TEST_RUN`).

use super::Passed;
use crate::program::{as_io, map};
use libbpf_rs::{MapCore, MapFlags, Object, ProgramInput};
use std::io;
use taut_sys::Error;

/// The loopback interface, which every network namespace has: the program only asks whether there is one.
const LOOPBACK: u32 = 1;
/// `XDP_REDIRECT` of linux/bpf.h.
const REDIRECTED: u32 = 4;
/// The longest frame that the kernel takes here is less than a page.
const ROOM_BYTES: usize = 4096;

/// A program that waits for frames.
pub struct DryRun {
    object: Object,
}

impl std::fmt::Debug for DryRun {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("DryRun")
    }
}

impl DryRun {
    /// Of a program whose frames leave through so many interfaces.
    pub(crate) fn new(object: Object, exits: usize) -> Result<Self, Error> {
        map(&object, "out")
            .and_then(|out| {
                (0..exits as u32).try_for_each(|exit| {
                    out.update(&exit.to_ne_bytes(), &LOOPBACK.to_ne_bytes(), MapFlags::ANY)
                        .map_err(as_io)
                })
            })
            .map_err(|e| Error::system("a program without an interface", e))?;
        Ok(Self { object })
    }

    /// Lets the program have a frame of 14 to about 3500 bytes, as often as `repeat` says, each time as the time before
    /// left it.
    ///
    /// # Errors
    /// The kernel's answer.
    pub fn pass(&self, frame: &[u8], repeat: u32) -> io::Result<Passed> {
        let program = self.object.progs_mut().next();
        let program = program.ok_or_else(|| io::Error::other("the object has no program"))?;
        let mut out = [0; ROOM_BYTES];
        let input = ProgramInput {
            data_in: Some(frame),
            data_out: Some(&mut out),
            repeat,
            ..Default::default()
        };
        let output = program.test_run(input).map_err(as_io)?;
        let left = output.return_value == REDIRECTED;
        Ok(Passed {
            frame: output.data.filter(|_| left).map(|bytes| bytes.to_vec()),
            duration_ns: output.duration.as_nanos() as u64,
        })
    }
}
