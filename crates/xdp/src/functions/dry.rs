//! Runs a program without an interface: the kernel passes it frames that this process provides (`BPF_PROG_TEST_RUN`).

use super::Passed;
use crate::program::{as_io, map};
use libbpf_rs::{MapCore, MapFlags, Object, ProgramInput};
use std::io;
use taut_sys::Error;

/// Kernel index of the loopback interface, to which all frames are redirected. The XDP program only checks that its
/// egress interface exists, and every network namespace has this one.
const LOOPBACK: u32 = 1;
/// `XDP_REDIRECT` of linux/bpf.h.
const REDIRECTED: u32 = 4;
/// Size in bytes of the buffer for the processed frame. The longest frame that the kernel accepts for such a run is
/// shorter than a page.
const ROOM_BYTES: usize = 4096;

/// A program that can be run on frames.
pub struct DryRun {
    object: Object,
}

impl std::fmt::Debug for DryRun {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("DryRun")
    }
}

impl DryRun {
    /// Prepares runs of a program whose frames leave through `exits` different egress interfaces.
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

    /// Runs the XDP program `repeat` times on a frame of 14 to about 3500 bytes; each run processes the output of the
    /// previous one.
    ///
    /// # Errors
    /// The kernel reports an error.
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
