//! The body of the fuzz target for packet filters; `cargo test` runs the same body over damaged programs.

use taut_capture::filter::{Filter, Many, Matches, ProgramError};
use taut_sys::FilterInstruction;

/// Length of an instruction in bytes: its code, its two jump offsets, and its number.
const INSTRUCTION_BYTES: usize = 8;

/// Runs a program over a frame. The first byte is the number of instructions that follow, and the rest is the frame.
/// Checks that a valid program has the same result alone and among others, and accepts no frame without the fields that
/// it needs. Returns true if the program accepted the frame; `None` for an invalid program.
pub fn program(bytes: &[u8]) -> Option<bool> {
    let (count, rest) = bytes.split_first()?;
    let (program, frame) = rest.split_at_checked(usize::from(*count) * INSTRUCTION_BYTES)?;
    let instruction = |bytes: &[u8]| FilterInstruction {
        code: u16::from_be_bytes([bytes[0], bytes[1]]),
        jt: bytes[2],
        jf: bytes[3],
        k: u32::from_be_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]),
    };
    let instructions: Vec<_> = program
        .chunks_exact(INSTRUCTION_BYTES)
        .map(instruction)
        .collect();
    let filter = match Filter::of_program("made up", &instructions) {
        Ok(filter) => filter,
        Err(e) => {
            let is_within = match e {
                ProgramError::Length(length) => length == instructions.len(),
                ProgramError::Instruction { at, .. } => at < instructions.len(),
            };
            assert!(is_within, "{e}");
            return None;
        }
    };
    let wire_bytes = frame.len() as u32;
    let accepts = filter.matches(frame, wire_bytes);
    assert!(!accepts || filter.needs().are_met_by(frame));
    assert_eq!(
        filter.needs().addresses().len(),
        filter.needs().alternatives().len()
    );
    let all = Filter::new("").expect("a program");
    let many = Many::new(vec![all, filter]).expect("two filters");
    let mut matches = Matches::default();
    many.matches(frame, wire_bytes, &mut matches);
    assert!(matches.contains(0));
    assert_eq!(matches.contains(1), accepts);
    Some(accepts)
}
