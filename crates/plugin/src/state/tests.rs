#![allow(clippy::unwrap_used)]
use super::*;
use taut_port::{Mark, PoolHandle};

/// The library's action on each packet.
#[derive(Clone, Copy)]
struct Act {
    /// Number of bytes by which the start of the packet moves; negative if the packet becomes longer at the front.
    moves: isize,
    length: u16,
    verdict: u8,
    port: u8,
}

const NOTHING: Act = Act {
    moves: 0,
    length: 60,
    verdict: KEEP,
    port: USUAL_PORT,
};

struct Acting {
    act: Act,
    /// Counter of packets.
    packets: *mut u64,
    last_call: Call,
}

/// `struct taut_packet`, field by field as the header has it.
#[repr(C)]
struct HeaderPacket {
    data: *mut u8,
    length: u16,
    headroom: u16,
    tailroom: u16,
    verdict: u8,
    port: u8,
}

unsafe extern "C" fn make(settings: *const c_char, host: *const RawHost) -> *mut c_void {
    // SAFETY: settings and host are valid during the call.
    let (settings, fail, counter, abi) = unsafe {
        let settings = CStr::from_ptr(settings);
        (settings, (*host).fail, (*host).counter, (*host).abi)
    };
    let name: &[u8] = match settings.to_bytes() {
        b"no reason" => return std::ptr::null_mut(),
        b"a reason" => {
            // SAFETY: the function belongs to the host, and the reason is a text that ends with a 0.
            unsafe { fail(host, c"not\ntoday".as_ptr()) };
            return std::ptr::null_mut();
        }
        b"a bad name" => b"a\nb\0",
        b"no name" => b"\0",
        _ => b"packets\0",
    };
    let mut packets = std::ptr::null_mut();
    let times = if settings == c"many" { 70 } else { 1 };
    for number in 0..times {
        let mut name = name.to_vec();
        if number > 0 {
            name.insert(0, b'0' + number);
        }
        // SAFETY: the function belongs to the host, and the name is a text that ends with a 0.
        packets = unsafe { counter(host, name.as_ptr().cast()) };
    }
    assert!(!packets.is_null() && abi == crate::abi::ABI);
    let state = Acting {
        act: NOTHING,
        packets,
        last_call: Call::default(),
    };
    Box::into_raw(Box::new(state)).cast()
}

unsafe extern "C" fn process(
    state: *mut c_void,
    packets: *mut RawPacket,
    count: u32,
    call: *const Call,
) {
    // SAFETY: the header promises that `make` made the state, and that there are `count` packets.
    let (state, packets) = unsafe {
        (
            &mut *state.cast::<Acting>(),
            std::slice::from_raw_parts_mut(packets.cast::<HeaderPacket>(), count as usize),
        )
    };
    // SAFETY: the header promises that the call data is valid during the call. The counter lives as long as the state.
    unsafe {
        state.last_call = *call;
        *state.packets += u64::from(count);
    }
    for packet in packets {
        assert!((packet.verdict, packet.port) == (KEEP, USUAL_PORT) && packet.length == 60);
        assert!(packet.headroom == 128 && packet.tailroom > 1000);
        packet.data = packet.data.wrapping_offset(state.act.moves);
        packet.length = state.act.length;
        packet.verdict = state.act.verdict;
        packet.port = state.act.port;
        // This field is ignored.
        packet.headroom = u16::MAX;
    }
}

unsafe extern "C" fn free(state: *mut c_void) {
    // SAFETY: `make` made the state, which is freed only once.
    drop(unsafe { Box::from_raw(state.cast::<Acting>()) });
}

fn made(settings: &CStr) -> Result<State, String> {
    let calls = Calls {
        make,
        process,
        free,
    };
    State::make(calls, settings, (1, 2), 1e9)
}

fn acting(act: Act) -> State {
    let state = made(c"").unwrap();
    // SAFETY: `make` made the state, and no other code uses it.
    unsafe { (*state.state.as_ptr().cast::<Acting>()).act = act };
    state
}

const CALL: Call = Call {
    ticks: 7,
    in_port: 1,
    out_port: 0,
    ports: 3,
    direction: 1,
};

/// Applies an action to a packet of 60 bytes with the values from 0, in a buffer with headroom. Returns the batch, and
/// the counts.
fn after(act: Act) -> (Batch, Counts) {
    let pool = PoolHandle::new(2, false).unwrap();
    let mut batch = Batch::new();
    pool.fill(&mut batch, 1, 60);
    for (byte, number) in batch.packets_mut()[0].bytes_mut().iter_mut().zip(0..) {
        *byte = number;
    }
    let mut state = acting(act);
    state.process(&mut batch, &CALL, true);
    let counts = state.counts();
    assert_eq!(counts.seen, 1);
    (batch, counts)
}

#[test]
fn the_verdicts_of_a_library_are_applied_and_counted() {
    let (batch, counts) = after(NOTHING);
    assert!(!batch.is_marked() && counts.kept() == 1);
    let (batch, counts) = after(Act {
        verdict: DROP,
        ..NOTHING
    });
    assert_eq!((batch.mark(0), counts.dropped), (Some(Mark::Dropped), 1));
    let (batch, counts) = after(Act {
        verdict: PUNT,
        port: 2,
        ..NOTHING
    });
    assert_eq!(batch.mark(0), Some(Mark::Punted(Punt::Local)));
    assert_eq!((batch.egress(0), counts.punted), (Some(2), 1));
    assert_eq!(counts.kept(), 0);
}

#[test]
fn libraries_change_packet_start_and_length_only_within_the_slot() {
    let room = PoolHandle::new(1, false).unwrap().room() as u16;
    for (moves, length) in [
        (0, 1),
        (0, 59),
        (0, room),
        (-128, 60),
        (-128, 1),
        (-128, room + 128),
        (-4, 64),
        (14, 46),
        (59, 1),
        (59, 100),
        (60, 5),
        (room as isize - 1, 1),
    ] {
        let (batch, counts) = after(Act {
            moves,
            length,
            ..NOTHING
        });
        assert_eq!(counts.kept(), 1, "{moves} {length}");
        let packet = &batch.packets()[0];
        assert_eq!(packet.len(), usize::from(length), "{moves} {length}");
        assert_eq!(packet.headroom() as isize, 128 + moves);
        for (byte, place) in packet.bytes().iter().zip(moves..) {
            if (0..60).contains(&place) {
                assert_eq!(*byte as isize, place, "{moves} {length}");
            }
        }
    }
}

#[test]
fn invalid_library_results_are_counted_and_drop_the_packet() {
    let room = PoolHandle::new(1, false).unwrap().room() as u16;
    let wrong = |act: Act| {
        let (batch, counts) = after(act);
        assert_eq!(batch.mark(0), Some(Mark::Dropped));
        assert_eq!(counts.kept(), 0);
        [counts.wrong_verdict, counts.wrong_place, counts.wrong_port]
    };
    for verdict in [3, 255] {
        assert_eq!(wrong(Act { verdict, ..NOTHING }), [1, 0, 0]);
    }
    for (moves, length) in [
        (0, 0),
        (0, room + 1),
        (0, u16::MAX),
        (-129, 60),
        (-129, u16::MAX),
        (1, room),
        (room as isize, 1),
        (1 << 40, 60),
        (-(1 << 40), 60),
        (isize::MAX, 60),
        (isize::MIN, 60),
    ] {
        let act = Act {
            moves,
            length,
            ..NOTHING
        };
        assert_eq!(wrong(act), [0, 1, 0], "{moves} {length}");
    }
    for port in [3, 254] {
        assert_eq!(wrong(Act { port, ..NOTHING }), [0, 0, 1]);
    }
    // Unless the chain file allows the function to send, every port is invalid.
    let pool = PoolHandle::new(2, false).unwrap();
    let mut batch = Batch::new();
    pool.fill(&mut batch, 1, 60);
    let mut state = acting(Act { port: 0, ..NOTHING });
    state.process(&mut batch, &CALL, false);
    assert_eq!(state.counts().wrong_port, 1);
}

proptest::proptest! {
    #[test]
    fn a_packet_stays_in_its_slot_despite_arbitrary_library_results(
        moves in -200_isize..2300,
        length: u16,
        is_short: bool,
        verdict in 0_u8..4,
        port: u8,
    ) {
        let length = if is_short { length % 2300 } else { length };
        let (batch, counts) = after(Act { moves, length, verdict, port });
        let room = PoolHandle::new(1, false).unwrap().room();
        let packet = &batch.packets()[0];
        let whole = packet.headroom() + packet.len() + packet.tailroom();
        proptest::prop_assert_eq!(whole, 128 + room);
        if counts.kept() + counts.punted == 1 {
            proptest::prop_assert_eq!(packet.headroom() as isize, 128 + moves);
            proptest::prop_assert_eq!(packet.len(), usize::from(length));
        } else {
            proptest::prop_assert_eq!(batch.mark(0), Some(Mark::Dropped));
        }
    }
}

#[test]
fn dropped_and_punted_packets_and_empty_batches_bypass_the_library() {
    let pool = PoolHandle::new(64, false).unwrap();
    let mut batch = Batch::new();
    pool.fill(&mut batch, 64, 60);
    for index in [0, 7, 63] {
        batch.mark_dropped(index);
    }
    batch.mark_punted(8, Punt::Neighbour);
    let mut state = acting(Act {
        verdict: DROP,
        ..NOTHING
    });
    state.process(&mut batch, &CALL, false);
    assert_eq!(state.counts().dropped, 60);
    assert_eq!(state.counters().collect::<Vec<_>>(), [("packets", 60)]);
    // SAFETY: `make` made the state, and no other code uses it.
    let call = unsafe { (*state.state.as_ptr().cast::<Acting>()).last_call };
    assert_eq!((call.ticks, call.in_port, call.direction), (7, 1, 1));
    assert_eq!(batch.mark(8), Some(Mark::Punted(Punt::Neighbour)));
    // An empty batch causes no call.
    batch.clear();
    state.process(&mut batch, &CALL, false);
    assert_eq!(state.counts().seen, 60);
}

#[test]
fn settings_that_a_library_refuses_are_reported_with_the_reason() {
    let refused = |settings: &CStr| made(settings).err().unwrap();
    assert_eq!(refused(c"a reason"), "not today");
    assert!(refused(c"no reason").contains("gave no reason"));
    for (settings, said) in [
        (c"a bad name", "counter \"a b\": expected 1 to 60 printable"),
        (c"no name", "counter \"\": expected 1 to 60 printable"),
        (c"many", "the maximum per function is 64"),
    ] {
        let reason = refused(settings);
        assert!(
            reason.contains(said) && !reason.contains('\n'),
            "{reason:?}"
        );
    }
}
