//! Sends messages as datagrams of QUIC (RFC 9221), over quinn's state machine and one UDP socket, without a runtime.

use bytes::{Bytes, BytesMut};
use quinn_proto::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn_proto::{
    ClientConfig, Connection, ConnectionHandle, DatagramEvent, Endpoint, EndpointConfig, Event,
    ServerConfig, TransportConfig,
};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::{DigitallySignedStruct, SignatureScheme};
use std::collections::{HashMap, VecDeque};
use std::error::Error;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};
use taut_sys::Alarm;
use taut_traffic::messages::{Messages, Received};

/// The application protocol (ALPN) that client and server use.
const PROTOCOL: &[u8] = b"taut";
/// Length of a UDP payload that fits into a frame of Ethernet, bytes.
const MTU: u16 = 1_472;
/// Number of datagrams that are received before due datagrams are sent.
const TAKEN_AT_A_TIME: usize = 64;
/// The largest number of messages that wait for a connection.
const MOST_WAITING: usize = 64;
/// Time below which the program spins instead of sleeping, as with the other transports of `taut probe`.
const SPIN: Duration = Duration::from_micros(20);

#[derive(Debug)]
struct Peer {
    connection: Connection,
    address: SocketAddr,
    /// Messages that were sent before the connection was established.
    waiting: VecDeque<Bytes>,
    is_over: bool,
}

/// QUIC connections over one UDP socket.
#[derive(Debug)]
pub struct QuicMessages {
    socket: UdpSocket,
    endpoint: Endpoint,
    client: ClientConfig,
    peers: HashMap<ConnectionHandle, Peer>,
    by_address: HashMap<SocketAddr, ConnectionHandle>,
    arrived: VecDeque<(Bytes, SocketAddr)>,
    alarm: Alarm,
    packet: Vec<u8>,
    out: Vec<u8>,
}

impl QuicMessages {
    /// Binds a socket to an address for connections, with a new certificate.
    ///
    /// # Errors
    /// The address is in use, or no cryptography is available.
    pub fn open(bind: SocketAddr) -> Result<Self, Box<dyn Error>> {
        let socket = UdpSocket::bind(bind)?;
        socket.set_nonblocking(true)?;
        let provider = Arc::new(ring::default_provider());
        let mut transport = TransportConfig::default();
        transport.initial_mtu(MTU);
        let transport = Arc::new(transport);
        let mut server = ServerConfig::with_crypto(Arc::new(served(&provider)?));
        server.transport_config(Arc::clone(&transport));
        let mut client = ClientConfig::new(Arc::new(trusting(&provider)?));
        client.transport_config(transport);
        let config = Arc::new(EndpointConfig::default());
        Ok(Self {
            socket,
            endpoint: Endpoint::new(config, Some(Arc::new(server)), false, None),
            client,
            peers: HashMap::new(),
            by_address: HashMap::new(),
            arrived: VecDeque::new(),
            alarm: Alarm::default(),
            packet: vec![0; 1 << 16],
            out: Vec::with_capacity(usize::from(MTU)),
        })
    }

    /// Receives the datagrams that have arrived.
    fn take_in(&mut self) -> io::Result<()> {
        for _ in 0..TAKEN_AT_A_TIME {
            let (length, from) = match self.socket.recv_from(&mut self.packet) {
                Ok(it) => it,
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                Err(e) => return Err(e),
            };
            let now = Instant::now();
            let packet = BytesMut::from(&self.packet[..length]);
            self.out.clear();
            let event = self
                .endpoint
                .handle(now, from, None, None, packet, &mut self.out);
            match event {
                Some(DatagramEvent::ConnectionEvent(handle, event)) => {
                    if let Some(peer) = self.peers.get_mut(&handle) {
                        peer.connection.handle_event(event);
                    }
                }
                Some(DatagramEvent::NewConnection(incoming)) => {
                    let address = incoming.remote_address();
                    match self.endpoint.accept(incoming, now, &mut self.out, None) {
                        Ok((handle, connection)) => self.add(handle, connection, address),
                        Err(e) => {
                            if let Some(answer) = e.response {
                                self.send(answer.size, answer.destination);
                            }
                        }
                    }
                }
                Some(DatagramEvent::Response(answer)) => {
                    self.send(answer.size, answer.destination);
                }
                None => {}
            }
        }
        Ok(())
    }

    fn send(&self, length: usize, to: SocketAddr) {
        // Datagrams that the kernel does not accept are lost, as on the path.
        let _ = self.socket.send_to(&self.out[..length], to);
    }

    fn add(&mut self, handle: ConnectionHandle, connection: Connection, address: SocketAddr) {
        self.by_address.insert(address, handle);
        self.peers.insert(
            handle,
            Peer {
                connection,
                address,
                waiting: VecDeque::new(),
                is_over: false,
            },
        );
    }

    /// Runs the timers of all connections and sends the datagrams that are due.
    fn drive(&mut self) {
        for (handle, peer) in &mut self.peers {
            let mut is_busy = true;
            while is_busy {
                is_busy = false;
                let now = Instant::now();
                let connection = &mut peer.connection;
                if connection.poll_timeout().is_some_and(|due| due <= now) {
                    connection.handle_timeout(now);
                    is_busy = true;
                }
                self.out.clear();
                while let Some(packet) = connection.poll_transmit(now, 1, &mut self.out) {
                    // Datagrams that the kernel does not accept are lost, as on the path.
                    let bytes = &self.out[..packet.size];
                    let _ = self.socket.send_to(bytes, packet.destination);
                    self.out.clear();
                    is_busy = true;
                }
                while let Some(event) = connection.poll_endpoint_events() {
                    if let Some(event) = self.endpoint.handle_event(*handle, event) {
                        connection.handle_event(event);
                    }
                    is_busy = true;
                }
                while let Some(event) = connection.poll() {
                    is_busy = true;
                    match event {
                        Event::DatagramReceived => {
                            while let Some(message) = connection.datagrams().recv() {
                                self.arrived.push_back((message, peer.address));
                            }
                        }
                        Event::Connected => {
                            for message in peer.waiting.drain(..) {
                                let _ = connection.datagrams().send(message, true);
                            }
                        }
                        Event::ConnectionLost { .. } => peer.is_over = true,
                        _ => {}
                    }
                }
            }
        }
        self.peers.retain(|handle, peer| {
            let stays = !peer.connection.is_drained();
            if !stays && self.by_address.get(&peer.address) == Some(handle) {
                self.by_address.remove(&peer.address);
            }
            stays
        });
    }
}

impl Messages for QuicMessages {
    fn address(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    fn send_to(&mut self, message: &[u8], to: SocketAddr) -> io::Result<()> {
        let known = self.by_address.get(&to).copied();
        let open = known.filter(|it| self.peers.get(it).is_some_and(|peer| !peer.is_over));
        let handle = match open {
            Some(handle) => handle,
            None => {
                let client = self.client.clone();
                let opened = self.endpoint.connect(Instant::now(), client, to, "taut");
                let (handle, connection) = opened.map_err(io::Error::other)?;
                self.add(handle, connection, to);
                handle
            }
        };
        let Some(peer) = self.peers.get_mut(&handle) else {
            return Err(ErrorKind::NotConnected.into());
        };
        let message = Bytes::copy_from_slice(message);
        if peer.connection.is_handshaking() {
            if peer.waiting.len() >= MOST_WAITING {
                return Err(ErrorKind::WouldBlock.into());
            }
            peer.waiting.push_back(message);
        } else {
            let sent = peer.connection.datagrams().send(message, true);
            sent.map_err(|e| io::Error::new(ErrorKind::InvalidInput, e))?;
        }
        self.drive();
        Ok(())
    }

    fn receive(&mut self, message: &mut [u8]) -> io::Result<Option<Received>> {
        if self.arrived.is_empty() {
            let taken = self.take_in();
            self.drive();
            taken?;
        }
        let next = self.arrived.pop_front();
        Ok(next.map(|(bytes, from)| {
            let length = bytes.len().min(message.len());
            message[..length].copy_from_slice(&bytes[..length]);
            Received {
                length,
                from,
                stamp: None,
            }
        }))
    }

    fn wait(&mut self, at_most: Duration) {
        if !self.arrived.is_empty() {
            return;
        }
        let now = Instant::now();
        let due = self
            .peers
            .values_mut()
            .filter_map(|it| it.connection.poll_timeout())
            .min();
        let time = due.map_or(at_most, |due| {
            due.saturating_duration_since(now).min(at_most)
        });
        if time >= SPIN {
            self.alarm.clear();
            self.alarm.watch(self.socket.as_fd());
            self.alarm.wait(time);
        }
        let _ = self.take_in();
        self.drive();
    }

    fn leave(&mut self) {
        for peer in self.peers.values_mut() {
            peer.connection
                .close(Instant::now(), 0_u32.into(), Bytes::new());
        }
        self.drive();
    }
}

/// Returns the configuration of a server, with a self-signed certificate.
fn served(provider: &Arc<CryptoProvider>) -> Result<QuicServerConfig, Box<dyn Error>> {
    let made = rcgen::generate_simple_self_signed(["taut".to_owned()])?;
    let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
    let mut config = rustls::ServerConfig::builder_with_provider(Arc::clone(provider))
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key.into())?;
    config.alpn_protocols = vec![PROTOCOL.to_vec()];
    Ok(config.try_into()?)
}

/// Returns the configuration of a client. It accepts any certificate, as identity does not affect the measurement.
fn trusting(provider: &Arc<CryptoProvider>) -> Result<QuicClientConfig, Box<dyn Error>> {
    let mut config = rustls::ClientConfig::builder_with_provider(Arc::clone(provider))
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Anybody(Arc::clone(provider))))
        .with_no_client_auth();
    config.alpn_protocols = vec![PROTOCOL.to_vec()];
    Ok(config.try_into()?)
}

/// A verifier that accepts any certificate, and checks that the peer has its key.
#[derive(Debug)]
struct Anybody(Arc<CryptoProvider>);

impl ServerCertVerifier for Anybody {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let all = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signed, all)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let all = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signed, all)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        let all = &self.0.signature_verification_algorithms;
        all.supported_schemes()
    }
}
