//! Needs: the values that every frame matching a filter contains.
//!
//! The search follows all paths through a program that accept the frame, and notes the comparisons that hold on each
//! path. Each path is an alternative. A frame that satisfies no alternative cannot match the filter, and keys that no
//! alternative requires need not be searched.

use super::program::{Op, Operation, SCRATCH_WORDS, Test, byte, half, word};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Maximum number of instructions of a program that are followed, on all paths together.
const MOST_STEPS: usize = 1 << 16;
/// Maximum number of alternatives of a filter's needs.
const MOST_ALTERNATIVES: usize = 1024;

/// The needs of a filter: a matching frame satisfies all constraints of at least one alternative. An alternative
/// without constraints is satisfied by every frame; a filter without alternatives accepts none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Needs {
    alternatives: Vec<Vec<Constraint>>,
}

/// A required value of a number in the frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Constraint {
    /// Position of the number in the frame.
    pub place: Place,
    /// Size of the number.
    pub size: Size,
    /// Mask of the bits that are compared.
    pub mask: u32,
    /// Required value of the bits in `mask`; all other bits are 0.
    pub value: u32,
}

/// A position in a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Place {
    /// A fixed number of bytes after the start of the frame.
    Fixed(u32),
    /// A number of bytes after the end of the IPv4 header that starts at `header`.
    BehindIpv4 {
        /// Offset of the IPv4 header.
        header: u32,
        /// Number of bytes from the end of the IPv4 header to the position.
        offset: u32,
    },
}

/// The size of a number in a frame that a filter compares.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Size {
    /// The number is one byte long.
    Byte,
    /// The number is two bytes long, the more significant byte first.
    Half,
    /// The number is four bytes long, the most significant byte first.
    Word,
}

/// The addresses, ports and protocols that an alternative requires of a frame; `None` for each that it does not
/// require.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Endpoints {
    /// EtherType after the VLAN tags that the filter requires: `0x0800` is IPv4, `0x86dd` IPv6. For ARP (`0x0806`) and
    /// RARP (`0x8035`) the addresses are those of sender and target.
    pub ethertype: Option<u16>,
    /// Source address.
    pub source: Option<IpAddr>,
    /// Destination address.
    pub destination: Option<IpAddr>,
    /// Protocol of IPv4, or next header of IPv6.
    pub protocol: Option<u8>,
    /// Source port.
    pub source_port: Option<u16>,
    /// Destination port.
    pub destination_port: Option<u16>,
}

impl Needs {
    /// Returns needs that every frame satisfies, for programs whose needs could not be found.
    fn unknown() -> Self {
        Self {
            alternatives: vec![Vec::new()],
        }
    }

    pub(super) fn of(ops: &[Op]) -> Self {
        Walk::new(ops).needs()
    }

    /// Returns the alternatives, one of which a matching frame satisfies. No alternative requires all constraints of
    /// another one.
    pub fn alternatives(&self) -> &[Vec<Constraint>] {
        &self.alternatives
    }

    /// Returns true if every frame satisfies the needs: then the filter has to be evaluated on each.
    pub fn are_met_by_all(&self) -> bool {
        self.alternatives.iter().any(Vec::is_empty)
    }

    /// Returns true if this frame satisfies the needs. Otherwise the filter does not match the frame.
    pub fn are_met_by(&self, frame: &[u8]) -> bool {
        let is_met = |alternative: &Vec<Constraint>| alternative.iter().all(|c| c.is_met_by(frame));
        self.alternatives.iter().any(is_met)
    }

    /// Returns the addresses, ports and protocols that each alternative requires; `None` for an alternative that
    /// requires no single address, port or protocol. Prefixes and ranges are not listed.
    pub fn addresses(&self) -> Vec<Option<Endpoints>> {
        self.alternatives.iter().map(|a| endpoints(a)).collect()
    }
}

impl Constraint {
    /// Returns true if the frame satisfies the constraint.
    #[inline]
    pub fn is_met_by(&self, frame: &[u8]) -> bool {
        self.place
            .load(self.size, frame)
            .is_some_and(|number| number & self.mask == self.value)
    }

    /// Returns true if every frame that satisfies this constraint also satisfies `other`.
    fn implies(&self, other: &Self) -> bool {
        (self.place, self.size) == (other.place, other.size)
            && other.mask & !self.mask == 0
            && self.value & other.mask == other.value
    }

    /// Returns true if no frame can satisfy both this constraint and `other`.
    fn contradicts(&self, other: &Self) -> bool {
        (self.place, self.size) == (other.place, other.size)
            && (self.value ^ other.value) & self.mask & other.mask != 0
    }
}

impl Place {
    /// Returns the number of the given size at the position; none if the frame is too short.
    #[inline(always)]
    pub(super) fn load(self, size: Size, frame: &[u8]) -> Option<u32> {
        let at = match self {
            Self::Fixed(at) => at as usize,
            Self::BehindIpv4 { header, offset } => {
                let length = (*frame.get(header as usize)? & 0xf) << 2;
                (header as usize)
                    .checked_add(offset as usize)?
                    .checked_add(length.into())?
            }
        };
        match size {
            Size::Byte => byte(frame, at),
            Size::Half => half(frame, at),
            Size::Word => word(frame, at),
        }
    }
}

impl Size {
    /// Returns the mask of all bits of a number of this size.
    pub(super) const fn mask(self) -> u32 {
        match self {
            Self::Byte => 0xff,
            Self::Half => 0xffff,
            Self::Word => u32::MAX,
        }
    }
}

const TAGS: [u32; 3] = [0x8100, 0x88a8, 0x9100];
const IPV4: u16 = 0x0800;
const ARP: u16 = 0x0806;
const RARP: u16 = 0x8035;
const IPV6: u16 = 0x86dd;
/// Maximum number of VLAN tags that libpcap skips: one for each `vlan` of an expression.
const MOST_TAGS: u32 = 4;

fn endpoints(constraints: &[Constraint]) -> Option<Endpoints> {
    let number = |place, size: Size| {
        let found = |c: &&Constraint| (c.place, c.size, c.mask) == (place, size, size.mask());
        constraints.iter().find(found).map(|c| c.value)
    };
    let fixed = |at, size| number(Place::Fixed(at), size);
    // The header after the tags starts two bytes after its EtherType.
    let tag_at = |at: &u32| fixed(at - 2, Size::Half).is_some_and(|value| TAGS.contains(&value));
    let places = (0..MOST_TAGS).map(|tags| 14 + 4 * tags);
    let header = places.clone().find(|at| !tag_at(at))?;
    let ethertype = fixed(header - 2, Size::Half)? as u16;
    let ipv4 = |at| fixed(at, Size::Word).map(|word| Ipv4Addr::from(word).into());
    let ipv6 = |at| {
        let mut words = [0, 4, 8, 12]
            .iter()
            .map(|offset| fixed(at + offset, Size::Word));
        let bits = words.try_fold(0u128, |bits, word| Some(bits << 32 | u128::from(word?)))?;
        Some(Ipv6Addr::from(bits).into())
    };
    let port = |place| number(place, Size::Half).map(|port| port as u16);
    let behind = |offset| port(Place::BehindIpv4 { header, offset });
    let protocol = |at| fixed(at, Size::Byte).map(|protocol| protocol as u8);
    let found = match ethertype {
        IPV4 => Endpoints {
            ethertype: None,
            source: ipv4(header + 12),
            destination: ipv4(header + 16),
            protocol: protocol(header + 9),
            source_port: behind(0),
            destination_port: behind(2),
        },
        IPV6 => Endpoints {
            ethertype: None,
            source: ipv6(header + 8),
            destination: ipv6(header + 24),
            protocol: protocol(header + 6),
            source_port: port(Place::Fixed(header + 40)),
            destination_port: port(Place::Fixed(header + 42)),
        },
        ARP | RARP => Endpoints {
            source: ipv4(header + 14),
            destination: ipv4(header + 24),
            ..Endpoints::default()
        },
        _ => return None,
    };
    (found != Endpoints::default()).then_some(Endpoints {
        ethertype: Some(ethertype),
        ..found
    })
}

/// The value of a register or a word of scratch memory, as far as it is known without a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Known {
    Nothing,
    Constant(u32),
    /// The bits in `mask` of a number in the frame; all other bits are 0.
    Field {
        place: Place,
        size: Size,
        mask: u32,
    },
    /// The length of the IPv4 header; the value is the header's offset.
    HeaderLength(u32),
}

/// A position in a program, and the values known on the path to it.
#[derive(Debug, Clone)]
struct State {
    next: u16,
    a: Known,
    x: Known,
    scratch: [Known; SCRATCH_WORDS],
    constraints: Vec<Constraint>,
}

/// The search through all paths of a program, `yes` branches before `no` branches.
struct Walk<'a> {
    ops: &'a [Op],
    waiting: Vec<State>,
    found: Vec<Vec<Constraint>>,
    steps: usize,
}

impl<'a> Walk<'a> {
    fn new(ops: &'a [Op]) -> Self {
        let start = State {
            next: 0,
            a: Known::Constant(0),
            x: Known::Constant(0),
            scratch: [Known::Constant(0); SCRATCH_WORDS],
            constraints: Vec::new(),
        };
        Self {
            ops,
            waiting: vec![start],
            found: Vec::new(),
            steps: 0,
        }
    }

    fn needs(mut self) -> Needs {
        while let Some(state) = self.waiting.pop() {
            if let Some(constraints) = self.way(state) {
                self.keep(constraints);
            }
            let says_nothing = self.found.iter().any(Vec::is_empty);
            if says_nothing || self.steps > MOST_STEPS || self.found.len() > MOST_ALTERNATIVES {
                return Needs::unknown();
            }
        }
        Needs {
            alternatives: self.found,
        }
    }

    /// Stores an alternative (a list of constraints), unless it requires all constraints of a stored one.
    fn keep(&mut self, constraints: Vec<Constraint>) {
        let is_implied = |by: &[Constraint], all: &[Constraint]| {
            all.iter().all(|one| by.iter().any(|c| c.implies(one)))
        };
        if !(self.found.iter()).any(|found| is_implied(&constraints, found)) {
            self.found.retain(|found| !is_implied(found, &constraints));
            self.found.push(constraints);
        }
    }

    /// Follows a path to its end, and queues the paths that branch off. Returns the path's constraints if it ends by
    /// accepting the frame.
    fn way(&mut self, mut state: State) -> Option<Vec<Constraint>> {
        loop {
            let op = *self.ops.get(usize::from(state.next))?;
            state.next += 1;
            self.steps += 1;
            if self.steps > MOST_STEPS {
                return None;
            }
            match op {
                Op::Return(0) => return None,
                Op::Return(_) => return Some(state.constraints),
                Op::ReturnA if state.a == Known::Constant(0) => return None,
                Op::ReturnA => return Some(state.constraints),
                Op::Go(to) => state.next = to,
                Op::Jump {
                    test,
                    value,
                    yes,
                    no,
                } => state = self.parted(state, test, value, yes, no)?,
                Op::JumpX { test, yes, no } => match state.x {
                    Known::Constant(value) => state = self.parted(state, test, value, yes, no)?,
                    _ => {
                        self.waiting.push(State {
                            next: no,
                            ..state.clone()
                        });
                        state.next = yes;
                    }
                },
                op => state.note(op),
            }
        }
    }

    /// Continues a path after a comparison of register A with a number: returns a path on which the comparison has a
    /// possible result. If both results are possible, the path of the second result is queued.
    fn parted(&mut self, state: State, test: Test, value: u32, yes: u16, no: u16) -> Option<State> {
        let mut ways = [(yes, true), (no, false)].map(|(next, holds)| {
            let mut way = state.clone();
            way.next = next;
            way.assume(test, value, holds).then_some(way)
        });
        let [on, other] = &mut ways;
        match (on.take(), other.take()) {
            (Some(on), other) => {
                self.waiting.extend(other);
                Some(on)
            }
            (None, other) => other,
        }
    }
}

impl State {
    /// Notes that a comparison of register A with a number holds, or that it does not. Returns false if earlier
    /// comparisons exclude this result.
    fn assume(&mut self, test: Test, value: u32, holds: bool) -> bool {
        let (place, size, mask) = match self.a {
            Known::Constant(a) => return test.holds(a, value) == holds,
            Known::Field { place, size, mask } => (place, size, mask),
            Known::Nothing | Known::HeaderLength(_) => return true,
        };
        let whole = |value| Constraint {
            place,
            size,
            mask,
            value,
        };
        // Earlier comparisons on the path may already decide the result.
        let known = self
            .constraints
            .iter()
            .find(|c| (c.place, c.size) == (place, size) && mask & !c.mask == 0);
        if let Some(known) = known {
            return test.holds(known.value & mask, value) == holds;
        }
        let found = match (test, holds) {
            (Test::Equal, true) if value & !mask != 0 => return false,
            (Test::Equal, true) => whole(value),
            (Test::HasAny, true) if value & mask == 0 => return false,
            (Test::HasAny, true) if (value & mask).is_power_of_two() => Constraint {
                mask: value & mask,
                ..whole(value & mask)
            },
            (Test::HasAny, false) if value & mask == 0 => return true,
            (Test::HasAny, false) => Constraint {
                mask: value & mask,
                ..whole(0)
            },
            // An inequality gives no constraint.
            _ => return true,
        };
        if self.constraints.iter().any(|c| c.contradicts(&found)) {
            return false;
        }
        self.constraints.retain(|c| !found.implies(c));
        if !self.constraints.iter().any(|c| c.implies(&found)) {
            self.constraints.push(found);
        }
        true
    }

    /// Notes the register and memory values that are known after an operation without a jump.
    fn note(&mut self, op: Op) {
        let field = |place, size: Size| Known::Field {
            place,
            size,
            mask: size.mask(),
        };
        let fixed = |at, size| field(Place::Fixed(at), size);
        let behind = |at: u32, size| match self.x {
            Known::Constant(x) => match x.checked_add(at) {
                Some(at) => fixed(at, size),
                None => Known::Nothing,
            },
            Known::HeaderLength(header) if at >= header => field(
                Place::BehindIpv4 {
                    header,
                    offset: at - header,
                },
                size,
            ),
            _ => Known::Nothing,
        };
        match op {
            Op::LoadByte(at) => self.a = fixed(at, Size::Byte),
            Op::LoadHalf(at) => self.a = fixed(at, Size::Half),
            Op::LoadWord(at) => self.a = fixed(at, Size::Word),
            Op::LoadByteBehind(at) => self.a = behind(at, Size::Byte),
            Op::LoadHalfBehind(at) => self.a = behind(at, Size::Half),
            Op::LoadWordBehind(at) => self.a = behind(at, Size::Word),
            Op::LoadConstant(k) => self.a = Known::Constant(k),
            Op::LoadLength => self.a = Known::Nothing,
            Op::LoadScratch(at) => self.a = self.scratch[usize::from(at)],
            Op::LoadXHeader(at) => self.x = Known::HeaderLength(at),
            Op::LoadXConstant(k) => self.x = Known::Constant(k),
            Op::LoadXLength => self.x = Known::Nothing,
            Op::LoadXScratch(at) => self.x = self.scratch[usize::from(at)],
            Op::Store(at) => self.scratch[usize::from(at)] = self.a,
            Op::StoreX(at) => self.scratch[usize::from(at)] = self.x,
            Op::Compute(operation, k) => self.a = computed(self.a, operation, k),
            Op::ComputeX(operation) => {
                self.a = match self.x {
                    Known::Constant(k) => computed(self.a, operation, k),
                    _ => Known::Nothing,
                }
            }
            Op::Negate => self.a = Known::Nothing,
            Op::CopyToX => self.x = self.a,
            Op::CopyFromX => self.a = self.x,
            // Other operations do not occur here: the search itself handles jumps and returns, and operations are fused
            // only after the search.
            _ => self.a = Known::Nothing,
        }
    }
}

fn computed(a: Known, operation: Operation, k: u32) -> Known {
    match (a, operation) {
        // A division by 0 has no result, because the program then rejects the frame.
        (Known::Constant(a), _) => operation.of(a, k).map_or(Known::Nothing, Known::Constant),
        (Known::Field { place, size, mask }, Operation::And) => Known::Field {
            place,
            size,
            mask: mask & k,
        },
        _ => Known::Nothing,
    }
}
