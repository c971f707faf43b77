//! Tests of client and server in one process, with peers that die and peers that violate the protocol.
#![allow(clippy::unwrap_used)]

use super::channel::Channel;
use super::message::{MODE_ETHERNET, Message, VERSION};
use super::ring::{Descriptor, FLAG_NEXT, Ring};
use super::server::Listener;
use crate::{Batch, Link, Port, PortSpec, Resources};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use std::os::fd::{AsFd, OwnedFd};
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use taut_sys::Alarm;
use taut_sys::Mapping;
use tempfile::TempDir;

fn folder() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("memif.sock");
    (folder, path)
}

fn open(path: &Path, options: &str) -> (Box<dyn Port>, Resources) {
    let spec = PortSpec::parse(&format!("memif:{}{options}", path.display())).unwrap();
    let mut resources = Resources::for_ports(std::slice::from_ref(&spec)).unwrap();
    (spec.open(&mut resources).unwrap(), resources)
}

fn eventually(what: &str, mut true_yet: impl FnMut() -> bool) {
    let start = Instant::now();
    while !true_yet() {
        assert!(
            start.elapsed() < Duration::from_secs(10),
            "{what} did not happen"
        );
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn pair(path: &Path, ring: u32) -> [(Box<dyn Port>, Resources); 2] {
    let mut server = open(path, "");
    let mut client = open(path, &format!(",role=client,ring={ring}"));
    eventually("connecting", || {
        server.0.link().is_up() && client.0.link().is_up()
    });
    [server, client]
}

/// Sends numbered packets from one port to the other, until the ring has wrapped many times.
fn pass(from: &mut (Box<dyn Port>, Resources), to: &mut dyn Port, total: u32) {
    let (mut sent, mut received) = (0_u32, 0_u32);
    let (mut out, mut arrived) = (Batch::new(), Batch::new());
    let start = Instant::now();
    while received < total {
        assert!(
            start.elapsed() < Duration::from_secs(20),
            "{received} of {total} arrived"
        );
        if out.is_empty() {
            let n = 1 + (sent as usize * 7) % 64;
            from.1
                .pool()
                .fill(&mut out, n.min((total - sent) as usize), 60);
            for packet in out.packets_mut() {
                packet.bytes_mut().fill(sent as u8);
                packet.bytes_mut()[..4].copy_from_slice(&sent.to_be_bytes());
                sent += 1;
            }
        }
        from.0.tx(&mut out);
        to.rx(&mut arrived);
        for packet in arrived.packets() {
            assert_eq!(packet.len(), 60);
            assert_eq!(packet.bytes()[..4], received.to_be_bytes());
            assert!(packet.bytes()[4..].iter().all(|&b| b == received as u8));
            received += 1;
        }
        arrived.clear();
    }
}

#[test]
fn packets_pass_in_order_in_both_directions_while_indices_wrap() {
    let (_folder, path) = folder();
    let [mut server, mut client] = pair(&path, 64);
    pass(&mut server, &mut *client.0, 150_000);
    pass(&mut client, &mut *server.0, 150_000);
    let counters = server.0.counters();
    assert_eq!(
        (counters.tx_packets, counters.rx_packets),
        (150_000, 150_000)
    );
    assert_eq!(counters.rx_bytes, 150_000 * 60);
}

#[test]
fn a_full_ring_leaves_packets_with_the_sender() {
    let (_folder, path) = folder();
    let [server, mut client] = pair(&path, 32);
    let mut batch = Batch::new();
    client.1.pool().fill(&mut batch, 40, 60);
    assert_eq!(client.0.tx(&mut batch), 32);
    assert_eq!(batch.len(), 8);
    drop(server);
}

#[test]
fn packets_returned_out_of_order_free_the_ring_in_order() {
    let (_folder, path) = folder();
    let [mut server, mut client] = pair(&path, 32);
    let mut seed = fastrand::Rng::with_seed(7);
    let mut held = Vec::new();
    let (mut out, mut arrived) = (Batch::new(), Batch::new());
    let mut received = 0;
    while received < 5_000 {
        if out.is_empty() {
            client.1.pool().fill(&mut out, 16, 60);
        }
        client.0.tx(&mut out);
        server.0.rx(&mut arrived);
        received += arrived.len();
        let n = arrived.len();
        arrived.take_front(n, |packet| held.push(packet));
        while held.len() > seed.usize(0..28) {
            held.swap_remove(seed.usize(0..held.len()));
        }
    }
}

#[test]
fn a_server_detects_a_closed_client_and_accepts_new_clients() {
    let (_folder, path) = folder();
    let [mut server, client] = pair(&path, 64);
    drop(client);
    eventually("noticing", || !server.0.link().is_up());
    assert!(
        matches!(server.0.link(), Link::Down(why) if why.contains("waiting for a memif client"))
    );
    let mut next = open(&path, ",role=client,ring=128");
    eventually("connecting again", || {
        server.0.link().is_up() && next.0.link().is_up()
    });
    pass(&mut next, &mut *server.0, 1_000);
    pass(&mut server, &mut *next.0, 1_000);
}

#[test]
fn received_packets_keep_the_memory_of_a_closed_client_mapped() {
    let (_folder, path) = folder();
    let [mut server, mut client] = pair(&path, 64);
    let mut out = Batch::new();
    client.1.pool().fill(&mut out, 3, 60);
    out.packets_mut()
        .iter_mut()
        .for_each(|p| p.bytes_mut().fill(9));
    client.0.tx(&mut out);
    let mut arrived = Batch::new();
    eventually("arriving", || {
        server.0.rx(&mut arrived);
        arrived.len() == 3
    });
    drop(client);
    let mut next = open(&path, ",role=client");
    eventually("the client", || next.0.link().is_up());
    assert!(!server.0.link().is_up());
    assert!(
        arrived
            .packets()
            .iter()
            .all(|p| p.bytes().iter().all(|&b| b == 9))
    );
    arrived.clear();
    eventually("adopting", || server.0.link().is_up());
    pass(&mut next, &mut *server.0, 100);
}

#[test]
fn received_frames_are_copied_only_if_private_memory_is_requested() {
    let (_folder, path) = folder();
    let [mut server, mut client] = pair(&path, 64);
    pass(&mut client, &mut *server.0, 100);
    for copies in [true, false] {
        server.0.own_bytes(copies);
        let mut out = Batch::new();
        client.1.pool().fill(&mut out, 3, 60);
        client.0.tx(&mut out);
        let mut arrived = Batch::new();
        eventually("arriving", || {
            server.0.rx(&mut arrived);
            arrived.len() == 3
        });
        let in_ring = arrived.packets().iter().filter(|it| it.is_in_ring());
        assert_eq!(in_ring.count(), if copies { 0 } else { 3 });
    }
    server.0.own_bytes(true);
    pass(&mut client, &mut *server.0, 10_000);
    assert_eq!(server.1.pool().outstanding(), 0);
}

#[test]
fn a_client_detects_a_closed_server_and_connects_again() {
    let (_folder, path) = folder();
    let [server, mut client] = pair(&path, 64);
    drop(server);
    eventually("noticing", || !client.0.link().is_up());
    assert!(!path.exists());
    let mut server = open(&path, "");
    eventually("connecting again", || {
        server.0.link().is_up() && client.0.link().is_up()
    });
    pass(&mut server, &mut *client.0, 1_000);
    let pool = client.1.pool();
    drop(client.0);
    drop(client.1);
    assert_eq!(pool.outstanding(), 0, "every slot is back");
}

#[test]
fn wrong_ids_wrong_secrets_and_second_clients_are_refused() {
    let (_folder, path) = folder();
    let mut server = open(&path, ",id=5,secret=mellon");
    for (options, reason) in [
        (",role=client", "interface id 0"),
        (",role=client,id=5,secret=no", "another secret: set"),
    ] {
        let mut client = open(&path, options);
        eventually(
            reason,
            || matches!(client.0.link(), Link::Down(why) if why.contains(reason)),
        );
    }
    let mut client = open(&path, ",role=client,id=5,secret=mellon");
    eventually("connecting", || {
        server.0.link().is_up() && client.0.link().is_up()
    });
    let mut second = open(&path, ",role=client,id=5,secret=mellon");
    eventually(
        "refusing",
        || matches!(second.0.link(), Link::Down(why) if why.contains("already connected")),
    );
    pass(&mut client, &mut *server.0, 100);
}

#[test]
fn invalid_socket_paths_and_options_are_refused_with_a_reason() {
    let (folder, path) = folder();
    let opened = |spec: String| {
        let spec = PortSpec::parse(&spec).unwrap();
        let mut resources = Resources::for_ports(std::slice::from_ref(&spec)).unwrap();
        spec.open(&mut resources)
            .err()
            .map(|e| e.to_string())
            .unwrap_or_default()
    };
    let missing = folder.path().join("no/such/memif.sock");
    assert!(opened(format!("memif:{}", missing.display())).contains("mkdir"));
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    assert!(opened(format!("memif:{}", file.display())).contains("not a socket"));
    assert!(opened(format!("memif:/{}", "x".repeat(120))).contains("107 bytes"));
    assert!(opened(format!("memif:{},ring=100", path.display())).contains("power of two"));
    assert!(opened(format!("memif:{},role=master", path.display())).contains("server or client"));
    let _server = open(&path, "");
    assert!(opened(format!("memif:{}", path.display())).contains("role=client"));
    let mut client = open(&folder.path().join("nobody.sock"), ",role=client");
    eventually(
        "the note",
        || matches!(client.0.link(), Link::Down(why) if why.contains("no such socket yet")),
    );
}

#[test]
fn a_socket_left_by_a_killed_server_is_replaced() {
    let (_folder, path) = folder();
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    let [_server, _client] = pair(&path, 32);
}

/// A client implemented in the test, which can send any message.
struct Liar {
    channel: Channel<'static>,
    memory: Mapping,
    /// Interrupt file of all rings of the client.
    interrupt: OwnedFd,
}

const LIAR_LOG2: u8 = 5;
const LIAR_BYTES: usize = 1 << 16;

fn lie(path: &Path) -> Liar {
    lie_with(path, &[])
}

/// Makes a client implemented in the test with further rings to the server, at the given offsets.
fn lie_with(path: &Path, further: &[u32]) -> Liar {
    let memory = Mapping::create_small("liar", LIAR_BYTES).unwrap();
    shake_hands_with(path, further, super::interrupt_file().unwrap(), memory)
}

fn shake_hands_with(path: &Path, further: &[u32], interrupt: OwnedFd, memory: Mapping) -> Liar {
    let socket = socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC,
        None,
    )
    .unwrap();
    connect(&socket, &SocketAddrUnix::new(path).unwrap()).unwrap();
    let never: &'static OwnedFd = Box::leak(Box::new(super::interrupt_file().unwrap()));
    let channel = Channel::new(socket, never.as_fd());
    channel.receive().unwrap();
    let mut said = vec![
        (
            Message::Init {
                version: VERSION,
                id: 0,
                mode: MODE_ETHERNET,
                secret: String::new(),
                name: String::new(),
            },
            false,
        ),
        (
            Message::AddRegion {
                index: 0,
                size_bytes: LIAR_BYTES as u64,
            },
            true,
        ),
        (
            Message::AddRing {
                client_to_server: true,
                index: 0,
                region: 0,
                offset_bytes: 0,
                log2_ring_size: LIAR_LOG2,
            },
            true,
        ),
        (
            Message::AddRing {
                client_to_server: false,
                index: 0,
                region: 0,
                offset_bytes: 4096,
                log2_ring_size: LIAR_LOG2,
            },
            true,
        ),
    ];
    for (index, offset_bytes) in (1..).zip(further) {
        let ring = Message::AddRing {
            client_to_server: true,
            index,
            region: 0,
            offset_bytes: *offset_bytes,
            log2_ring_size: LIAR_LOG2,
        };
        said.push((ring, true));
    }
    let liar = Liar {
        channel,
        memory,
        interrupt,
    };
    for offset in further {
        liar.ring(*offset as usize).initialise();
    }
    liar.ring(0).initialise();
    liar.ring(4096).initialise();
    for (message, file) in said {
        let (memory, interrupt) = (liar.memory.fd(), liar.interrupt.try_clone().unwrap());
        let of_ring = matches!(message, Message::AddRing { .. });
        let fd = if of_ring {
            interrupt.as_fd()
        } else {
            memory.as_fd()
        };
        liar.channel.send(&message, file.then_some(fd)).unwrap();
        liar.channel.expect_ack().unwrap();
    }
    liar.channel
        .send(
            &Message::Connect {
                interface: String::new(),
            },
            None,
        )
        .unwrap();
    assert!(matches!(
        liar.channel.receive().unwrap().0,
        Message::Connected { .. }
    ));
    liar
}

impl Liar {
    fn ring(&self, offset: usize) -> Ring {
        // SAFETY: inside the liar's own memory, aligned, and used as a ring only.
        unsafe { Ring::at(self.memory.base().add(offset), LIAR_LOG2) }
    }
}

#[test]
fn a_frame_of_several_descriptors_is_received_complete() {
    let (_folder, path) = folder();
    let (mut server, _resources) = open(&path, "");
    let liar = lie(&path);
    eventually("connecting", || server.link().is_up());
    let ring = liar.ring(0);
    for (i, flags) in [(0_u16, FLAG_NEXT), (1, FLAG_NEXT), (2, 0), (3, 0)] {
        let offset = 8192 + u32::from(i) * 100;
        // SAFETY: inside the liar's own memory; the server reads it only after the head is published.
        unsafe {
            liar.memory
                .base()
                .add(offset as usize)
                .write_bytes(i as u8 + 1, 10)
        };
        ring.write(
            i,
            Descriptor {
                flags,
                region: 0,
                length: 10,
                offset,
            },
        );
    }
    ring.publish_head(4);
    let mut batch = Batch::new();
    assert_eq!(server.rx(&mut batch), 2);
    assert_eq!(
        batch.packets()[0].bytes(),
        [[1; 10], [2; 10], [3; 10]].concat()
    );
    assert_eq!(batch.packets()[1].bytes(), [4; 10]);
    batch.clear();
    server.rx(&mut batch);
    assert_eq!(ring.tail(), 4, "all four buffers are the client's again");
}

#[test]
fn a_handshake_with_invalid_ring_descriptions_is_refused() {
    let (_folder, path) = folder();
    let (mut server, _resources) = open(&path, "");
    for bad in [
        Message::AddRing {
            client_to_server: true,
            index: 0,
            region: 0,
            offset_bytes: LIAR_BYTES as u32 - 64,
            log2_ring_size: 5,
        },
        Message::AddRing {
            client_to_server: true,
            index: 0,
            region: 7,
            offset_bytes: 0,
            log2_ring_size: 5,
        },
        Message::AddRing {
            client_to_server: true,
            index: 0,
            region: 0,
            offset_bytes: 1,
            log2_ring_size: 5,
        },
        Message::AddRing {
            client_to_server: true,
            index: 0,
            region: 0,
            offset_bytes: 0,
            log2_ring_size: 200,
        },
        Message::AddRing {
            client_to_server: true,
            index: 0,
            region: 0,
            offset_bytes: 0,
            log2_ring_size: 4,
        },
        Message::AddRing {
            client_to_server: true,
            index: 9,
            region: 0,
            offset_bytes: 0,
            log2_ring_size: 5,
        },
        Message::AddRegion {
            index: 3,
            size_bytes: 4096,
        },
        Message::AddRegion {
            index: 1,
            size_bytes: u64::MAX,
        },
        Message::AddRegion {
            index: 1,
            size_bytes: LIAR_BYTES as u64 * 2,
        },
        Message::Connect {
            interface: String::new(),
        },
        Message::Ack,
    ] {
        let socket = socket_with(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC,
            None,
        )
        .unwrap();
        connect(&socket, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        let never = super::interrupt_file().unwrap();
        let channel = Channel::new(socket, never.as_fd());
        let memory = Mapping::create_small("liar", LIAR_BYTES).unwrap();
        channel.receive().unwrap();
        let init = Message::Init {
            version: VERSION,
            id: 0,
            mode: MODE_ETHERNET,
            secret: String::new(),
            name: String::new(),
        };
        channel.send(&init, None).unwrap();
        channel.expect_ack().unwrap();
        let fd = memory.fd();
        channel
            .send(
                &Message::AddRegion {
                    index: 0,
                    size_bytes: LIAR_BYTES as u64,
                },
                Some(fd.as_fd()),
            )
            .unwrap();
        channel.expect_ack().unwrap();
        let interrupt = super::interrupt_file().unwrap();
        let file = match bad {
            Message::AddRing { .. } => interrupt.as_fd(),
            _ => fd.as_fd(),
        };
        channel.send(&bad, Some(file)).unwrap();
        let mut answer = channel.receive();
        if matches!(answer, Ok((Message::Ack, _))) {
            let other = Message::AddRing {
                client_to_server: false,
                index: 0,
                region: 0,
                offset_bytes: 4096,
                log2_ring_size: 5,
            };
            channel.send(&other, Some(interrupt.as_fd())).unwrap();
            answer = channel.receive();
        }
        if matches!(answer, Ok((Message::Ack, _))) {
            channel
                .send(
                    &Message::Connect {
                        interface: String::new(),
                    },
                    None,
                )
                .unwrap();
            answer = channel.receive();
        }
        assert!(answer.is_err(), "{bad:?} was accepted");
        assert!(!server.link().is_up());
    }
    let mut client = open(&path, ",role=client");
    eventually("an honest client", || {
        server.link().is_up() && client.0.link().is_up()
    });
}

#[test]
fn an_interrupt_file_that_is_no_event_counter_is_refused() {
    let (_folder, path) = folder();
    let (mut server, _resources) = open(&path, "");
    let (pipe, _other_end) = rustix::pipe::pipe().unwrap();
    let memory = Mapping::create_small("liar", LIAR_BYTES).unwrap();
    let refused = std::panic::catch_unwind(AssertUnwindSafe(|| {
        shake_hands_with(&path, &[], pipe, memory)
    }));
    assert!(refused.is_err());
    eventually(
        "the reason",
        || matches!(server.link(), Link::Down(why) if why.contains("no event counter")),
    );
}

#[test]
fn a_client_with_a_decreasing_head_is_disconnected_with_reason() {
    let (_folder, path) = folder();
    let (mut server, resources) = open(&path, "");
    for sends in [false, true] {
        let liar = lie(&path);
        eventually("the connection", || server.link().is_up());
        let mut held = Batch::new();
        let ring = liar.ring(if sends { 4096 } else { 0 });
        for at in 0..8 {
            place_frame(&liar.memory, ring, at, 8192 + 256 * u32::from(at), 7);
        }
        ring.publish_head(8);
        let before = server.counters().rx_malformed;
        let mut act = |batch: &mut Batch| {
            if sends {
                resources.pool().fill(batch, 16, FRAME_BYTES as u16);
                server.tx(batch)
            } else {
                server.rx(batch)
            }
        };
        assert_eq!(act(&mut held), 8);
        ring.publish_head(1);
        assert_eq!(act(&mut Batch::new()), 0);
        eventually(
            "the end",
            || matches!(server.link(), Link::Down(why) if why.contains("a ring index went backwards")),
        );
        assert_eq!(server.counters().rx_malformed - before, 1);
        assert!(liar.channel.receive().is_err(), "the liar is told");
        if !sends {
            assert!(
                held.packets().iter().all(|p| p.bytes() == [7; 60]),
                "still there"
            );
        }
    }
    let mut client = open(&path, ",role=client");
    eventually("an honest client", || {
        server.link().is_up() && client.0.link().is_up()
    });
}

#[test]
fn a_server_with_an_invalid_tail_is_disconnected_with_reason() {
    let (_folder, path) = folder();
    let listener = Listener::bind(&path).unwrap();
    let (mut client, resources) = open(&path, ",role=client,ring=32");
    let never = super::interrupt_file().unwrap();
    // The second connection ends for the same reason.
    for _ in 0..2 {
        let channel = Channel::new(accept(&listener), never.as_fd());
        let (regions, rings) = serve_by_hand(&channel, 1);
        eventually("the connection", || client.link().is_up());
        let (_, _, offset, log2) = rings.iter().find(|ring| !ring.0).unwrap();
        // SAFETY: the ring is at the offset that the client states, in memory that stays mapped.
        let ring = unsafe { Ring::at(regions[0].base().add(*offset as usize), *log2) };
        ring.publish_tail(33);
        assert_eq!(client.rx(&mut Batch::new()), 0);
        eventually(
            "the end",
            || matches!(client.link(), Link::Down(why) if why.contains("a ring index went backwards")),
        );
    }
    drop(client);
    assert_eq!(resources.pool().outstanding(), 0);
}

#[test]
fn a_client_that_shrinks_its_memory_is_disconnected_without_harm() {
    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
    let (_folder, path) = folder();
    let (mut server, _resources) = open(&path, "");
    for held in [false, true] {
        // The file is not sealed, because packet memory on huge pages cannot be sealed either.
        let file = memfd_create("liar", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, LIAR_BYTES as u64).unwrap();
        let memory = Mapping::of_file(file, LIAR_BYTES).unwrap();
        let interrupt = super::interrupt_file().unwrap();
        let liar = shake_hands_with(&path, &[], interrupt, memory);
        eventually("the connection", || server.link().is_up());
        let mut batch = Batch::new();
        if held {
            place_frame(&liar.memory, liar.ring(0), 0, 8192, 7);
            liar.ring(0).publish_head(1);
            assert_eq!(server.rx(&mut batch), 1);
            assert_eq!(batch.packets()[0].bytes(), [7; 60]);
        }
        ftruncate(liar.memory.fd(), 0).unwrap();
        for packet in batch.packets_mut() {
            assert_eq!(packet.bytes(), [0; 60]);
            packet.bytes_mut().fill(1);
        }
        batch.clear();
        server.rx(&mut batch);
        eventually(
            "the end",
            || matches!(server.link(), Link::Down(why) if why.contains("a region became shorter")),
        );
    }
    let mut client = open(&path, ",role=client");
    eventually("an honest client", || {
        server.link().is_up() && client.0.link().is_up()
    });
}

/// Clears O_NONBLOCK of the counter's file, so that reads and writes block unless a flag of the call itself prevents
/// that. Fills the counter if requested.
fn obstruct(counter: &OwnedFd, filled: bool) {
    use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
    let flags = fcntl_getfl(counter).unwrap();
    fcntl_setfl(counter, flags | OFlags::NONBLOCK).unwrap();
    let mut value = [0; 8];
    let _ = rustix::io::read(counter, &mut value);
    if filled {
        rustix::io::write(counter, &(u64::MAX - 1).to_ne_bytes()).unwrap();
    }
    fcntl_setfl(counter, flags & !OFlags::NONBLOCK).unwrap();
}

/// Runs `work` on a separate thread, because it may never return.
fn goes_on(what: &str, work: impl FnOnce() + Send + 'static) {
    let (done, is_done) = std::sync::mpsc::channel();
    let worker = std::thread::spawn(move || {
        work();
        let _ = done.send(());
    });
    if is_done.recv_timeout(Duration::from_secs(10))
        == Err(std::sync::mpsc::RecvTimeoutError::Timeout)
    {
        panic!("{what}: the worker waits for its peer");
    }
    worker.join().unwrap();
}

#[test]
fn a_client_with_blocked_interrupt_files_delays_no_worker() {
    let (_folder, path) = folder();
    goes_on("server", move || {
        let (mut server, resources) = open(&path, "");
        let liar = lie(&path);
        eventually("the connection", || server.link().is_up());
        let offered = liar.ring(4096);
        for at in 0..32 {
            place_frame(&liar.memory, offered, at, 8192 + 256 * u32::from(at), 0);
        }
        offered.publish_head(32);
        offered.unmask_interrupts();
        for filled in [true, false] {
            obstruct(&liar.interrupt, filled);
            let mut batch = Batch::new();
            resources.pool().fill(&mut batch, 1, 60);
            assert_eq!(server.tx(&mut batch), 1);
            let mut alarm = Alarm::default();
            server.arm(&mut alarm);
            alarm.wait(Duration::from_millis(1));
            // The first call may read a pending interrupt; the second one finds none, and must not block.
            server.disarm();
            server.disarm();
        }
    });
}

#[test]
fn a_server_with_blocked_interrupt_files_delays_no_worker() {
    let (_folder, path) = folder();
    goes_on("client", move || {
        let listener = Listener::bind(&path).unwrap();
        let (mut client, resources) = open(&path, ",role=client,ring=32");
        let never = super::interrupt_file().unwrap();
        let channel = Channel::new(accept(&listener), never.as_fd());
        let (regions, rings, interrupts) = serve_with_interrupts(&channel, 1);
        eventually("the connection", || client.link().is_up());
        let (_, _, offset, log2) = rings.iter().find(|ring| ring.0).unwrap();
        // SAFETY: the ring is at the offset that the client states, in memory that stays mapped.
        let ring = unsafe { Ring::at(regions[0].base().add(*offset as usize), *log2) };
        ring.unmask_interrupts();
        for filled in [true, false] {
            interrupts.iter().for_each(|file| obstruct(file, filled));
            let mut batch = Batch::new();
            resources.pool().fill(&mut batch, 1, 60);
            assert_eq!(client.tx(&mut batch), 1);
            let mut alarm = Alarm::default();
            client.arm(&mut alarm);
            alarm.wait(Duration::from_millis(1));
            client.disarm();
            client.disarm();
        }
    });
}

#[test]
fn client_ports_close_although_the_server_accepts_no_connection() {
    let (_folder, path) = folder();
    let listener = Listener::bind(&path).unwrap();
    goes_on("closing", move || {
        // More clients than fit into the backlog.
        let clients: Vec<_> = (0..12)
            .map(|_| open(&path, ",role=client,ring=32"))
            .collect();
        std::thread::sleep(Duration::from_millis(100));
        drop(clients);
        // A full backlog must not delay the error that the path is in use either.
        let spec = PortSpec::parse(&format!("memif:{}", path.display())).unwrap();
        let mut resources = Resources::for_ports(std::slice::from_ref(&spec)).unwrap();
        assert!(spec.open(&mut resources).is_err());
    });
    drop(listener);
}

/// Writes one frame of `byte` into memory at `offset`, and its descriptor.
fn place_frame(memory: &Mapping, ring: Ring, at: u16, offset: u32, byte: u8) {
    // SAFETY: inside the mapping, and nobody else accesses these bytes before the ring announces them.
    unsafe {
        memory
            .base()
            .add(offset as usize)
            .write_bytes(byte, FRAME_BYTES as usize);
    }
    ring.write(
        at,
        Descriptor {
            flags: 0,
            region: 0,
            length: FRAME_BYTES,
            offset,
        },
    );
}

const FRAME_BYTES: u32 = 60;

fn first_bytes(batch: &Batch) -> Vec<u8> {
    batch.packets().iter().map(|p| p.bytes()[0]).collect()
}

#[test]
fn a_server_receives_from_every_ring_that_a_client_adds() {
    let (_folder, path) = folder();
    let (mut server, _resources) = open(&path, ",queues=2");
    let liar = lie_with(&path, &[8192]);
    eventually("the connection", || server.link().is_up());
    let rings = [liar.ring(0), liar.ring(8192)];
    for (number, ring) in rings.into_iter().enumerate() {
        for at in 0..3 {
            let frame = 3 * number as u16 + at;
            let offset = 16384 + 256 * u32::from(frame);
            place_frame(&liar.memory, ring, at, offset, frame as u8);
        }
        ring.publish_head(3);
    }
    let mut batch = Batch::limited(2);
    let mut seen = Vec::new();
    for _ in 0..4 {
        server.rx(&mut batch);
        seen.extend(first_bytes(&batch));
        batch.clear();
    }
    // Packets arrive round robin, and in order from each ring.
    assert_eq!(seen, [0, 1, 3, 4, 2, 5]);
    server.rx(&mut batch);
    assert_eq!(rings.map(|ring| ring.tail()), [3, 3]);
}

#[test]
fn a_client_with_more_rings_than_configured_is_refused() {
    let (_folder, path) = folder();
    let (mut server, _resources) = open(&path, "");
    let refused = std::panic::catch_unwind(|| lie_with(&path, &[8192]));
    assert!(refused.is_err() && !server.link().is_up());
}

fn accept(listener: &Listener) -> OwnedFd {
    let mut accepted = None;
    eventually("a client", || {
        accepted = listener.accept().ok();
        accepted.is_some()
    });
    accepted.unwrap()
}

/// Sends a Hello as a server with `tx_rings` sending threads.
fn greet(channel: &Channel<'_>, tx_rings: u16) {
    let hello = Message::Hello {
        name: String::new(),
        min_version: VERSION,
        max_version: VERSION,
        max_region: 8,
        max_s2c_ring: tx_rings - 1,
        max_c2s_ring: 0,
        max_log2_ring_size: 14,
    };
    channel.send(&hello, None).unwrap();
}

/// A ring that a client adds: true for client to server, index, offset in bytes, and size as a power of two.
type AddedRing = (bool, u16, u32, u8);

/// Performs the handshake as a server with `tx_rings` sending threads. Returns the memory regions, and the client's
/// rings in both directions.
fn serve_by_hand(channel: &Channel<'_>, tx_rings: u16) -> (Vec<Mapping>, Vec<AddedRing>) {
    let (regions, rings, _) = serve_with_interrupts(channel, tx_rings);
    (regions, rings)
}

/// Performs the handshake as [`serve_by_hand`] does, and returns the rings' interrupt files too.
fn serve_with_interrupts(
    channel: &Channel<'_>,
    tx_rings: u16,
) -> (Vec<Mapping>, Vec<AddedRing>, Vec<OwnedFd>) {
    greet(channel, tx_rings);
    let (mut regions, mut rings) = (Vec::new(), Vec::new());
    let mut interrupts = Vec::new();
    loop {
        match channel.receive().unwrap() {
            (Message::AddRegion { size_bytes, .. }, Some(file)) => {
                regions.push(Mapping::adopt(file, size_bytes as usize).unwrap());
            }
            (
                Message::AddRing {
                    client_to_server,
                    index,
                    offset_bytes,
                    log2_ring_size,
                    ..
                },
                Some(interrupt),
            ) => {
                rings.push((client_to_server, index, offset_bytes, log2_ring_size));
                interrupts.push(interrupt);
            }
            (Message::Connect { .. }, _) => break,
            _ => {}
        }
        channel.send(&Message::Ack, None).unwrap();
    }
    let connected = Message::Connected {
        interface: String::new(),
    };
    channel.send(&connected, None).unwrap();
    (regions, rings, interrupts)
}

#[test]
fn a_client_receives_from_every_ring_of_the_server() {
    for (asked, offered, wanted) in [(3, 2, 2), (2, 8, 2), (1, 2, 1)] {
        let (_folder, path) = folder();
        let listener = Listener::bind(&path).unwrap();
        let (mut client, resources) = open(&path, &format!(",role=client,queues={asked},ring=32"));
        let socket = accept(&listener);
        let never = super::interrupt_file().unwrap();
        let channel = Channel::new(socket, never.as_fd());
        let (regions, rings) = serve_by_hand(&channel, offered);
        eventually("the connection", || client.link().is_up());
        let from_server: Vec<_> = rings.iter().filter(|ring| !ring.0).collect();
        assert_eq!((rings.len(), from_server.len()), (1 + wanted, wanted));
        let mut batch = Batch::new();
        for (number, (_, index, offset, log2)) in from_server.into_iter().enumerate() {
            assert_eq!(usize::from(*index), number);
            // SAFETY: the ring is at the offset that the client states, in memory that stays mapped.
            let ring = unsafe { Ring::at(regions[0].base().add(*offset as usize), *log2) };
            let offered = ring.read(0);
            // SAFETY: an empty buffer that the client offers in its pool, which is region 1.
            unsafe {
                let at = regions[1].base().add(offered.offset as usize);
                at.write_bytes(number as u8, FRAME_BYTES as usize);
            }
            ring.write(
                0,
                Descriptor {
                    length: FRAME_BYTES,
                    ..offered
                },
            );
            ring.publish_tail(1);
        }
        client.rx(&mut batch);
        let all: Vec<u8> = (0..wanted as u8).collect();
        assert_eq!(first_bytes(&batch), all);
        batch.clear();
        drop(client);
        assert_eq!(resources.pool().outstanding(), 0, "every slot is back");
    }
}

#[test]
fn a_refused_ring_is_reported_with_the_queues_to_configure() {
    let (_folder, path) = folder();
    let listener = Listener::bind(&path).unwrap();
    let (mut client, _resources) = open(&path, ",role=client,queues=4");
    let socket = accept(&listener);
    let never = super::interrupt_file().unwrap();
    let channel = Channel::new(socket, never.as_fd());
    greet(&channel, 256);
    loop {
        match channel.receive().unwrap().0 {
            Message::AddRing {
                client_to_server: false,
                index: 2,
                ..
            } => break channel.disconnect("Invalid ring index"),
            _ => channel.send(&Message::Ack, None).unwrap(),
        }
    }
    eventually(
        "the note",
        || matches!(client.link(), Link::Down(why) if why.contains("Invalid ring index; it accepts at most queues=2")),
    );
}

#[test]
fn a_sleeping_receiver_wakes_for_arriving_packets_and_loses_none() {
    const PACKETS: usize = 4_000;
    for receiver_is_client in [false, true] {
        let (_folder, path) = folder();
        let options = [",role=server", ",role=client"];
        let [mine, others] = if receiver_is_client {
            [options[1], options[0]]
        } else {
            options
        };
        let sent_ones = Arc::new(AtomicUsize::new(0));
        let received_ones = Arc::new(AtomicUsize::new(0));
        let (sent, received) = (Arc::clone(&sent_ones), Arc::clone(&received_ones));
        let sender_path = path.clone();
        let first = (!receiver_is_client).then(|| open(&path, mine));
        let sender = std::thread::spawn(move || {
            let (mut port, resources) = open(&sender_path, others);
            let mut seed = fastrand::Rng::with_seed(11);
            let mut batch = Batch::new();
            let deadline = Instant::now() + Duration::from_secs(60);
            while sent.load(Ordering::Relaxed) < PACKETS && Instant::now() < deadline {
                resources.pool().fill(&mut batch, 1, 60);
                let n = port.tx(&mut batch);
                batch.clear();
                sent.fetch_add(n, Ordering::Release);
                // Sends near the moment at which the receiver falls asleep, before or after it, and sometimes long
                // after.
                let (pause, waits) = (seed.u32(0..3_000), seed.bool());
                for _ in 0..pause {
                    std::hint::spin_loop();
                }
                while n > 0
                    && waits
                    && received.load(Ordering::Acquire) < sent.load(Ordering::Relaxed)
                    && Instant::now() < deadline
                {
                    std::thread::yield_now();
                }
            }
            // The rings stay in use until all packets are received.
            while received.load(Ordering::Acquire) < PACKETS && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let (mut port, _resources) = first.unwrap_or_else(|| {
            while !path.exists() {
                std::thread::sleep(Duration::from_millis(1));
            }
            open(&path, mine)
        });
        eventually("connecting", || port.link().is_up());
        let mut alarm = Alarm::default();
        let mut batch = Batch::new();
        let (mut total, mut sleeps, mut missed) = (0, 0, 0);
        let deadline = Instant::now() + Duration::from_secs(60);
        while total < PACKETS && Instant::now() < deadline {
            total += port.rx(&mut batch);
            batch.clear();
            received_ones.store(total, Ordering::Release);
            alarm.clear();
            if port.arm(&mut alarm) && port.rx(&mut batch) == 0 {
                let begun = Instant::now();
                alarm.wait(Duration::from_millis(200));
                sleeps += 1;
                let overslept = begun.elapsed() >= Duration::from_millis(200);
                // The receiver overslept although a packet had been sent long before, so the wakeup was missed.
                missed += usize::from(overslept && sent_ones.load(Ordering::Acquire) > total);
            }
            total += batch.len();
            batch.clear();
            port.disarm();
        }
        sender.join().unwrap();
        assert_eq!(total, PACKETS);
        assert!(sleeps > 0, "the receiver never slept");
        // The first wakeup may be missed, because the sender does not know yet that it must check.
        assert!(missed <= 1, "{missed} of {sleeps} sleeps missed a packet");
    }
}

#[test]
fn a_polling_receiver_is_not_interrupted() {
    let (_folder, path) = folder();
    let [mut server, mut client] = pair(&path, 32);
    let mut alarm = Alarm::default();
    let (mut out, mut arrived) = (Batch::new(), Batch::new());
    // Arms, disarms and arms again: packets in between must not cause a wakeup.
    assert!(server.0.arm(&mut alarm));
    server.0.disarm();
    client.1.pool().fill(&mut out, 1, 60);
    assert_eq!(client.0.tx(&mut out), 1);
    assert_eq!(server.0.rx(&mut arrived), 1);
    alarm.clear();
    assert!(server.0.arm(&mut alarm));
    let begun = Instant::now();
    alarm.wait(Duration::from_millis(30));
    assert!(begun.elapsed() >= Duration::from_millis(30));
}
