//! Programs of classic BPF, verified once and then run on frames. (S. McCanne, V. Jacobson: "The BSD Packet Filter",
//! USENIX Winter 1993, section 3; edge cases of instructions are as in libpcap's `bpf_filter`.)
//!
//! Instructions are decoded into [`Op`]s with explicit jump targets. The most frequent pair of instructions, a load and
//! a comparison of the loaded value, becomes a single operation.

use taut_sys::FilterInstruction;

/// Maximum number of instructions of a program, as in the kernel (BPF_MAXINSNS).
pub const MOST_INSTRUCTIONS: usize = 4096;
/// Number of words of scratch memory.
pub(super) const SCRATCH_WORDS: usize = 16;

/// A verified program: it always terminates, and accesses only the frame and its scratch memory.
#[derive(Debug, Clone)]
pub struct Program {
    ops: Box<[Op]>,
}

/// The reason why a list of instructions is no valid program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ProgramError {
    /// The number of instructions is 0 or too large.
    #[error("a program has 1 to {MOST_INSTRUCTIONS} instructions, not {0}")]
    Length(usize),
    /// An instruction is not allowed.
    #[error("instruction {at} of the program {reason}")]
    Instruction {
        /// Index of the instruction, from 0.
        at: usize,
        /// Reason why the instruction is not allowed.
        reason: &'static str,
    },
}

/// The effect of an instruction. A and X are the two registers; `yes` and `no` are the indices of the instruction that
/// follows if a comparison holds, and if it does not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Op {
    /// Loads a byte of the frame into register A; the value is the offset of the byte.
    LoadByte(u32),
    LoadHalf(u32),
    LoadWord(u32),
    /// Loads the byte of the frame at register X plus this offset into register A.
    LoadByteBehind(u32),
    LoadHalfBehind(u32),
    LoadWordBehind(u32),
    LoadConstant(u32),
    LoadLength,
    LoadScratch(u8),
    /// Loads four times the lower half of the byte at this offset into register X: the length of an IPv4 header that
    /// begins there.
    LoadXHeader(u32),
    LoadXConstant(u32),
    LoadXLength,
    LoadXScratch(u8),
    Store(u8),
    StoreX(u8),
    /// Applies the operation to register A and the constant, with the result in A.
    Compute(Operation, u32),
    /// Applies the operation to registers A and X, with the result in A.
    ComputeX(Operation),
    Negate,
    CopyToX,
    CopyFromX,
    Go(u16),
    /// Compares register A with the constant `value`, and jumps.
    Jump {
        test: Test,
        value: u32,
        yes: u16,
        no: u16,
    },
    /// Compares register A with register X, and jumps.
    JumpX {
        test: Test,
        yes: u16,
        no: u16,
    },
    Return(u32),
    ReturnA,
    /// Loads the byte at offset `at` of the frame into register A, compares A with `value`, and jumps.
    ByteIs {
        at: u16,
        value: u32,
        yes: u16,
        no: u16,
    },
    HalfIs {
        at: u16,
        value: u32,
        yes: u16,
        no: u16,
    },
    WordIs {
        at: u16,
        value: u32,
        yes: u16,
        no: u16,
    },
    HalfBehindIs {
        at: u16,
        value: u32,
        yes: u16,
        no: u16,
    },
    /// Loads the two bytes at offset `at` of the frame into register A, tests whether A and `value` have a bit in
    /// common, and jumps.
    HalfHasAny {
        at: u16,
        value: u32,
        yes: u16,
        no: u16,
    },
}

/// A comparison of two numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Test {
    Equal,
    Greater,
    AtLeast,
    /// Test that two numbers have a bit in common.
    HasAny,
}

impl Test {
    #[inline(always)]
    pub(super) fn holds(self, a: u32, b: u32) -> bool {
        match self {
            Self::Equal => a == b,
            Self::Greater => a > b,
            Self::AtLeast => a >= b,
            Self::HasAny => a & b != 0,
        }
    }
}

/// An operation on two numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operation {
    Add,
    Subtract,
    Multiply,
    Divide,
    Remainder,
    And,
    Or,
    Xor,
    ShiftLeft,
    ShiftRight,
}

impl Operation {
    /// Returns the result of the operation on `a` and `b`; none for a division by 0.
    #[inline(always)]
    pub(super) fn of(self, a: u32, b: u32) -> Option<u32> {
        Some(match self {
            Self::Add => a.wrapping_add(b),
            Self::Subtract => a.wrapping_sub(b),
            Self::Multiply => a.wrapping_mul(b),
            Self::Divide => a.checked_div(b)?,
            Self::Remainder => a.checked_rem(b)?,
            Self::And => a & b,
            Self::Or => a | b,
            Self::Xor => a ^ b,
            Self::ShiftLeft => a.checked_shl(b).unwrap_or(0),
            Self::ShiftRight => a.checked_shr(b).unwrap_or(0),
        })
    }
}

impl Program {
    /// Verifies instructions as a program.
    ///
    /// # Errors
    /// Returns [`ProgramError`] for instructions that could loop, leave the program or its memory, or that request data
    /// of the kernel.
    pub fn new(instructions: &[FilterInstruction]) -> Result<Self, ProgramError> {
        Ok(Self::of(&checked(instructions)?))
    }

    pub(super) fn of(ops: &[Op]) -> Self {
        let fused = |(at, op): (usize, &Op)| {
            ops.get(at + 1)
                .and_then(|next| fused(*op, *next))
                .unwrap_or(*op)
        };
        Self {
            ops: ops.iter().enumerate().map(fused).collect(),
        }
    }

    /// Runs the program on a frame, which had `wire_bytes` bytes on the wire; the stored frame may be shorter. Returns
    /// the number of bytes of the packet to keep. It is 0 if the program rejects the frame, reads beyond the end of the
    /// frame, or divides by zero.
    #[inline]
    pub fn run(&self, frame: &[u8], wire_bytes: u32) -> u32 {
        self.result(frame, wire_bytes).unwrap_or(0)
    }

    #[inline(always)]
    fn result(&self, frame: &[u8], wire_bytes: u32) -> Option<u32> {
        let (mut a, mut x) = (0u32, 0u32);
        let mut scratch = [0u32; SCRATCH_WORDS];
        let mut next = 0;
        loop {
            // Jumps go forward and stay within the program, which ends with a return, so this index is always valid and
            // `?` never returns.
            let op = *self.ops.get(next)?;
            next += 1;
            match op {
                Op::ByteIs { at, value, yes, no } => {
                    a = byte(frame, at.into())?;
                    next = usize::from(if a == value { yes } else { no });
                }
                Op::HalfIs { at, value, yes, no } => {
                    a = half(frame, at.into())?;
                    next = usize::from(if a == value { yes } else { no });
                }
                Op::WordIs { at, value, yes, no } => {
                    a = word(frame, at.into())?;
                    next = usize::from(if a == value { yes } else { no });
                }
                Op::HalfBehindIs { at, value, yes, no } => {
                    a = half(frame, behind(x, at.into())?)?;
                    next = usize::from(if a == value { yes } else { no });
                }
                Op::HalfHasAny { at, value, yes, no } => {
                    a = half(frame, at.into())?;
                    next = usize::from(if a & value != 0 { yes } else { no });
                }
                Op::Jump {
                    test,
                    value,
                    yes,
                    no,
                } => next = usize::from(if test.holds(a, value) { yes } else { no }),
                Op::JumpX { test, yes, no } => {
                    next = usize::from(if test.holds(a, x) { yes } else { no })
                }
                Op::Go(to) => next = to.into(),
                Op::Return(k) => return Some(k),
                Op::ReturnA => return Some(a),
                Op::LoadByte(at) => a = byte(frame, at as usize)?,
                Op::LoadHalf(at) => a = half(frame, at as usize)?,
                Op::LoadWord(at) => a = word(frame, at as usize)?,
                Op::LoadByteBehind(at) => a = byte(frame, behind(x, at)?)?,
                Op::LoadHalfBehind(at) => a = half(frame, behind(x, at)?)?,
                Op::LoadWordBehind(at) => a = word(frame, behind(x, at)?)?,
                Op::LoadXHeader(at) => x = (byte(frame, at as usize)? & 0xf) << 2,
                Op::LoadConstant(k) => a = k,
                Op::LoadLength => a = wire_bytes,
                Op::LoadXConstant(k) => x = k,
                Op::LoadXLength => x = wire_bytes,
                // A verified program uses only existing words; the modulo costs less than a check.
                Op::LoadScratch(at) => a = scratch[usize::from(at) % SCRATCH_WORDS],
                Op::LoadXScratch(at) => x = scratch[usize::from(at) % SCRATCH_WORDS],
                Op::Store(at) => scratch[usize::from(at) % SCRATCH_WORDS] = a,
                Op::StoreX(at) => scratch[usize::from(at) % SCRATCH_WORDS] = x,
                Op::Compute(operation, k) => a = operation.of(a, k)?,
                Op::ComputeX(operation) => a = operation.of(a, x)?,
                Op::Negate => a = a.wrapping_neg(),
                Op::CopyToX => x = a,
                Op::CopyFromX => a = x,
            }
        }
    }
}

#[inline(always)]
pub(super) fn byte(frame: &[u8], at: usize) -> Option<u32> {
    frame.get(at).map(|byte| u32::from(*byte))
}

#[inline(always)]
pub(super) fn half(frame: &[u8], at: usize) -> Option<u32> {
    let bytes = frame.get(at..)?.first_chunk()?;
    Some(u32::from(u16::from_be_bytes(*bytes)))
}

#[inline(always)]
pub(super) fn word(frame: &[u8], at: usize) -> Option<u32> {
    let bytes = frame.get(at..)?.first_chunk()?;
    Some(u32::from_be_bytes(*bytes))
}

/// Adds two offsets; none if the sum overflows, as it is beyond the end of the frame then.
#[inline(always)]
fn behind(x: u32, at: u32) -> Option<usize> {
    (x as usize).checked_add(at as usize)
}

/// Returns one operation with the effect of these two successive operations, if such an operation exists. The second
/// one stays at its index, because other operations may jump to it.
fn fused(op: Op, next: Op) -> Option<Op> {
    let Op::Jump {
        test,
        value,
        yes,
        no,
    } = next
    else {
        return None;
    };
    let place = |at: u32| u16::try_from(at).ok();
    Some(match (op, test) {
        (Op::LoadByte(at), Test::Equal) => {
            let at = place(at)?;
            Op::ByteIs { at, value, yes, no }
        }
        (Op::LoadHalf(at), Test::Equal) => {
            let at = place(at)?;
            Op::HalfIs { at, value, yes, no }
        }
        (Op::LoadWord(at), Test::Equal) => {
            let at = place(at)?;
            Op::WordIs { at, value, yes, no }
        }
        (Op::LoadHalfBehind(at), Test::Equal) => {
            let at = place(at)?;
            Op::HalfBehindIs { at, value, yes, no }
        }
        (Op::LoadHalf(at), Test::HasAny) => {
            let at = place(at)?;
            Op::HalfHasAny { at, value, yes, no }
        }
        _ => return None,
    })
}

/// Verifies instructions and returns them as operations.
pub(super) fn checked(instructions: &[FilterInstruction]) -> Result<Vec<Op>, ProgramError> {
    let length = instructions.len();
    if !(1..=MOST_INSTRUCTIONS).contains(&length) {
        return Err(ProgramError::Length(length));
    }
    let decoded = |(at, instruction)| {
        decoded(at, instruction, length).map_err(|reason| ProgramError::Instruction { at, reason })
    };
    let ops: Vec<_> = (instructions.iter().enumerate())
        .map(decoded)
        .collect::<Result<_, _>>()?;
    match ops[..] {
        [.., Op::Return(_) | Op::ReturnA] => Ok(ops),
        _ => Err(ProgramError::Instruction {
            at: length - 1,
            reason: "is the last but does not return",
        }),
    }
}

/// Decodes an instruction, with the codes of pcap/bpf.h.
fn decoded(at: usize, instruction: &FilterInstruction, length: usize) -> Result<Op, &'static str> {
    let FilterInstruction { code, jt, jf, k } = *instruction;
    let to = |skip: u32| {
        let to = at + 1 + skip as usize;
        // The index is at most 4096, so it fits.
        u16::try_from(to)
            .ok()
            .filter(|_| to < length)
            .ok_or("jumps out of the program")
    };
    let jump = |test| -> Result<Op, &'static str> {
        let (yes, no) = (to(jt.into())?, to(jf.into())?);
        Ok(Op::Jump {
            test,
            value: k,
            yes,
            no,
        })
    };
    let jump_x = |test| -> Result<Op, &'static str> {
        let (yes, no) = (to(jt.into())?, to(jf.into())?);
        Ok(Op::JumpX { test, yes, no })
    };
    let place = || match k {
        0..0x8000_0000 => Ok(k),
        _ => Err("loads from before the frame"),
    };
    let scratch = || match k {
        0..16 => Ok(k as u8),
        _ => Err("uses scratch memory out of range"),
    };
    let compute = |operation| match operation {
        Operation::Divide | Operation::Remainder if k == 0 => Err("divides by 0"),
        Operation::ShiftLeft | Operation::ShiftRight if k > 31 => {
            Err("shifts by more than 31 bits")
        }
        _ => Ok(Op::Compute(operation, k)),
    };
    match code {
        0x00 => Ok(Op::LoadConstant(k)),
        0x20 => place().map(Op::LoadWord),
        0x28 => place().map(Op::LoadHalf),
        0x30 => place().map(Op::LoadByte),
        0x40 => Ok(Op::LoadWordBehind(k)),
        0x48 => Ok(Op::LoadHalfBehind(k)),
        0x50 => Ok(Op::LoadByteBehind(k)),
        0x60 => scratch().map(Op::LoadScratch),
        0x80 => Ok(Op::LoadLength),
        0x01 => Ok(Op::LoadXConstant(k)),
        0x61 => scratch().map(Op::LoadXScratch),
        0x81 => Ok(Op::LoadXLength),
        0xb1 => place().map(Op::LoadXHeader),
        0x02 => scratch().map(Op::Store),
        0x03 => scratch().map(Op::StoreX),
        0x04 => compute(Operation::Add),
        0x14 => compute(Operation::Subtract),
        0x24 => compute(Operation::Multiply),
        0x34 => compute(Operation::Divide),
        0x44 => compute(Operation::Or),
        0x54 => compute(Operation::And),
        0x64 => compute(Operation::ShiftLeft),
        0x74 => compute(Operation::ShiftRight),
        0x94 => compute(Operation::Remainder),
        0xa4 => compute(Operation::Xor),
        0x0c => Ok(Op::ComputeX(Operation::Add)),
        0x1c => Ok(Op::ComputeX(Operation::Subtract)),
        0x2c => Ok(Op::ComputeX(Operation::Multiply)),
        0x3c => Ok(Op::ComputeX(Operation::Divide)),
        0x4c => Ok(Op::ComputeX(Operation::Or)),
        0x5c => Ok(Op::ComputeX(Operation::And)),
        0x6c => Ok(Op::ComputeX(Operation::ShiftLeft)),
        0x7c => Ok(Op::ComputeX(Operation::ShiftRight)),
        0x9c => Ok(Op::ComputeX(Operation::Remainder)),
        0xac => Ok(Op::ComputeX(Operation::Xor)),
        0x84 => Ok(Op::Negate),
        0x05 => to(k).map(Op::Go),
        0x15 => jump(Test::Equal),
        0x25 => jump(Test::Greater),
        0x35 => jump(Test::AtLeast),
        0x45 => jump(Test::HasAny),
        0x1d => jump_x(Test::Equal),
        0x2d => jump_x(Test::Greater),
        0x3d => jump_x(Test::AtLeast),
        0x4d => jump_x(Test::HasAny),
        0x06 => Ok(Op::Return(k)),
        0x16 => Ok(Op::ReturnA),
        0x07 => Ok(Op::CopyToX),
        0x87 => Ok(Op::CopyFromX),
        _ => Err("is unknown"),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const fn op(code: u16, jt: u8, jf: u8, k: u32) -> FilterInstruction {
        FilterInstruction { code, jt, jf, k }
    }

    const ACCEPT: FilterInstruction = op(0x06, 0, 0, 1);

    #[test]
    fn a_filter_operation_occupies_twelve_bytes() {
        assert_eq!(size_of::<Op>(), 12);
    }

    #[test]
    fn invalid_programs_are_refused_with_instruction_and_reason() {
        let wrong = [
            (op(0x05, 0, 0, 1), "out of the program"),
            (op(0x05, 0, 0, u32::MAX), "out of the program"),
            (op(0x15, 0, 1, 0), "out of the program"),
            (op(0x15, 255, 0, 0), "out of the program"),
            (op(0x60, 0, 0, 16), "scratch"),
            (op(0x61, 0, 0, u32::MAX), "scratch"),
            (op(0x02, 0, 0, 16), "scratch"),
            (op(0x03, 0, 0, 16), "scratch"),
            (op(0x34, 0, 0, 0), "divides"),
            (op(0x94, 0, 0, 0), "divides"),
            (op(0x64, 0, 0, 32), "shifts"),
            (op(0x74, 0, 0, 32), "shifts"),
            // SKF_AD_OFF + SKF_AD_PROTOCOL, and SKF_NET_OFF.
            (op(0x28, 0, 0, -0x1000_i32 as u32), "before the frame"),
            (op(0x30, 0, 0, -0x10_0000_i32 as u32), "before the frame"),
            (op(0xb1, 0, 0, 0x8000_0000), "before the frame"),
            (op(0xffff, 0, 0, 0), "unknown"),
            (op(0x26, 0, 0, 0), "unknown"),
        ];
        for (wrong, says) in wrong {
            let error = Program::new(&[op(0x07, 0, 0, 0), wrong, ACCEPT]).unwrap_err();
            assert!(error.to_string().contains(says), "{error}");
            assert!(error.to_string().contains(" 1 "), "{error}");
        }
        assert!(Program::new(&[ACCEPT, op(0x07, 0, 0, 0)]).is_err());
        assert_eq!(Program::new(&[]).unwrap_err(), ProgramError::Length(0));
        assert!(Program::new(&vec![ACCEPT; MOST_INSTRUCTIONS]).is_ok());
        assert!(Program::new(&vec![ACCEPT; MOST_INSTRUCTIONS + 1]).is_err());
    }

    #[test]
    fn jumps_to_the_compare_of_a_fused_instruction_skip_loading() {
        // A is 7, and a jump reaches the comparison without the load in front of it.
        let program = [
            op(0x00, 0, 0, 7),
            op(0x05, 0, 0, 1),
            op(0x28, 0, 0, 12),
            op(0x15, 0, 1, 7),
            ACCEPT,
            op(0x06, 0, 0, 0),
        ];
        assert_eq!(Program::new(&program).unwrap().run(&[0; 60], 60), 1);
        assert_eq!(Program::new(&program[2..]).unwrap().run(&[0; 60], 60), 0);
    }

    #[test]
    fn a_filter_that_loads_beyond_the_frame_rejects_the_packet() {
        for (code, at) in [
            (0x20, 57),
            (0x28, 59),
            (0x30, 60),
            (0x40, 57),
            (0x48, u32::MAX),
            (0x50, 0x8000_0000),
            (0xb1, 60),
            (0x20, 0x7fff_ffff),
        ] {
            let program = Program::new(&[op(code, 0, 0, at), ACCEPT]).unwrap();
            assert_eq!(program.run(&[0; 60], 60), 0, "{code:x} {at}");
        }
        // The length on the wire exceeds the length of the stored frame.
        let program = Program::new(&[op(0x80, 0, 0, 0), op(0x16, 0, 0, 0)]).unwrap();
        assert_eq!(program.run(&[0; 60], 1500), 1500);
    }
}
