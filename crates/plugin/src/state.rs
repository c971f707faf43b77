//! The state of a library for a worker: it processes each batch, and its verdicts are checked.

use crate::abi::{Call, Calls, DROP, KEEP, PUNT, RawHost, RawPacket, USUAL_PORT};
use crate::{Library, LibraryError};
use std::ffi::{CStr, CString, c_char, c_void};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use taut_port::{BATCH_CAPACITY, Batch, Packet, Punt};

/// Maximum number of counters of a state, and maximum length of a counter's name.
const MOST_COUNTERS: usize = 64;
const LONGEST_NAME: usize = 60;

/// Maximum length of the reason for an error that a library gives.
const LONGEST_REASON: usize = 200;

/// Packets of a state by outcome; each is counted once.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Packets that were passed to the library.
    pub seen: u64,
    /// Packets that the library dropped.
    pub dropped: u64,
    /// Packets that the library sent to the slow path.
    pub punted: u64,
    /// Packets that were dropped because of an unknown verdict.
    pub wrong_verdict: u64,
    /// Packets that were dropped because their new bounds exceed their memory.
    pub wrong_place: u64,
    /// Packets that were dropped because the chosen port does not exist, or the function may not choose a port.
    pub wrong_port: u64,
}

impl Counts {
    /// Returns the number of packets that continue in the chain: they were neither dropped nor sent to the slow path.
    pub fn kept(&self) -> u64 {
        let wrong = self.wrong_verdict + self.wrong_place + self.wrong_port;
        self.seen - self.dropped - self.punted - wrong
    }
}

/// The state of a library for one worker.
#[derive(Debug)]
pub struct State {
    state: NonNull<c_void>,
    calls: Calls,
    /// Packets of a batch in the format of the interface.
    packets: Box<[RawPacket; BATCH_CAPACITY]>,
    names: Vec<String>,
    cells: Arc<[AtomicU64]>,
    counts: Counts,
}

impl Library {
    /// Makes the library's state for one of several workers.
    ///
    /// # Errors
    /// The library rejects its settings, or its counters are invalid.
    pub fn make(
        &self,
        settings: &str,
        (worker, workers): (usize, usize),
        ticks_per_second: f64,
    ) -> Result<State, LibraryError> {
        let not_made = |reason: String| LibraryError::NotMade {
            path: self.path.clone(),
            reason,
        };
        let settings = CString::new(settings).map_err(|_| {
            not_made(
                "settings: a text for a function in C must not contain the character 0".to_string(),
            )
        })?;
        State::make(self.calls, &settings, (worker, workers), ticks_per_second).map_err(not_made)
    }
}

impl State {
    fn make(
        calls: Calls,
        settings: &CStr,
        (worker, workers): (usize, usize),
        ticks_per_second: f64,
    ) -> Result<Self, String> {
        // The additional cell is for rejected counters.
        let cells = (0..=MOST_COUNTERS).map(|_| AtomicU64::new(0)).collect();
        let mut making = Making {
            host: RawHost {
                abi: crate::abi::ABI,
                worker: worker as u32,
                workers: workers as u32,
                reserved: 0,
                ticks_per_second,
                counter,
                fail,
            },
            names: Vec::new(),
            cells,
            failure: None,
        };
        let host: *const Making = &raw mut making;
        // SAFETY: the function has the type that the header declares. The text ends with a 0, and text and host live
        // until the function returns. The host is the first field of a `Making`, as the functions of the host require.
        let state = unsafe { (calls.make)(settings.as_ptr(), host.cast()) };
        let Making {
            names,
            cells,
            failure,
            ..
        } = making;
        // From here on, dropping the `State` frees the library's state.
        let state = NonNull::new(state).map(|state| Self {
            state,
            calls,
            packets: Box::new([RawPacket::NONE; BATCH_CAPACITY]),
            names,
            cells,
            counts: Counts::default(),
        });
        match (state, failure) {
            (Some(state), None) => Ok(state),
            (_, Some(reason)) => Err(reason),
            (None, None) => {
                Err("taut_function_make returned nothing and gave no reason".to_string())
            }
        }
    }

    /// Runs the library on the packets of a batch that are not marked as dropped or punted. If `sends` is true, the
    /// library may choose an egress port for each packet; otherwise each packet with such a choice is dropped.
    #[inline]
    pub fn process(&mut self, batch: &mut Batch, call: &Call, sends: bool) {
        if batch.is_marked() {
            return self.process_some(batch, call, sends);
        }
        let count = batch.len();
        // Parsed headers are discarded here, as the library may change all of them.
        let packets = batch.packets_mut().iter_mut();
        for (raw, packet) in self.packets.iter_mut().zip(packets) {
            *raw = RawPacket::of(packet);
        }
        self.call(count, call);
        let both = self.packets.iter().zip(batch.packets());
        if both.fold(0, |all, (raw, packet)| all | raw.said(packet)) != 0 {
            for index in 0..count {
                self.settle(batch, (index, index), call, sends);
            }
        }
    }

    /// Runs the library as [`State::process`] does, for a batch that may contain packets marked as dropped or punted.
    #[inline(never)]
    fn process_some(&mut self, batch: &mut Batch, call: &Call, sends: bool) {
        let (mut places, mut count) = ([0; BATCH_CAPACITY], 0);
        for index in 0..batch.len() {
            if batch.is_kept(index) {
                self.packets[count] = RawPacket::of(batch.packet_mut(index));
                places[count] = index as u8;
                count += 1;
            }
        }
        self.call(count, call);
        for (at, index) in places[..count].iter().enumerate() {
            self.settle(batch, (at, usize::from(*index)), call, sends);
        }
    }

    /// Calls the library with the first `count` packets.
    #[inline(always)]
    fn call(&mut self, count: usize, call: &Call) {
        if count == 0 {
            return;
        }
        let state = self.state.as_ptr();
        // SAFETY: this library made the state, which is not freed yet. The array describes `count` packets. They belong
        // to a batch that the caller has borrowed exclusively until the function returns, including their headroom and
        // tailroom.
        unsafe { (self.calls.process)(state, self.packets.as_mut_ptr(), count as u32, call) };
        self.counts.seen += count as u64;
    }

    /// Applies the library's changes to a packet, if there are any and they are valid; `at` is the packet's index in
    /// the library's array, `index` its index in the batch.
    fn settle(&mut self, batch: &mut Batch, (at, index): (usize, usize), call: &Call, sends: bool) {
        let after = self.packets[at];
        if after.said(&batch.packets()[index]) == 0 {
            return;
        }
        let counts = &mut self.counts;
        let (verdict, port) = (after.verdict(), after.port());
        let is_usual = port == USUAL_PORT;
        let has_port = sends && u32::from(port) < call.ports;
        let cause = if verdict == DROP {
            &mut counts.dropped
        } else if verdict != KEEP && verdict != PUNT {
            &mut counts.wrong_verdict
        } else if !is_usual && !has_port {
            &mut counts.wrong_port
        } else if !place(&mut batch.packets_mut()[index], after.data, after.length()) {
            &mut counts.wrong_place
        } else {
            if !is_usual {
                batch.send_to(index, port);
            }
            if verdict == PUNT {
                batch.mark_punted(index, Punt::Local);
                counts.punted += 1;
            }
            return;
        };
        *cause += 1;
        batch.mark_dropped(index);
    }

    /// Returns the numbers of packets by outcome.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Returns the library's counters and their values.
    pub fn counters(&self) -> impl Iterator<Item = (&str, u64)> {
        let cells = self.cells.iter();
        // Relaxed suffices, as each counter is independent.
        let counted = cells.map(|cell| cell.load(Ordering::Relaxed));
        self.names.iter().map(String::as_str).zip(counted)
    }
}

impl Drop for State {
    fn drop(&mut self) {
        // SAFETY: the library made the state, which is freed only here and only once.
        unsafe { (self.calls.free)(self.state.as_ptr()) };
    }
}

/// Sets the packet to `length` bytes from `data` on. Returns false if these bytes exceed the packet's memory; the
/// packet must not be used then.
fn place(packet: &mut Packet, data: *const u8, length: u16) -> bool {
    let (headroom, len) = (packet.headroom() as isize, packet.len() as isize);
    let whole = headroom + len + packet.tailroom() as isize;
    let moved = (data as isize).wrapping_sub(packet.bytes().as_ptr() as isize);
    let Some(start) = headroom.checked_add(moved) else {
        return false;
    };
    // The second test ensures that the sum in the third test cannot overflow.
    if length == 0 || !(0..whole).contains(&start) || start + length as isize > whole {
        return false;
    }
    let is_placed = if moved < 0 {
        // The new frame begins `before` bytes earlier, so the old frame provides only the rest of its length.
        let before = moved.unsigned_abs() as u16;
        packet.truncate(length.saturating_sub(before));
        packet.prepend(before)
    } else {
        let beyond = (moved - len).max(0) as u16;
        (beyond == 0 || packet.append(beyond)) && packet.drop_front(moved as u16)
    };
    packet.truncate(length);
    let missing = length - packet.len() as u16;
    is_placed && packet.append(missing)
}

/// The data that the library's calls use while it creates its state. The library gets a pointer to the first field.
#[repr(C)]
struct Making {
    host: RawHost,
    names: Vec<String>,
    cells: Arc<[AtomicU64]>,
    /// The first error in the creation.
    failure: Option<String>,
}

impl Making {
    /// Returns the cell of the counter with the given name.
    fn counter(&mut self, name: &str) -> &AtomicU64 {
        if let Some(at) = self.names.iter().position(|known| known == name) {
            return &self.cells[at];
        }
        let at = self.names.len();
        let length = name.chars().count();
        let refused = if !(1..=LONGEST_NAME).contains(&length) || name.contains(char::is_control) {
            Some(format!(
                "counter \"{}\": expected 1 to {LONGEST_NAME} printable characters",
                in_one_line(name)
            ))
        } else if at == MOST_COUNTERS {
            Some(format!(
                "counter \"{name}\": the maximum per function is {MOST_COUNTERS}"
            ))
        } else {
            None
        };
        if let Some(reason) = refused {
            self.failure.get_or_insert(reason);
            return &self.cells[MOST_COUNTERS];
        }
        self.names.push(name.to_string());
        &self.cells[at]
    }
}

/// Formats a library's message as one line.
fn in_one_line(text: &str) -> String {
    let plain = |c: char| if c.is_control() { ' ' } else { c };
    let text: String = text.chars().map(plain).take(LONGEST_REASON).collect();
    text.trim().to_string()
}

/// Returns a text of a library; empty for null.
///
/// # Safety
/// The pointer is null, or the text at it ends with a 0.
unsafe fn text<'a>(text: *const c_char) -> std::borrow::Cow<'a, str> {
    if text.is_null() {
        return "".into();
    }
    // SAFETY: the pointer is not null, so the text ends with a 0, as the caller promises. The text is valid until the
    // library's call returns.
    unsafe { CStr::from_ptr(text) }.to_string_lossy()
}

/// The function `counter` in `struct taut_host` of the C header: returns the cell of the counter with the given name.
unsafe extern "C" fn counter(host: *const RawHost, name: *const c_char) -> *mut u64 {
    // SAFETY: the library passes the host that it got, which is the first field of a `Making`. No other code uses that
    // `Making` until the library returns. The name is a text that ends with a 0, as the header requires.
    let (making, name) = unsafe { (&mut *host.cast_mut().cast::<Making>(), text(name)) };
    making.counter(&name).as_ptr()
}

/// The function `fail` in `struct taut_host` of the C header: records why the library cannot create its state.
unsafe extern "C" fn fail(host: *const RawHost, reason: *const c_char) {
    // SAFETY: host and reason satisfy the same conditions as host and name in `counter`.
    let (making, reason) = unsafe { (&mut *host.cast_mut().cast::<Making>(), text(reason)) };
    making.failure.get_or_insert(in_one_line(&reason));
}

#[cfg(test)]
mod tests;
