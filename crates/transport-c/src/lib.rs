//! The deadline transport for programs in C: functions for an [`Endpoint`], declared in `include/taut_deadline.h`.
//!
//! The types to know: [`TautDeadline`], one side of a connection; [`TautDeadlineSettings`], the settings of a
//! connection. Pointers from C are converted to slices at the interface, and nothing else here is `unsafe`.
//!
//! A panic aborts the program and does not unwind into C.

use rustix::rand::{GetRandomFlags, getrandom};
use std::ffi::{c_char, c_int};
use std::{ptr, slice};
use taut_transport::wire::MOST_DATAGRAM_BYTES;
use taut_transport::{Clocks, Coding, Endpoint, Master, Notice, SendError, Settings};

/// Version of the interface between this library and programs in C.
const ABI: u32 = 1;
/// Number of messages that a repair combines.
const SYMBOLS: usize = 8;

/// One endpoint of a connection, `struct taut_deadline`.
#[derive(Debug)]
pub struct TautDeadline(Endpoint);

/// The settings of a connection, `struct taut_deadline_settings`.
#[repr(C)]
#[derive(Debug)]
pub struct TautDeadlineSettings {
    target_ns: u64,
    window_ns: u64,
    redundancy: f64,
    feedback_every: u32,
    message_bytes: u32,
    kept: u32,
    clock_error_ns: u64,
    in_time: f64,
    silence_ns: u64,
    key: *const u8,
    key_bytes: usize,
}

/// A notice for the application, `struct taut_deadline_notice`.
#[repr(C)]
#[derive(Debug)]
pub struct TautDeadlineNotice {
    kind: u32,
    share: f64,
    time_ns: u64,
}

/// The counters of one endpoint, `struct taut_deadline_counts`.
#[repr(C)]
#[derive(Debug)]
pub struct TautDeadlineCounts {
    sent: u64,
    arrived_in_time: u64,
    arrived_not: u64,
    delivered: u64,
    missed: u64,
    packets_sent: u64,
    packets_received: u64,
    malformed: u64,
    forged: u64,
}

/// Returns the bytes that C passes by address and length; the address of an empty slice is ignored.
///
/// # Safety
/// `bytes` bytes at `at` must be readable, and must not be modified while they are in use.
unsafe fn bytes_at<'a>(at: *const u8, bytes: usize) -> &'a [u8] {
    if at.is_null() || bytes == 0 {
        return &[];
    }
    // SAFETY: the caller guarantees that these bytes are readable and are not modified while in use.
    unsafe { slice::from_raw_parts(at, bytes) }
}

/// Returns the writable bytes that C passes by address and length, otherwise like [`bytes_at`].
///
/// # Safety
/// `bytes` bytes at `at` must be writable, and must not be used elsewhere during this time.
unsafe fn room_at<'a>(at: *mut u8, bytes: usize) -> &'a mut [u8] {
    if at.is_null() || bytes == 0 {
        return &mut [];
    }
    // SAFETY: the caller guarantees that these bytes are writable and are not used elsewhere during this time.
    unsafe { slice::from_raw_parts_mut(at, bytes) }
}

impl TautDeadlineSettings {
    fn settings(&self) -> Settings {
        Settings {
            target_ns: self.target_ns,
            window_ns: self.window_ns,
            coding: match self.redundancy {
                0.0 => Coding::Off,
                redundancy => Coding::Window {
                    symbols: SYMBOLS,
                    redundancy: (redundancy > 0.0).then_some(redundancy),
                },
            },
            feedback_every: self.feedback_every,
            payload_bytes: self.message_bytes as usize,
            kept: self.kept as usize,
            clocks: match self.clock_error_ns {
                u64::MAX => Clocks::Own,
                error_ns => Clocks::Shared(error_ns),
            },
            in_time: self.in_time,
            silence_ns: self.silence_ns,
            ..Settings::default()
        }
    }

    /// Returns the shared key, or none if there is none. An invalid key is an error.
    ///
    /// # Safety
    /// The key must be readable.
    unsafe fn master(&self) -> Result<Option<Master>, String> {
        // SAFETY: the caller guarantees that the key is readable.
        let key = unsafe { bytes_at(self.key, self.key_bytes) };
        if key.is_empty() {
            return Ok(None);
        }
        Master::new(key).map(Some).map_err(|e| e.to_string())
    }
}

/// Makes an endpoint; on failure, returns null and writes the reason.
///
/// # Safety
/// The settings and their key must be readable, and the buffer of the reason writable.
unsafe fn made(
    settings: *const TautDeadlineSettings,
    reason: *mut c_char,
    room: usize,
    make: impl FnOnce(Settings, Option<Master>, [u8; 16]) -> Result<Endpoint, String>,
) -> *mut TautDeadline {
    // SAFETY: the caller guarantees that the settings are readable and the buffer of the reason is writable.
    let (settings, reason) = unsafe { (&*settings, room_at(reason.cast(), room)) };
    // SAFETY: the caller guarantees that the key of the settings is readable.
    let master = unsafe { settings.master() };
    let endpoint = master.and_then(|master| {
        let mut random = [0; 16];
        // A request for so few bytes is never truncated.
        getrandom(&mut random, GetRandomFlags::empty()).map_err(|e| e.to_string())?;
        make(settings.settings(), master, random)
    });
    match endpoint {
        Ok(endpoint) => Box::into_raw(Box::new(TautDeadline(endpoint))),
        Err(why) => {
            let length = why.len().min(reason.len().saturating_sub(1));
            if let Some(end) = reason.get_mut(length) {
                *end = 0;
                reason[..length].copy_from_slice(&why.as_bytes()[..length]);
            }
            ptr::null_mut()
        }
    }
}

/// Returns the version of the interface between this library and programs in C.
#[unsafe(no_mangle)]
pub extern "C" fn taut_deadline_abi() -> u32 {
    ABI
}

/// Fills settings with the defaults.
///
/// # Safety
/// `settings` must be writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn taut_deadline_defaults(settings: *mut TautDeadlineSettings) {
    let usual = Settings::default();
    let usual = TautDeadlineSettings {
        target_ns: usual.target_ns,
        window_ns: usual.window_ns,
        redundancy: -1.0,
        feedback_every: usual.feedback_every,
        message_bytes: usual.payload_bytes as u32,
        kept: usual.kept as u32,
        clock_error_ns: u64::MAX,
        in_time: usual.in_time,
        silence_ns: usual.silence_ns,
        key: ptr::null(),
        key_bytes: 0,
    };
    // SAFETY: the caller guarantees that `settings` is writable.
    unsafe { settings.write(usual) };
}

/// Opens a connection; on failure, returns null and writes the reason.
///
/// # Safety
/// The settings and their key must be readable, and `room` bytes at `reason` writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn taut_deadline_open(
    settings: *const TautDeadlineSettings,
    now_ns: u64,
    reason: *mut c_char,
    room: usize,
) -> *mut TautDeadline {
    let open = |settings, master, random| {
        Endpoint::open(settings, master, random, now_ns).map_err(|e| e.to_string())
    };
    // SAFETY: the caller guarantees that the settings and their key are readable and the buffer of the reason is
    // writable.
    unsafe { made(settings, reason, room, open) }
}

/// Accepts a connection by its first packet; on failure, returns null and writes the reason.
///
/// # Safety
/// The settings, their key and the packet must be readable, and `room` bytes at `reason` writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn taut_deadline_accept(
    settings: *const TautDeadlineSettings,
    now_ns: u64,
    packet: *const u8,
    bytes: usize,
    reason: *mut c_char,
    room: usize,
) -> *mut TautDeadline {
    // SAFETY: the caller guarantees that the packet is readable.
    let packet = unsafe { bytes_at(packet, bytes) };
    let accept = |settings, master, random| {
        Endpoint::accept(settings, master, random, now_ns, packet).map_err(|e| e.to_string())
    };
    // SAFETY: the caller guarantees that the settings and their key are readable and the buffer of the reason is
    // writable.
    unsafe { made(settings, reason, room, accept) }
}

/// Frees an endpoint, which may be null.
///
/// # Safety
/// The endpoint was made by this library, and is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn taut_deadline_free(endpoint: *mut TautDeadline) {
    if !endpoint.is_null() {
        // SAFETY: the caller guarantees that the endpoint was made here and is not used again.
        drop(unsafe { Box::from_raw(endpoint) });
    }
}

/// Accepts a message: returns 0 if it was accepted, otherwise the reason (`TAUT_DEADLINE_FULL` and the like in the
/// header).
///
/// # Safety
/// The endpoint was made by this library and is not used elsewhere during the call; the message must be readable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn taut_deadline_send(
    endpoint: *mut TautDeadline,
    now_ns: u64,
    message: *const u8,
    bytes: usize,
) -> c_int {
    // SAFETY: the caller guarantees that the endpoint was made here and is not used elsewhere, and that the message is
    // readable.
    let (endpoint, message) = unsafe { (&mut *endpoint, bytes_at(message, bytes)) };
    match endpoint.0.send(now_ns, message) {
        Ok(_) => 0,
        Err(SendError::Full(_)) => 1,
        Err(SendError::TooLong { .. }) => 2,
        Err(SendError::Ended) => 3,
    }
}

/// Processes a packet: returns 1, or 0 if it is not of this connection.
///
/// # Safety
/// The endpoint was made by this library and is not used elsewhere during the call; the packet must be readable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn taut_deadline_receive(
    endpoint: *mut TautDeadline,
    now_ns: u64,
    packet: *const u8,
    bytes: usize,
) -> c_int {
    // SAFETY: the caller guarantees that the endpoint was made here and is not used elsewhere, and that the packet is
    // readable.
    let (endpoint, packet) = unsafe { (&mut *endpoint, bytes_at(packet, bytes)) };
    endpoint.0.receive(now_ns, packet).into()
}

/// Writes the next packet, and returns its length; 0 if there is none.
///
/// # Safety
/// The endpoint was made by this library and is not used elsewhere during the call; a whole datagram must be writable
/// at `packet`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn taut_deadline_transmit(
    endpoint: *mut TautDeadline,
    now_ns: u64,
    packet: *mut u8,
) -> usize {
    // SAFETY: the caller guarantees that the endpoint was made here and is not used elsewhere, and that a datagram fits
    // at `packet`.
    let (endpoint, packet) = unsafe {
        (
            &mut *endpoint,
            &mut *packet.cast::<[u8; MOST_DATAGRAM_BYTES]>(),
        )
    };
    endpoint.0.transmit(now_ns, packet).unwrap_or(0)
}

/// Writes the next message, truncated to `room` bytes, and returns its full length; -1 if there is none.
///
/// # Safety
/// The endpoint was made by this library and is not used elsewhere during the call; `room` bytes must be writable at
/// `message`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn taut_deadline_deliver(
    endpoint: *mut TautDeadline,
    now_ns: u64,
    message: *mut u8,
    room: usize,
) -> i64 {
    // SAFETY: the caller guarantees that the endpoint was made here and is not used elsewhere, and that `room` bytes at
    // `message` are writable.
    let (endpoint, message) = unsafe { (&mut *endpoint, room_at(message, room)) };
    let Some(delivery) = endpoint.0.deliver(now_ns) else {
        return -1;
    };
    let length = delivery.payload.len().min(message.len());
    message[..length].copy_from_slice(&delivery.payload[..length]);
    delivery.payload.len() as i64
}

/// Returns the time at which the caller must call again if no packet arrives before; `u64::MAX` if nothing will be due.
///
/// # Safety
/// The endpoint was made by this library and is not modified during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn taut_deadline_wake(endpoint: *const TautDeadline, now_ns: u64) -> u64 {
    // SAFETY: the caller guarantees that the endpoint was made here and is not modified during the call.
    let endpoint = unsafe { &*endpoint };
    endpoint.0.wake_ns(now_ns).unwrap_or(u64::MAX)
}

/// Writes the next notice; returns 1, or 0 if there is none.
///
/// # Safety
/// The endpoint was made by this library and is not used elsewhere during the call; a notice must be writable at
/// `notice`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn taut_deadline_notice(
    endpoint: *mut TautDeadline,
    notice: *mut TautDeadlineNotice,
) -> c_int {
    // SAFETY: the caller guarantees that the endpoint was made here and is not used elsewhere during the call.
    let endpoint = unsafe { &mut *endpoint };
    let Some(told) = endpoint.0.notice() else {
        return 0;
    };
    let (kind, share, time_ns) = match told {
        Notice::Connected(time_ns) => (1, 0.0, time_ns),
        Notice::OutOfReach(share) => (2, share, 0),
        Notice::InReach(share) => (3, share, 0),
        Notice::Left => (4, 0.0, 0),
        Notice::Silent => (5, 0.0, 0),
        Notice::Refused(version) => (6, version.into(), 0),
    };
    let told = TautDeadlineNotice {
        kind,
        share,
        time_ns,
    };
    // SAFETY: the caller guarantees that a notice is writable at `notice`.
    unsafe { notice.write(told) };
    1
}

/// Ends the connection; the next call of [`taut_deadline_transmit`] writes a farewell if the connection was open.
///
/// # Safety
/// The endpoint was made by this library and is not used elsewhere during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn taut_deadline_leave(endpoint: *mut TautDeadline) {
    // SAFETY: the caller guarantees that the endpoint was made here and is not used elsewhere during the call.
    unsafe { &mut *endpoint }.0.leave();
}

/// Returns 1 if the connection has ended, otherwise 0.
///
/// # Safety
/// The endpoint was made by this library and is not modified during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn taut_deadline_has_ended(endpoint: *const TautDeadline) -> c_int {
    // SAFETY: the caller guarantees that the endpoint was made here and is not modified during the call.
    unsafe { &*endpoint }.0.has_ended().into()
}

/// Writes the counters.
///
/// # Safety
/// The endpoint was made by this library and is not modified during the call; counters must be writable at `counts`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn taut_deadline_counts(
    endpoint: *const TautDeadline,
    counts: *mut TautDeadlineCounts,
) {
    // SAFETY: the caller guarantees that the endpoint was made here and is not modified during the call.
    let found = unsafe { &*endpoint }.0.counts();
    let found = TautDeadlineCounts {
        sent: found.sent.messages,
        arrived_in_time: found.arrived_in_time,
        arrived_not: found.arrived_not,
        delivered: found.received.in_time,
        missed: found.received.missed,
        packets_sent: found.packets_sent,
        packets_received: found.packets_received,
        malformed: found.malformed,
        forged: found.forged,
    };
    // SAFETY: the caller guarantees that counters are writable at `counts`.
    unsafe { counts.write(found) };
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::ffi::CStr;
    use std::mem::MaybeUninit;

    fn usual() -> TautDeadlineSettings {
        let mut settings = MaybeUninit::uninit();
        // SAFETY: the pointer leads to memory for settings, all fields of which the call writes.
        unsafe {
            taut_deadline_defaults(settings.as_mut_ptr());
            settings.assume_init()
        }
    }

    /// Returns the error for invalid settings, or an invalid packet.
    fn refused(settings: &TautDeadlineSettings, packet: Option<&[u8]>, room: usize) -> String {
        let mut reason = vec![b'?'; room + 1];
        let at: *mut c_char = reason.as_mut_ptr().cast();
        // SAFETY: the settings, the packet and the buffer stay valid during the calls.
        let made = unsafe {
            match packet {
                Some(packet) => {
                    taut_deadline_accept(settings, 0, packet.as_ptr(), packet.len(), at, room)
                }
                None => taut_deadline_open(settings, 0, at, room),
            }
        };
        assert!(made.is_null());
        assert_eq!(reason[room], b'?', "written behind the room");
        if room == 0 {
            return String::new();
        }
        let said = CStr::from_bytes_until_nul(&reason).unwrap();
        said.to_str().unwrap().to_owned()
    }

    #[test]
    fn messages_travel_in_both_directions_and_are_counted() {
        let mut settings = usual();
        let key = [7; 16];
        (settings.key, settings.key_bytes) = (key.as_ptr(), key.len());
        let mut packet = [0; MOST_DATAGRAM_BYTES];
        let mut message = [0; 4];
        let mut notice = MaybeUninit::uninit();
        let mut counts = MaybeUninit::uninit();
        // SAFETY: all pointers stay valid during the calls, all buffers have the required length, and each endpoint is
        // freed once.
        unsafe {
            let opener = taut_deadline_open(&settings, 0, ptr::null_mut(), 0);
            let bytes = taut_deadline_transmit(opener, 0, packet.as_mut_ptr());
            let answerer =
                taut_deadline_accept(&settings, 10, packet.as_ptr(), bytes, ptr::null_mut(), 0);
            assert!(bytes > 0 && !answerer.is_null());
            let mut now_ns = 20;
            let mut pass = |from, to| {
                loop {
                    now_ns += 10;
                    match taut_deadline_transmit(from, now_ns, packet.as_mut_ptr()) {
                        0 => return now_ns,
                        bytes => {
                            assert_eq!(
                                taut_deadline_receive(to, now_ns + 5, packet.as_ptr(), bytes),
                                1
                            );
                        }
                    }
                }
            };
            pass(answerer, opener);
            assert_eq!(taut_deadline_notice(opener, notice.as_mut_ptr()), 1);
            let told = notice.assume_init_ref();
            assert_eq!((told.kind, told.share), (1, 0.0));
            assert_eq!(taut_deadline_notice(opener, notice.as_mut_ptr()), 0);
            for (from, to) in [(opener, answerer), (answerer, opener)] {
                let now_ns = pass(from, to);
                assert_eq!(taut_deadline_send(from, now_ns, b"message".as_ptr(), 7), 0);
                let now_ns = pass(from, to);
                let length = taut_deadline_deliver(to, now_ns, message.as_mut_ptr(), 4);
                assert_eq!((length, &message), (7, b"mess"));
                assert_eq!(taut_deadline_deliver(to, now_ns, ptr::null_mut(), 0), -1);
                assert_eq!(
                    taut_deadline_send(from, now_ns, [0; 9999].as_ptr(), 9999),
                    2
                );
            }
            pass(opener, answerer);
            pass(answerer, opener);
            assert_eq!(taut_deadline_receive(opener, 9999, b"none".as_ptr(), 4), 0);
            taut_deadline_counts(opener, counts.as_mut_ptr());
            let counts = counts.assume_init_ref();
            assert_eq!((counts.sent, counts.delivered, counts.malformed), (1, 1, 1));
            assert!(taut_deadline_wake(opener, 9999) > 9999);
            taut_deadline_leave(opener);
            assert_eq!(taut_deadline_has_ended(opener), 0);
            pass(opener, answerer);
            assert_eq!(taut_deadline_has_ended(opener), 1);
            assert_eq!(taut_deadline_send(opener, 99_999, b"m".as_ptr(), 1), 3);
            for endpoint in [opener, answerer, ptr::null_mut()] {
                taut_deadline_free(endpoint);
            }
        }
    }

    #[test]
    fn errors_are_truncated_to_the_size_of_the_callers_buffer() {
        let mut settings = usual();
        settings.target_ns = 1;
        let whole = "target delay 1 ns: must be 10us to 4s";
        assert_eq!(refused(&settings, None, 100), whole);
        assert_eq!(refused(&settings, None, 9), whole[..8]);
        assert_eq!(refused(&settings, None, 1), "");
        assert_eq!(refused(&settings, None, 0), "");
        settings.target_ns = 10_000_000;
        (settings.key, settings.key_bytes) = ([1; 3].as_ptr(), 3);
        assert_eq!(
            refused(&settings, None, 100),
            "a key must have 16 to 64 bytes, not 3"
        );
        settings.key_bytes = 0;
        assert!(!refused(&settings, Some(b"no packet"), 100).is_empty());
        assert!(!refused(&settings, Some(b""), 100).is_empty());
        assert_eq!(taut_deadline_abi(), ABI);
    }
}
