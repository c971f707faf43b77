//! A batch: up to 64 packets that travel together, with marks for dropped, punted and redirected packets.

use crate::packet::Packet;
use crate::pool::PoolHandle;
use crate::pool::slots::Pool;
use taut_wire::Headers;

/// The maximum number of packets in a batch, which is the number of bits in its masks.
pub const BATCH_CAPACITY: usize = 64;

/// The reason why a packet goes to the slow path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Punt {
    /// The packet is an ARP request (RFC 826) or neighbour solicitation (RFC 4861) for one of the port's own addresses.
    Neighbour,
    /// The packet is for one of the port's own addresses.
    Local,
    /// The packet's destination or tunnel is unknown to the function, and its sender is to be notified.
    Unknown,
    /// The packet exceeds the MTU of its link, and its sender is to be notified. The value is this MTU in bytes, which
    /// is compared with the length from the IP header on.
    TooBig(u16),
    /// The packet's hop limit is exceeded, and its sender is to be notified.
    TimeExceeded,
    /// The MAC address of the packet's next hop is not known.
    Unresolved,
    /// The packet's destination is unreachable, and its sender is to be notified.
    Unreachable,
    /// The packet is administratively prohibited, and its sender is to be notified.
    Prohibited,
    /// A rule rejects the packet, and both its sender and its receiver are to be notified.
    Rejected,
    /// The packet is a fragment that waits for the other fragments of its datagram.
    Fragment,
    /// The packet is the last missing fragment of its datagram, so that all its fragments can continue.
    LastFragment,
    /// A function has made the packet, and the slow-path handler of this function is to send it through the given port.
    Made {
        /// Index of the egress port.
        port: u8,
    },
}

impl Punt {
    /// Returns the cause as a 20-bit number, which can be stored with a frame.
    #[must_use]
    pub const fn bits(self) -> u32 {
        match self {
            Self::Neighbour => 0,
            Self::Local => 1,
            Self::Unknown => 2,
            Self::TooBig(bytes) => 3 | (bytes as u32) << 4,
            Self::TimeExceeded => 4,
            Self::Unresolved => 5,
            Self::Unreachable => 6,
            Self::Prohibited => 7,
            Self::Fragment => 8,
            Self::Rejected => 9,
            Self::LastFragment => 11,
            Self::Made { port } => 10 | (port as u32) << 4,
        }
    }

    /// Returns the cause that [`Punt::bits`] encoded as this number.
    #[must_use]
    pub const fn of_bits(bits: u32) -> Self {
        match bits & 0xf {
            0 => Self::Neighbour,
            2 => Self::Unknown,
            3 => Self::TooBig((bits >> 4) as u16),
            4 => Self::TimeExceeded,
            5 => Self::Unresolved,
            6 => Self::Unreachable,
            7 => Self::Prohibited,
            8 => Self::Fragment,
            9 => Self::Rejected,
            11 => Self::LastFragment,
            10 => Self::Made {
                port: (bits >> 4) as u8,
            },
            _ => Self::Local,
        }
    }
}

/// A mark that a function has put on a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mark {
    /// The packet is to be dropped.
    Dropped,
    /// The packet is for the slow path.
    Punted(Punt),
}

/// All marks of a packet in its batch, for functions that delay packets or change their order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Marks {
    mark: Option<Mark>,
    /// Index of the function that punted the packet.
    punter: u8,
    egress: Option<u8>,
    priority: Option<u8>,
    /// Egress ports of the requested copies of the packet.
    copies: Vec<u8>,
}

impl Marks {
    /// Returns true if the packet is marked neither as dropped nor as punted, as [`Batch::is_kept`] does.
    pub fn is_kept(&self) -> bool {
        self.mark.is_none()
    }

    /// Returns the priority that a function has set, if any.
    pub fn priority(&self) -> Option<u8> {
        self.priority
    }
}

/// The priority value of a packet for which no function has set a priority.
pub const NO_PRIORITY: u8 = u8::MAX;

/// The value in `egress` of a packet for which no function has chosen a port.
const USUAL: u8 = u8::MAX;

/// The maximum number of copies that can be requested for the packets of one batch.
const MOST_COPIES: usize = 4 * BATCH_CAPACITY;

/// Up to 64 packets in order of arrival, and masks: dropped, punted, redirected.
///
/// A function never reorders or re-allocates a batch. It marks packets; the worker removes the marked ones once per
/// batch, after the last function (drop-out batching, Gallenmüller 2021, section 5.3.1). A packet without a chosen
/// egress port leaves through the partner of its ingress port ([`crate::Pairs`]).
// The fields that every batch needs are in one cache line.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Batch {
    packets: Vec<Packet>,
    /// Maximum number of packets in this batch, at most [`BATCH_CAPACITY`].
    limit: u32,
    /// Index of the function that processes the batch now, in the worker's list of functions.
    stage: u8,
    dropped: u64,
    punted: u64,
    /// Mask of packets for which a function has set a priority or an egress port. The ports are in `egress`.
    redirected: u64,
    /// Mask of packets with entries in `copies`.
    copied: u64,
    egress: [u8; BATCH_CAPACITY],
    /// Causes of the punted packets, by packet index.
    causes: [Punt; BATCH_CAPACITY],
    /// Indices of the functions that punted the packets, by packet index.
    punters: [u8; BATCH_CAPACITY],
    /// Pairs of a packet's index and the egress port of one of its copies, sorted by packet index.
    copies: Vec<(u8, u8)>,
    /// Mask of packets with a priority in `priorities`; each is also in `redirected`.
    prioritised: u64,
    priorities: [u8; BATCH_CAPACITY],
    /// Mask of packets whose entries in `headers` are valid, because the packets have not changed since their headers
    /// were parsed. The bits after the last packet are 0.
    read: u64,
    headers: [Headers; BATCH_CAPACITY],
    /// Arrival times by packet index, from the timestamps of the port; unknown unless there is one per packet.
    arrivals: Vec<u64>,
}

impl Default for Batch {
    fn default() -> Self {
        Self::new()
    }
}

impl Batch {
    /// Makes an empty batch. Only this call allocates memory; filling the batch does not.
    pub fn new() -> Self {
        Self::limited(BATCH_CAPACITY)
    }

    /// Makes an empty batch for at most `limit` packets (clamped to 1 to [`BATCH_CAPACITY`]). A worker uses it to limit
    /// its burst.
    pub fn limited(limit: usize) -> Self {
        Self {
            packets: Vec::with_capacity(BATCH_CAPACITY),
            limit: limit.clamp(1, BATCH_CAPACITY) as u32,
            stage: 0,
            dropped: 0,
            punted: 0,
            redirected: 0,
            copied: 0,
            egress: [0; BATCH_CAPACITY],
            causes: [Punt::Local; BATCH_CAPACITY],
            punters: [0; BATCH_CAPACITY],
            copies: Vec::with_capacity(MOST_COPIES),
            prioritised: 0,
            priorities: [0; BATCH_CAPACITY],
            read: 0,
            headers: [Headers::default(); BATCH_CAPACITY],
            arrivals: Vec::with_capacity(BATCH_CAPACITY),
        }
    }

    /// Sets the maximum number of packets, as in [`Batch::limited`], but never below the current number.
    #[inline(always)]
    pub fn set_limit(&mut self, limit: usize) {
        self.limit = limit.clamp(self.packets.len().max(1), BATCH_CAPACITY) as u32;
    }

    /// Sets the index of the function that processes the batch from now on, in the worker's list of functions. Packets
    /// marked as punted after this call count as punted by that function.
    #[inline(always)]
    pub fn set_stage(&mut self, number: u8) {
        self.stage = number;
    }

    /// Returns the number of packets in the batch, including marked ones.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.packets.len()
    }

    /// Returns true if the batch contains no packets.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// Returns the number of packets that can still be added.
    #[inline(always)]
    pub fn room(&self) -> usize {
        self.limit as usize - self.packets.len()
    }

    /// Appends a packet. A full batch drops it, so ports check [`Batch::room`] first.
    #[inline(always)]
    pub fn push(&mut self, packet: Packet) {
        debug_assert!(self.room() > 0, "pushed onto a full batch");
        let len = self.packets.len();
        if len < self.limit as usize {
            // SAFETY: both vectors are made with a capacity no less than the limit and never shrink.
            unsafe {
                self.packets.as_mut_ptr().add(len).write(packet);
                self.packets.set_len(len + 1);
            }
        }
    }

    /// Appends the packets that `fill` writes after the last packet, at most [`Batch::room`]. Returns their number, as
    /// `fill` returns it.
    ///
    /// # Safety
    /// `fill` must write as many packets as it returns, at most [`Batch::room`].
    #[cfg(dpdk)]
    #[inline(always)]
    pub(crate) unsafe fn append_with(&mut self, fill: impl FnOnce(*mut Packet) -> usize) -> usize {
        let len = self.packets.len();
        // SAFETY: the vector is made with the full capacity and never shrinks, so the memory after its last packet is
        // in it; the appended packets are initialised, as the caller guarantees.
        unsafe {
            let n = fill(self.packets.as_mut_ptr().add(len));
            debug_assert!(n <= BATCH_CAPACITY - len);
            self.packets.set_len(len + n);
            n
        }
    }

    /// Sets the arrival times of the packets from the timestamps of their port ([`crate::Port::arrival_stamps`]), in
    /// units of `unit_ns` ns since 1970. The times stay unknown unless there is one timestamp per packet.
    #[inline]
    pub fn set_arrivals(&mut self, stamps: &[u64], unit_ns: u64) {
        self.arrivals.clear();
        if stamps.len() == self.packets.len() {
            self.arrivals.extend(stamps.iter().map(|it| it * unit_ns));
        }
    }

    /// Returns the arrival times of the packets by index, ns since 1970, 0 if unknown. The list is empty if the port
    /// does not stamp packets, or if functions have added packets.
    #[inline(always)]
    pub fn arrivals(&self) -> &[u64] {
        match self.arrivals.len() == self.packets.len() {
            true => &self.arrivals,
            false => &[],
        }
    }

    /// Returns all packets in order of arrival, including marked ones.
    #[inline(always)]
    pub fn packets(&self) -> &[Packet] {
        &self.packets
    }

    /// Returns all packets, to change in place.
    #[inline(always)]
    pub fn packets_mut(&mut self) -> &mut [Packet] {
        self.read = 0;
        &mut self.packets
    }

    /// Returns packet `index`, to change in place.
    ///
    /// # Panics
    /// Panics if there is no packet `index`.
    #[inline(always)]
    pub fn packet_mut(&mut self, index: usize) -> &mut Packet {
        self.read &= !(1 << (index & 63));
        &mut self.packets[index]
    }

    /// Returns a packet as [`Batch::packet_mut`] does, for changes that do not affect [`Headers`], such as MAC
    /// addresses, payloads and checksums. The parsed headers stay available to later functions.
    ///
    /// # Panics
    /// Panics if there is no packet `index`.
    #[inline(always)]
    pub fn packet_mut_but_headers(&mut self, index: usize) -> &mut Packet {
        &mut self.packets[index]
    }

    /// Parses the headers of all packets in one pass, which is faster than parsing each on request.
    #[inline(always)]
    pub fn read_headers(&mut self) {
        let all = u64::MAX
            .checked_shl(self.packets.len() as u32)
            .map_or(u64::MAX, |above| !above);
        if self.read == all {
            return;
        }
        let read = self.read;
        for (index, (packet, headers)) in self.packets.iter().zip(&mut self.headers).enumerate() {
            if read & (1 << index) == 0 {
                *headers = Headers::of(packet.bytes());
            }
        }
        self.read = all;
    }

    /// Returns the headers of packet `index`. They are parsed at the first call, and again only after a change of the
    /// packet.
    ///
    /// # Panics
    /// Panics if there is no packet `index`.
    #[inline(always)]
    pub fn headers(&mut self, index: usize) -> Headers {
        let (bit, place) = (1 << (index & 63), index & 63);
        if self.read & bit == 0 {
            self.headers[place] = Headers::of(self.packets[index].bytes());
            self.read |= bit;
        }
        // A peer may change a packet in its own memory.
        debug_assert!(
            self.packets[index].is_in_ring()
                || self.headers[place] == Headers::of(self.packets[index].bytes()),
            "changed by whoever said that it would not"
        );
        self.headers[place]
    }

    /// Marks packet `index` to be dropped.
    #[inline(always)]
    pub fn mark_dropped(&mut self, index: usize) {
        debug_assert!(index < self.packets.len());
        self.dropped |= 1 << (index & 63);
    }

    /// Marks packet `index` as punted: for the slow path, with the given cause.
    #[inline(always)]
    pub fn mark_punted(&mut self, index: usize, cause: Punt) {
        debug_assert!(index < self.packets.len());
        self.causes[index & 63] = cause;
        self.punters[index & 63] = self.stage;
        self.punted |= 1 << (index & 63);
    }

    /// Returns the cause for which packet `index` was punted. This batch must be one that [`Batch::settle`] filled.
    #[inline(always)]
    pub fn cause(&self, index: usize) -> Punt {
        self.causes[index & 63]
    }

    /// Returns the index of the function ([`Batch::set_stage`]) that punted packet `index`. This batch must be one that
    /// [`Batch::settle`] filled with punted packets.
    #[inline(always)]
    pub fn punter(&self, index: usize) -> u8 {
        self.punters[index & 63]
    }

    /// Sets the egress port of packet `index`; a later call replaces the port of an earlier call. Port numbers are at
    /// most 254.
    #[inline(always)]
    pub fn send_to(&mut self, index: usize, port: u8) {
        debug_assert!(index < self.packets.len());
        self.egress[index & 63] = port;
        self.redirected |= 1 << (index & 63);
    }

    /// Sets the priority, from 0 to 7 (the highest), of packet `index` and of its copies in the queues of full ports.
    /// The default is the priority in the packet's headers.
    #[inline]
    pub fn set_priority(&mut self, index: usize, priority: u8) {
        debug_assert!(index < self.packets.len());
        let (bit, index) = (1 << (index & 63), index & 63);
        if self.redirected & bit == 0 {
            self.redirected |= bit;
            self.egress[index] = USUAL;
        }
        self.prioritised |= bit;
        self.priorities[index] = priority;
    }

    /// Requests a copy of packet `index`, as it is after the last function, for `port`. Returns false if the limit of
    /// copies is reached; then no copy is made.
    #[inline]
    pub fn copy_to(&mut self, index: usize, port: u8) -> bool {
        debug_assert!(index < self.packets.len());
        if self.copies.len() == MOST_COPIES {
            return false;
        }
        let index = index & 63;
        let at = self
            .copies
            .partition_point(|(copied, _)| usize::from(*copied) <= index);
        self.copies.insert(at, (index as u8, port));
        self.copied |= 1 << index;
        true
    }

    /// Returns the egress port that a function has chosen for packet `index`, if any.
    #[inline(always)]
    pub fn egress(&self, index: usize) -> Option<u8> {
        let is_redirected = self.redirected & (1 << (index & 63)) != 0;
        let egress = self.egress[index & 63];
        (is_redirected && egress != USUAL).then_some(egress)
    }

    /// Returns the egress port of packet `index`, which is `usual` unless a function has chosen one.
    #[inline(always)]
    pub fn leaves_through(&self, index: usize, usual: usize) -> usize {
        self.egress(index).map_or(usual, usize::from)
    }

    /// Returns true if any packet is marked as dropped or punted, or has an egress port, a priority or a requested
    /// copy.
    #[inline(always)]
    pub fn is_marked(&self) -> bool {
        self.dropped | self.punted | self.redirected | self.copied != 0
    }

    /// Returns true if no packet has an egress port of its own, a priority or a requested copy, so that all leave
    /// together through the default port.
    #[inline(always)]
    pub fn goes_together(&self) -> bool {
        self.redirected | self.copied == 0
    }

    /// Removes all packets in order, and passes each to `each`. The further arguments of `each` are the packet's egress
    /// port (None for the default), its priority ([`NO_PRIORITY`] without one) and its copies (pairs of packet index
    /// and egress port).
    #[inline(always)]
    pub fn scatter(&mut self, mut each: impl FnMut(Packet, Option<u8>, u8, &[(u8, u8)])) {
        let (redirected, egress) = (self.redirected, self.egress);
        let to = |index: usize| {
            let egress = egress[index & 63];
            (redirected & (1 << index) != 0 && egress != USUAL).then_some(egress)
        };
        let (prioritised, priorities) = (std::mem::take(&mut self.prioritised), self.priorities);
        let priority = |index: usize| match prioritised & (1 << index) {
            0 => NO_PRIORITY,
            _ => priorities[index & 63],
        };
        if self.copied == 0 {
            self.redirected = 0;
            let mut index = 0;
            self.take_front(self.packets.len(), |packet| {
                each(packet, to(index), priority(index), &[]);
                index += 1;
            });
            return;
        }
        let mut copies = std::mem::take(&mut self.copies);
        let mut rest = copies.as_slice();
        for (index, packet) in self.packets.drain(..).enumerate() {
            let of_it = rest.iter().take_while(|(of, _)| usize::from(*of) == index);
            let (of_it, others) = rest.split_at(of_it.count());
            rest = others;
            each(packet, to(index), priority(index), of_it);
        }
        copies.clear();
        self.copies = copies;
        self.redirected = 0;
        self.copied = 0;
        self.read = 0;
        self.arrivals.clear();
    }

    /// Returns true if packet `index` is marked neither as dropped nor as punted.
    #[inline(always)]
    pub fn is_kept(&self, index: usize) -> bool {
        (self.dropped | self.punted) & (1 << (index & 63)) == 0
    }

    /// Returns the mark of packet `index`; None if the packet has no mark.
    #[inline]
    pub fn mark(&self, index: usize) -> Option<Mark> {
        let bit = 1 << (index & 63);
        if self.dropped & bit != 0 {
            Some(Mark::Dropped)
        } else if self.punted & bit != 0 {
            Some(Mark::Punted(self.causes[index & 63]))
        } else {
            None
        }
    }

    /// Returns all marks of packet `index`: drop or punt, egress port, priority and copies.
    pub fn marks(&self, index: usize) -> Marks {
        let bit = 1 << (index & 63);
        let of_it = |(of, _): &&(u8, u8)| usize::from(*of) == index;
        let copies = self.copies.iter().filter(of_it).map(|(_, port)| *port);
        Marks {
            mark: self.mark(index),
            punter: match self.punted & bit {
                0 => 0,
                _ => self.punters[index & 63],
            },
            egress: self.egress(index),
            priority: (self.prioritised & bit != 0).then_some(self.priorities[index & 63]),
            copies: copies.collect(),
        }
    }

    /// Appends a packet as [`Batch::push`] does, with all its marks. Returns the number of requested copies above the
    /// limit, which are not made.
    pub fn push_marked(&mut self, packet: Packet, marks: &Marks) -> usize {
        let index = self.packets.len();
        self.push(packet);
        if self.packets.len() == index {
            return marks.copies.len();
        }
        match marks.mark {
            Some(Mark::Dropped) => self.mark_dropped(index),
            Some(Mark::Punted(cause)) => {
                self.mark_punted(index, cause);
                self.punters[index & 63] = marks.punter;
            }
            None => {}
        }
        if let Some(port) = marks.egress {
            self.send_to(index, port);
        }
        if let Some(priority) = marks.priority {
            self.set_priority(index, priority);
        }
        let ports = marks.copies.iter();
        ports.filter(|port| !self.copy_to(index, **port)).count()
    }

    /// Returns the number of packets marked as dropped.
    #[inline(always)]
    pub fn dropped(&self) -> u32 {
        self.dropped.count_ones()
    }

    /// Removes all packets marked as dropped or punted. Dropped packets release their memory. Punted packets are
    /// appended to `slow`, or dropped if `slow` is full. Returns the number of dropped packets, including punted
    /// packets for which `slow` had no space.
    #[inline]
    pub fn settle(&mut self, slow: &mut Batch) -> usize {
        let len = self.packets.len();
        let there = u64::MAX
            .checked_shl(len as u32)
            .map_or(u64::MAX, |above| !above);
        let marked = (self.dropped | self.punted) & there;
        if marked == 0 {
            return 0;
        }
        let (mut rest, mut lost) = (marked, 0);
        let mut kept = rest.trailing_zeros() as usize;
        let start = self.packets.as_mut_ptr();
        // SAFETY: 0 is below the capacity. Should something below panic, packets leak instead of being dropped twice.
        unsafe { self.packets.set_len(0) };
        while rest != 0 {
            let index = rest.trailing_zeros() as usize;
            rest &= rest - 1;
            // SAFETY: the index is below the previous length, so the packet is initialised; each marked packet is read
            // once.
            let packet = unsafe { start.add(index).read() };
            if self.dropped & (1 << index) == 0 && slow.room() > 0 {
                slow.causes[slow.packets.len() & 63] = self.causes[index & 63];
                slow.punters[slow.packets.len() & 63] = self.punters[index & 63];
                slow.push(packet);
            } else {
                lost += 1;
            }
            // The packets up to the next marked packet move forward and close the gap.
            let next = len.min(rest.trailing_zeros() as usize);
            let count = next - index - 1;
            // SAFETY: both ranges are below the previous length, and the overwritten packets have been moved out.
            unsafe { std::ptr::copy(start.add(index + 1), start.add(kept), count) };
            kept += count;
        }
        // SAFETY: the first `kept` packets are initialised, each of them once.
        unsafe { self.packets.set_len(kept) };
        self.dropped = 0;
        self.punted = 0;
        self.read = 0;
        if !self.arrivals.is_empty() {
            self.settle_arrivals(len, marked);
        }
        if !self.goes_together() {
            self.move_ways(marked);
        }
        lost
    }

    /// Removes the arrival times of the packets in mask `marked`, which were removed from this batch of `len` packets.
    #[cold]
    fn settle_arrivals(&mut self, len: usize, marked: u64) {
        if self.arrivals.len() != len {
            return self.arrivals.clear();
        }
        let mut index = 0_u32;
        self.arrivals.retain(|_| {
            let stays = marked & (1 << index) == 0;
            index += 1;
            stays
        });
    }

    /// Removes the arrival times of the first `n` of `len` packets.
    #[cold]
    fn shift_arrivals(&mut self, n: usize, len: usize) {
        if self.arrivals.len() == len {
            self.arrivals.drain(..n);
        } else {
            self.arrivals.clear();
        }
    }

    /// Appends the arrival times of the first `n` packets to those of `other`; 0 where they are unknown.
    #[cold]
    fn copy_arrivals(&self, n: usize, other: &mut Self) {
        let there = other.packets.len();
        other.arrivals.resize(there, 0);
        match self.arrivals() {
            [] => other.arrivals.resize(there + n, 0),
            all => other.arrivals.extend_from_slice(&all[..n]),
        }
    }

    /// Removes the egress ports and priorities of the packets in mask `marked`, which were removed from this batch, so
    /// that the lists have one entry for each remaining packet.
    #[cold]
    fn move_ways(&mut self, marked: u64) {
        let place = |index: u32| (!marked & ((1 << index) - 1)).count_ones();
        let mut rest = std::mem::take(&mut self.redirected) & !marked;
        while rest != 0 {
            let index = rest.trailing_zeros();
            rest &= rest - 1;
            self.redirected |= 1 << place(index);
            self.egress[place(index) as usize] = self.egress[index as usize];
        }
        let mut rest = std::mem::take(&mut self.prioritised) & !marked;
        while rest != 0 {
            let index = rest.trailing_zeros();
            rest &= rest - 1;
            self.prioritised |= 1 << place(index);
            self.priorities[place(index) as usize] = self.priorities[index as usize];
        }
        self.copied = 0;
        let copied = &mut self.copied;
        self.copies.retain_mut(|(of, _)| {
            // Copies are made only of packets that leave.
            let stays = marked & (1 << *of) == 0;
            if stays {
                *of = place(u32::from(*of)) as u8;
                *copied |= 1 << *of;
            }
            stays
        });
    }

    /// Moves up to `n` packets from the front of this batch to the end of `other`, up to its capacity; returns their
    /// number.
    #[inline(always)]
    pub fn move_up_to(&mut self, n: usize, other: &mut Batch) -> usize {
        let n = n.min(self.len()).min(other.room());
        if !(self.arrivals.is_empty() && other.arrivals.is_empty()) {
            self.copy_arrivals(n, other);
        }
        self.take_front(n, |packet| other.push(packet));
        n
    }

    /// Moves each packet, in order, to the end of the batch of `parts` whose index `part` contains at the packet's
    /// index. Parsed headers and arrival times move with the packets. No packet may have marks. Packets for which there
    /// is no batch, or no space in it, are dropped; returns their number.
    #[inline]
    pub fn deal(&mut self, part: &[u8; BATCH_CAPACITY], parts: &mut [Batch]) -> usize {
        debug_assert!(!self.is_marked(), "marks would be lost");
        let stamped = !self.arrivals().is_empty();
        let mut lost = 0;
        for (index, packet) in self.packets.drain(..).enumerate() {
            let at = index & (BATCH_CAPACITY - 1);
            let to = parts.get_mut(usize::from(part[at]));
            let Some(to) = to.filter(|to| to.room() > 0) else {
                lost += 1;
                continue;
            };
            let end = to.len();
            if stamped && to.arrivals.len() == end {
                to.arrivals.push(self.arrivals[at]);
            }
            if self.read & (1 << at) != 0 {
                to.headers[end & (BATCH_CAPACITY - 1)] = self.headers[at];
                to.read |= 1 << end;
            }
            to.push(packet);
        }
        self.read = 0;
        self.arrivals.clear();
        lost
    }

    /// Removes the first `n` packets and passes them to `each`, in order. Ports use it to take the packets that they
    /// send.
    #[inline(always)]
    pub fn take_front(&mut self, n: usize, mut each: impl FnMut(Packet)) {
        let len = self.packets.len();
        let n = n.min(len);
        self.read = 0;
        if !self.arrivals.is_empty() {
            self.shift_arrivals(n, len);
        }
        // SAFETY: 0 is below the capacity; should `each` panic, the packets leak instead of being
        // dropped twice.
        unsafe { self.packets.set_len(0) };
        let start = self.packets.as_mut_ptr();
        for i in 0..n {
            // SAFETY: the first `len` are initialised, and the vector no longer owns them.
            each(unsafe { start.add(i).read() });
        }
        // SAFETY: the rest is initialised, moves to the front and is owned again; `self` is borrowed
        // mutably, so `each` cannot have changed the vector.
        unsafe {
            if n < len {
                std::ptr::copy(start.add(n), start, len - n);
            }
            self.packets.set_len(len - n);
        }
    }

    /// Removes all packets and passes them to `each`, in order, with all their marks.
    pub fn take_marked(&mut self, mut each: impl FnMut(Packet, Marks)) {
        let mut index = 0;
        self.packets.reverse();
        while let Some(packet) = self.packets.pop() {
            each(packet, self.marks(index));
            index += 1;
        }
        self.clear();
    }

    /// Releases the memory of the first `n` packets. Ports use it for packets that they have copied.
    #[inline(always)]
    pub fn drop_front(&mut self, n: usize) {
        let len = self.packets.len();
        let n = n.min(len);
        self.read = 0;
        if !self.arrivals.is_empty() {
            self.shift_arrivals(n, len);
        }
        let start = self.packets.as_mut_ptr();
        // SAFETY: 0 is below the capacity; the first `len` packets are initialised and the vector no longer owns them.
        // The packets after the first `n` move to the front and are owned again.
        unsafe {
            self.packets.set_len(0);
            Pool::give_back_all(std::slice::from_raw_parts(start.cast(), n));
            if n < len {
                std::ptr::copy(start.add(n), start, len - n);
            }
            self.packets.set_len(len - n);
        }
    }

    /// Releases the memory of all packets.
    #[inline(always)]
    pub fn clear(&mut self) {
        self.drop_front(self.packets.len());
        self.dropped = 0;
        self.punted = 0;
        self.redirected = 0;
        self.prioritised = 0;
        if self.copied != 0 {
            self.copied = 0;
            self.copies.clear();
        }
    }
}

impl PoolHandle {
    /// Appends up to `n` packets of `len` bytes to `batch`; fewer if the pool is empty or the batch is full.
    #[inline]
    pub fn fill(&self, batch: &mut Batch, n: usize, len: u16) -> usize {
        let n = n.min(batch.room());
        for taken in 0..n {
            match self.take(len) {
                Some(packet) => batch.push(packet),
                None => return taken,
            }
        }
        n
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::PoolHandle;

    #[test]
    fn punt_causes_are_encoded_in_20_bits_and_decoded_unchanged() {
        let causes = [
            Punt::Neighbour,
            Punt::Local,
            Punt::TooBig(u16::MAX),
            Punt::Made { port: 0 },
            Punt::Made { port: 254 },
        ];
        for cause in causes {
            assert!(cause.bits() < 1 << 20, "{cause:?}");
            assert_eq!(Punt::of_bits(cause.bits()), cause);
        }
    }

    #[test]
    fn packets_leave_a_batch_in_order_with_their_marks() {
        let pool = PoolHandle::new(8, false).unwrap();
        let mut batch = numbered(&pool, 4);
        batch.mark_dropped(1);
        batch.send_to(2, 9);
        batch.copy_to(3, 5);
        let expected: Vec<_> = (0..4).map(|index| batch.marks(index)).collect();
        let mut taken = Vec::new();
        batch.take_marked(|packet, marks| taken.push((packet.bytes()[0], marks)));
        let expected: Vec<_> = (0..4).zip(expected).collect();
        assert_eq!(taken, expected);
        assert!(batch.is_empty() && !batch.is_marked());
    }

    fn numbered(pool: &PoolHandle, n: u8) -> Batch {
        let mut batch = Batch::new();
        pool.fill(&mut batch, usize::from(n), 1);
        for (i, packet) in batch.packets_mut().iter_mut().enumerate() {
            packet.bytes_mut()[0] = i as u8;
        }
        batch
    }

    fn numbers(batch: &Batch) -> Vec<u8> {
        batch.packets().iter().map(|p| p.bytes()[0]).collect()
    }

    #[test]
    fn arrival_timestamps_that_do_not_match_the_packets_are_discarded() {
        let pool = PoolHandle::new(64, false).unwrap();
        let mut batch = numbered(&pool, 3);
        assert!(batch.arrivals().is_empty());
        batch.set_arrivals(&[1, 0], 1000);
        assert!(batch.arrivals().is_empty());
        batch.set_arrivals(&[1, 0, 3], 1000);
        batch.mark_dropped(1);
        assert_eq!(batch.arrivals(), [1000, 0, 3000]);
        batch.push(pool.take(1).unwrap());
        assert!(batch.arrivals().is_empty());
        batch.settle(&mut Batch::new());
        assert!(batch.arrivals().is_empty());
        for take in [
            |batch: &mut Batch| batch.drop_front(1),
            |batch: &mut Batch| batch.take_front(1, drop),
            |batch: &mut Batch| batch.scatter(|_, _, _, _| ()),
        ] {
            let mut batch = numbered(&pool, 2);
            batch.set_arrivals(&[1, 2], 1);
            take(&mut batch);
            let missing = 2 - batch.len();
            pool.fill(&mut batch, missing, 1);
            assert_eq!((batch.len(), batch.arrivals()), (2, &[][..]));
        }
    }

    #[test]
    fn arrival_timestamps_follow_their_packets() {
        let pool = PoolHandle::new(64, false).unwrap();
        let mut batch = numbered(&pool, 5);
        batch.set_arrivals(&[1, 2, 3, 4, 5], 1);
        batch.mark_dropped(1);
        batch.settle(&mut Batch::new());
        assert_eq!(batch.arrivals(), [1, 3, 4, 5]);
        let mut other = numbered(&pool, 1);
        assert_eq!(batch.move_up_to(2, &mut other), 2);
        assert_eq!(other.arrivals(), [0, 1, 3]);
        assert_eq!(batch.arrivals(), [4, 5]);
        batch.drop_front(1);
        assert_eq!(batch.arrivals(), [5]);
        let mut without = numbered(&pool, 1);
        assert_eq!(without.move_up_to(9, &mut other), 1);
        assert_eq!(other.arrivals(), [0, 1, 3, 0]);
    }

    #[test]
    fn packets_are_dealt_to_batches_in_order_with_arrival_times() {
        let pool = PoolHandle::new(64, false).unwrap();
        let mut batch = numbered(&pool, 6);
        batch.set_arrivals(&[1, 2, 3, 4, 5, 6], 1);
        batch.read_headers();
        let mut parts = [Batch::new(), Batch::limited(2)];
        let mut to = [0; BATCH_CAPACITY];
        to[..6].copy_from_slice(&[1, 0, 1, 1, 7, 0]);
        // The second batch has space for two packets, and there is no batch 7.
        assert_eq!(batch.deal(&to, &mut parts), 2);
        assert_eq!(
            [&parts[0], &parts[1]].map(numbers),
            [vec![1, 5], vec![0, 2]]
        );
        assert_eq!([parts[0].arrivals(), parts[1].arrivals()], [[2, 6], [1, 3]]);
        assert_eq!(parts[0].read, 3);
        assert!(batch.is_empty() && batch.arrivals().is_empty());
        assert_eq!(pool.outstanding(), 4);
        parts[0].clear();
        assert!(parts[0].arrivals().is_empty());
    }

    #[test]
    fn settle_preserves_packet_order_on_fast_and_slow_path() {
        let pool = PoolHandle::new(64, false).unwrap();
        let mut batch = numbered(&pool, 6);
        batch.mark_dropped(0);
        batch.mark_punted(2, Punt::Neighbour);
        batch.mark_dropped(3);
        batch.mark_punted(3, Punt::Local);
        batch.mark_punted(5, Punt::Local);
        let mut slow = Batch::new();
        assert_eq!(batch.settle(&mut slow), 2);
        assert_eq!(numbers(&batch), [1, 4]);
        assert_eq!(numbers(&slow), [2, 5]);
        let causes = [0, 1].map(|index| slow.cause(index));
        assert_eq!(causes, [Punt::Neighbour, Punt::Local]);
        assert_eq!(pool.outstanding(), 4);
        assert!(batch.is_kept(0) && batch.is_kept(1));
    }

    proptest::proptest! {
        #[test]
        fn settle_agrees_with_processing_packets_one_by_one(
            len in 0_u8..=64,
            dropped: u64,
            punted: u64,
            sparse: bool,
            before in 0_u8..=64,
        ) {
            let thin = |mask: u64| if sparse { mask & mask.rotate_left(7) & mask.rotate_left(29) } else { mask };
            let (dropped, punted) = (thin(dropped), thin(punted));
            let pool = PoolHandle::new(128, false).unwrap();
            let (mut slow, mut batch) = (numbered(&pool, before), numbered(&pool, len));
            let has = |mask: u64, index: u8| mask >> index & 1 == 1;
            let (mut kept, mut taken, mut lost) = (Vec::new(), numbers(&slow), 0);
            for index in 0..len {
                if has(dropped, index) {
                    batch.mark_dropped(index.into());
                }
                if has(punted, index) {
                    batch.mark_punted(index.into(), Punt::Neighbour);
                }
                match (has(dropped, index), has(punted, index)) {
                    (false, false) => kept.push(index),
                    (false, true) if taken.len() < 64 => taken.push(index),
                    _ => lost += 1,
                }
            }
            proptest::prop_assert_eq!(batch.settle(&mut slow), lost);
            proptest::prop_assert_eq!(numbers(&batch), kept);
            proptest::prop_assert_eq!(numbers(&slow), taken);
            proptest::prop_assert!(!batch.is_marked());
            proptest::prop_assert_eq!(pool.outstanding(), batch.len() + slow.len());
        }
    }

    #[test]
    fn marks_move_with_packets_to_another_batch() {
        let pool = PoolHandle::new(64, false).unwrap();
        let mut batch = numbered(&pool, 6);
        batch.mark_dropped(0);
        batch.mark_punted(1, Punt::TooBig(1400));
        batch.send_to(2, 7);
        batch.set_priority(3, 0);
        batch.send_to(4, 9);
        batch.set_priority(4, 6);
        assert!(batch.copy_to(4, 1) && batch.copy_to(4, 2));
        let marks: Vec<Marks> = (0..6).map(|index| batch.marks(index)).collect();
        assert_eq!(marks[5], Marks::default());
        assert_eq!(marks.iter().filter(|it| it.is_kept()).count(), 4);
        // The packets are pushed in another order.
        let mut taken = Vec::new();
        batch.take_front(6, |packet| taken.push(packet));
        batch.clear();
        for (packet, marks) in taken.into_iter().zip(&marks).rev() {
            assert_eq!(batch.push_marked(packet, marks), 0);
        }
        assert_eq!(numbers(&batch), [5, 4, 3, 2, 1, 0]);
        let moved: Vec<Marks> = (0..6).map(|index| batch.marks(5 - index)).collect();
        assert_eq!(moved, marks);
        let mut ways = Vec::new();
        batch.settle(&mut Batch::new());
        batch.scatter(|_, port, priority, copies| ways.push((port, priority, copies.to_vec())));
        let copies = [1, 2].map(|port| (1, port));
        assert_eq!(ways[1], (Some(9), 6, copies.to_vec()));
        assert_eq!(ways[2], (None, 0, vec![]));
        assert_eq!(ways[3], (Some(7), NO_PRIORITY, vec![]));
    }

    #[test]
    fn packets_keep_their_egress_port_when_other_packets_are_removed() {
        let pool = PoolHandle::new(64, false).unwrap();
        let mut batch = numbered(&pool, 5);
        assert!(batch.goes_together());
        batch.send_to(1, 7);
        batch.send_to(3, 8);
        batch.send_to(3, 9);
        assert!(batch.copy_to(4, 2) && batch.copy_to(0, 3) && batch.copy_to(4, 4));
        batch.mark_dropped(0);
        batch.mark_punted(2, Punt::Local);
        assert_eq!(batch.settle(&mut Batch::new()), 1);
        assert_eq!([0, 1, 2].map(|i| batch.egress(i)), [Some(7), Some(9), None]);
        let mut seen = Vec::new();
        batch.scatter(|packet, to, _, copies| {
            let copies: Vec<u8> = copies.iter().map(|(_, to)| *to).collect();
            seen.push((packet.bytes()[0], to, copies));
        });
        assert_eq!(
            seen,
            [
                (1, Some(7), vec![]),
                (3, Some(9), vec![]),
                (4, None, vec![2, 4])
            ]
        );
        assert!(batch.is_empty() && batch.goes_together());
        assert_eq!(pool.outstanding(), 0);
    }

    #[test]
    fn headers_are_parsed_again_after_packets_change_leave_or_move() {
        let pool = PoolHandle::new(8, false).unwrap();
        let (mut batch, mut other) = (Batch::new(), Batch::new());
        let push = |batch: &mut Batch, src_port: u16| {
            let flow = taut_wire::UdpFlow {
                src_port,
                ..taut_wire::UdpFlow::default()
            };
            let frame = flow.frame(64).unwrap();
            let mut packet = pool.take(frame.len() as u16).unwrap();
            packet.bytes_mut().copy_from_slice(&frame);
            batch.push(packet);
        };
        let ports = |batch: &mut Batch| {
            let all = 0..batch.len();
            all.map(|i| batch.headers(i).ports().unwrap().0)
                .collect::<Vec<_>>()
        };
        // The offset of the lower byte of the source port.
        const PORT_AT: usize = 35;
        (1..4).for_each(|port| push(&mut batch, port));
        assert_eq!(ports(&mut batch), [1, 2, 3]);
        batch.packet_mut(1).bytes_mut()[PORT_AT] = 9;
        assert_eq!(ports(&mut batch), [1, 9, 3]);
        batch.packet_mut_but_headers(0).bytes_mut()[0] = 2;
        assert_eq!(ports(&mut batch), [1, 9, 3]);
        batch.mark_dropped(0);
        batch.settle(&mut other);
        assert_eq!(ports(&mut batch), [9, 3]);
        batch.move_up_to(1, &mut other);
        assert_eq!((ports(&mut batch), ports(&mut other)), (vec![3], vec![9]));
        batch.packets_mut()[0].bytes_mut()[PORT_AT] = 4;
        assert_eq!(ports(&mut batch), [4]);
        batch.clear();
        push(&mut batch, 5);
        assert_eq!(ports(&mut batch), [5]);
        batch.copy_to(0, 1);
        batch.scatter(|_, _, _, _| {});
        push(&mut batch, 6);
        assert_eq!(ports(&mut batch), [6]);
    }

    #[test]
    fn copies_of_a_packet_beyond_the_maximum_are_refused() {
        let pool = PoolHandle::new(64, false).unwrap();
        let mut batch = numbered(&pool, 1);
        assert!((0..MOST_COPIES).all(|_| batch.copy_to(0, 1)));
        assert!(!batch.copy_to(0, 1));
        batch.clear();
        assert!(batch.goes_together());
    }

    #[test]
    fn punted_packets_beyond_the_slow_path_capacity_count_as_dropped() {
        let pool = PoolHandle::new(128, false).unwrap();
        let mut slow = numbered(&pool, 63);
        let mut batch = numbered(&pool, 2);
        batch.mark_punted(0, Punt::Local);
        batch.mark_punted(1, Punt::Local);
        assert_eq!(batch.settle(&mut slow), 1);
        assert_eq!(slow.len(), 64);
        assert_eq!(pool.outstanding(), 64);
    }

    #[test]
    fn the_last_packet_of_a_full_batch_can_be_dropped() {
        let pool = PoolHandle::new(64, false).unwrap();
        let mut batch = numbered(&pool, 64);
        batch.mark_dropped(63);
        assert_eq!(batch.settle(&mut Batch::new()), 1);
        assert_eq!(batch.len(), 63);
    }

    #[test]
    fn a_batch_accepts_packets_up_to_its_limit() {
        let pool = PoolHandle::new(64, false).unwrap();
        let mut batch = Batch::limited(3);
        assert_eq!(pool.fill(&mut batch, 64, 1), 3);
        assert_eq!((batch.len(), batch.room()), (3, 0));
        assert_eq!(Batch::limited(0).room(), 1);
        assert_eq!(Batch::limited(1000).room(), BATCH_CAPACITY);
    }

    #[test]
    fn moving_packets_stops_when_the_target_batch_is_full() {
        let pool = PoolHandle::new(128, false).unwrap();
        let mut a = numbered(&pool, 10);
        let mut b = numbered(&pool, 60);
        assert_eq!(a.move_up_to(9, &mut b), 4);
        assert_eq!(numbers(&a), [4, 5, 6, 7, 8, 9]);
    }
}
