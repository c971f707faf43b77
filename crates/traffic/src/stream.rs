//! A stream: frames made from templates, with sizes and fields that change from packet to packet, and a stamp in each
//! frame.

use crate::addresses::Addresses;
use crate::field::{Added, FieldName, FieldWriter, Values, checksum_offsets};
use crate::gateway::Gateway;
use crate::{Pattern, Sizes};
use std::net::IpAddr;
use std::sync::Arc;
use taut_port::Packet;
use taut_wire::frame::{FRAME_CHECK_SEQUENCE_BYTES, MAX_FRAME_SIZE_BYTES, MIN_FRAME_SIZE_BYTES};
use taut_wire::stamp::STAMP_LEN_BYTES;
use taut_wire::{Error, Ipv4, Ipv6, Mac, PortRange, Protocol, StampLayout, Sum};
use taut_wire::{Tcp, Tunnel, UdpFlow, Vlan};

/// A frame of one size in which all varied fields are 0.
#[derive(Debug, Clone)]
struct Template {
    frame: Vec<u8>,
    /// Layout of the stamp; none for frames that cannot carry one (TCP, ICMP).
    layout: Option<StampLayout>,
    /// Sum over the template's bytes that the IP header's checksum covers.
    ip: Sum,
    /// Sum over the template's bytes that the TCP checksum covers.
    transport: Sum,
}

/// A stream: its packets, and when they are sent.
#[derive(Debug, Clone)]
pub struct Stream {
    name: String,
    templates: Vec<Template>,
    sizes: Sizes,
    /// Indices of the templates in the order of sending, which repeats.
    order: Arc<[u32]>,
    position: usize,
    /// Index in `order` of this worker's first packet (`first`), and the distance to its next packet (`step`), at most
    /// the length of `order`.
    first: usize,
    step: usize,
    fields: Vec<FieldWriter>,
    /// Offsets of the checksums that must be written in addition to the stamp's checksum, because they cover varied
    /// fields; none for a checksum that is not written separately.
    ip_checksum: Option<usize>,
    tcp_checksum: Option<usize>,
    ports: PortRange,
    pattern: Pattern,
    load: Load,
    priority: u8,
    /// Source and destination addresses of the outermost packet, which routers use; none for frames of a trace.
    ends: Option<[Addresses; 2]>,
    src_mac: Mac,
    gateway: Option<Gateway>,
    seed: u64,
}

/// The rate of a stream, absolute or relative.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Load {
    /// A share of the trial's rate, in proportion to the shares of the other streams.
    Share(f64),
    /// Packets per second, independent of the trial's rate.
    Fixed(f64),
}

/// The description of a stream, before its frames are built.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Name of the stream in results.
    pub name: String,
    /// Addresses and ports.
    pub flow: UdpFlow,
    /// Protocol that follows the IP header.
    pub protocol: Protocol,
    /// The tunnel around the packets, if there is one.
    pub tunnel: Option<Tunnel>,
    /// Frame sizes.
    pub sizes: Sizes,
    /// Frames of a trace, which are sent unchanged; they replace frames made from the other fields.
    pub frames: Vec<Vec<u8>>,
    /// Fields that vary from packet to packet, and their values.
    pub varied: Vec<(FieldName, Values)>,
    /// Gateway to which packets are sent; its MAC address is requested before the first packet.
    pub gateway: Option<IpAddr>,
    /// Pattern of the intended send times.
    pub pattern: Pattern,
    /// Rate of the stream, absolute or relative.
    pub load: Load,
    /// Priority of the stream: among streams with due packets, the stream with the highest priority sends first.
    pub priority: u8,
    /// Seed of random values: equal seeds give equal packets. The intended send times are equal only if the seed of the
    /// run ([`crate::Instrument::set_seed`]) is equal as well.
    pub seed: u64,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            name: "stream".to_string(),
            flow: UdpFlow::default(),
            protocol: Protocol::Udp,
            tunnel: None,
            sizes: Sizes::one(MIN_FRAME_SIZE_BYTES),
            frames: Vec::new(),
            varied: Vec::new(),
            gateway: None,
            pattern: Pattern::Constant,
            load: Load::Share(1.0),
            priority: 0,
            seed: 1,
        }
    }
}

/// Reason why a stream cannot be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StreamError {
    /// The addresses or sizes give no valid frame.
    #[error("frames of {size} bytes: {source}")]
    Frame {
        /// Size of the frame, bytes, frame check sequence included.
        size: usize,
        /// Reason why the frame is invalid.
        source: Error,
    },
    /// The size is too small for headers and stamp, or larger than any frame.
    #[error(
        "size = {size}: expected {least} to {MAX_FRAME_SIZE_BYTES} bytes: the headers take {headers}, the stamp in the payload \
         {stamp}, the frame check sequence {FRAME_CHECK_SEQUENCE_BYTES}"
    )]
    Size {
        /// Size of the frame, bytes, frame check sequence included.
        size: usize,
        /// The smallest valid size, bytes.
        least: usize,
        /// Bytes of the frames' headers.
        headers: usize,
        /// Length of the stamp (flow, sequence number and send timestamp), bytes; 0 for frames without a stamp.
        stamp: usize,
    },
    /// The gateway has another IP version than the stream's addresses.
    #[error("gateway \"{0}\": packets have addresses of the other IP version")]
    GatewayOfOtherVersion(IpAddr),
    /// The frames lack a field that the plan varies.
    #[error("{0} cannot vary: these frames have no such field")]
    NoSuchField(&'static str),
}

impl Stream {
    /// Makes a stream with frames of `frame_size_bytes` (frame check sequence included: 64 is the smallest) of `flow`,
    /// at a constant rate.
    ///
    /// # Errors
    /// Sizes or addresses give no valid frame.
    pub fn new(flow: &UdpFlow, frame_size_bytes: usize) -> Result<Self, StreamError> {
        Self::of(Plan {
            flow: *flow,
            sizes: Sizes::one(frame_size_bytes),
            ..Plan::default()
        })
    }

    /// Makes a stream from its plan.
    ///
    /// # Errors
    /// Sizes or addresses give no valid frame, or the frames lack a varied field.
    pub fn of(plan: Plan) -> Result<Self, StreamError> {
        if !plan.frames.is_empty() {
            return Ok(Self::of_frames(plan));
        }
        let (templates, fields) = templates_of(&plan)?;
        let (ip, transport) = checksum_offsets(&templates[0].frame).unwrap_or((None, 0));
        let tcp =
            plan.protocol == Protocol::Tcp && fields.iter().any(FieldWriter::in_transport_sum);
        let ends = ends(&plan);
        let gateway = gateway_of(&plan, ends[0].first)?;
        Ok(Self {
            ends: Some(ends),
            src_mac: plan.flow.src_mac,
            gateway,
            name: plan.name,
            order: plan.sizes.order(plan.seed),
            position: 0,
            first: 0,
            step: 1,
            ip_checksum: ip.filter(|_| fields.iter().any(FieldWriter::in_ip_sum)),
            tcp_checksum: tcp.then_some(transport),
            ports: port_range(&plan.flow, &plan.varied),
            templates,
            sizes: plan.sizes,
            fields,
            pattern: plan.pattern,
            load: plan.load,
            priority: plan.priority,
            seed: plan.seed,
        })
    }

    /// Makes a stream of the frames of a trace, in order, without stamps.
    fn of_frames(plan: Plan) -> Self {
        let template = |frame| Template {
            frame,
            layout: None,
            ip: Sum::ZERO,
            transport: Sum::ZERO,
        };
        Self {
            ends: None,
            src_mac: plan.flow.src_mac,
            gateway: None,
            name: plan.name,
            order: (0..plan.frames.len() as u32).collect(),
            position: 0,
            first: 0,
            step: 1,
            ip_checksum: None,
            tcp_checksum: None,
            ports: port_range(&plan.flow, &[]),
            templates: plan.frames.into_iter().map(template).collect(),
            sizes: plan.sizes,
            fields: Vec::new(),
            pattern: plan.pattern,
            load: plan.load,
            priority: plan.priority,
            seed: plan.seed,
        }
    }

    /// Returns the name of the stream in results.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the frame sizes of the stream.
    pub fn sizes(&self) -> &Sizes {
        &self.sizes
    }

    /// Returns the pattern of the stream.
    pub fn pattern(&self) -> &Pattern {
        &self.pattern
    }

    /// Returns the rate of the stream, absolute or relative.
    pub fn load(&self) -> Load {
        self.load
    }

    pub(crate) fn priority(&self) -> u8 {
        self.priority
    }

    pub(crate) fn seed(&self) -> u64 {
        self.seed
    }

    /// Returns true if the stream's packets carry stamps, and so can be measured (UDP does, TCP and ICMP do not).
    pub fn is_measured(&self) -> bool {
        self.templates.iter().all(|t| t.layout.is_some())
    }

    /// Returns the length of the stream's longest frame, without frame check sequence, bytes.
    pub fn longest_bytes(&self) -> usize {
        self.templates
            .iter()
            .map(|t| t.frame.len())
            .max()
            .unwrap_or(0)
    }

    /// Returns the longest template frame of the stream; none if the stream has no frames.
    pub(crate) fn longest_frame(&self) -> Option<&[u8]> {
        let frames = self.templates.iter().map(|t| t.frame.as_slice());
        frames.max_by_key(|frame| frame.len())
    }

    /// Returns the range of UDP or TCP ports by which packets of the stream are identified, in both directions.
    pub fn ports(&self) -> PortRange {
        self.ports
    }

    /// Returns source and destination addresses of the outermost packet, which routers use; none if unknown.
    pub(crate) fn ends(&self) -> Option<[Addresses; 2]> {
        self.ends
    }

    /// Returns the first source MAC address of the stream.
    pub(crate) fn src_mac(&self) -> Mac {
        self.src_mac
    }

    /// Returns destination and source MAC addresses of the stream's first frame; none if the stream has no frames.
    pub(crate) fn mac_addresses(&self) -> Option<&[u8]> {
        self.templates.first()?.frame.get(..12)
    }

    /// Returns the gateway to which the stream's packets are sent; none for a stream without a gateway.
    pub(crate) fn gateway(&self) -> Option<Gateway> {
        self.gateway
    }

    /// Sets the destination MAC address.
    pub(crate) fn set_dst_mac(&mut self, mac: Mac) {
        for template in &mut self.templates {
            template.frame[..6].copy_from_slice(&mac.0);
        }
    }

    /// Restarts with the first frame size. Each trial then starts with this size, and with the first gap of a trace.
    pub(crate) fn restart(&mut self) {
        self.position = self.first;
    }

    /// Restricts the stream to the packets `number`, `number + of`, ..., so that `of` workers together send what one
    /// worker would send. Random values differ from worker to worker.
    pub(crate) fn share(&mut self, number: usize, of: usize) {
        self.first = number % self.order.len();
        self.step = of % self.order.len();
        self.position = self.first;
        for field in &mut self.fields {
            field.share(number as u64, of as u64);
        }
    }

    /// Returns the frame size of each packet in the order of sending, frame check sequence included. After the last one
    /// the sizes repeat from the first.
    pub fn frame_sizes(&self) -> Arc<[u16]> {
        let places = self.order.len();
        let size = |number: usize| {
            let template = self.order[(self.first + number * self.step) % places];
            let frame = &self.templates[template as usize].frame;
            (frame.len() + FRAME_CHECK_SEQUENCE_BYTES) as u16
        };
        (0..places).map(size).collect()
    }

    /// Returns the index of the next packet's template, and the template's length in bytes.
    #[inline(always)]
    pub(crate) fn next(&mut self) -> (u32, u16) {
        let template = self.order[self.position];
        self.position += self.step;
        if self.position >= self.order.len() {
            self.position -= self.order.len();
        }
        (
            template,
            self.templates[template as usize].frame.len() as u16,
        )
    }

    /// Writes the next packet into `packet`, which has the template's length. Returns the sum of the varied fields,
    /// which the stamp's checksum must cover as well.
    #[inline(always)]
    pub(crate) fn fill(&mut self, template: u32, packet: &mut Packet) -> Sum {
        let template = &self.templates[template as usize];
        let frame = packet.bytes_mut();
        frame.copy_from_slice(&template.frame);
        if self.fields.is_empty() {
            return Sum::ZERO;
        }
        let mut added = Added::default();
        for field in &mut self.fields {
            field.write(frame, &mut added);
        }
        if let Some(at) = self.ip_checksum {
            let checksum = template.ip.combine(added.ip).checksum();
            frame[at..at + 2].copy_from_slice(&checksum.to_be_bytes());
        }
        if let Some(at) = self.tcp_checksum {
            let checksum = template.transport.combine(added.transport).checksum();
            frame[at..at + 2].copy_from_slice(&checksum.to_be_bytes());
        }
        added.transport
    }

    /// Stamps a packet that [`Stream::fill`] made.
    #[inline(always)]
    pub(crate) fn stamp(
        &self,
        template: u32,
        packet: &mut Packet,
        varied: Sum,
        flow: u16,
        sequence: u64,
        now_ticks: u64,
    ) {
        if let Some(layout) = &self.templates[template as usize].layout {
            // This cannot fail: the packet is as long as the template of the layout.
            let _ = layout.write_varied(packet.bytes_mut(), flow, sequence, now_ticks, varied);
        }
    }
}

impl Template {
    fn new(mut frame: Vec<u8>, fields: &[FieldWriter], protocol: Protocol) -> Result<Self, Error> {
        for field in fields {
            field.blank(&mut frame);
        }
        let (ip_checksum, transport_checksum) = checksum_offsets(&frame).unwrap_or((None, 0));
        let mut template = Self {
            layout: None,
            ip: Sum::ZERO,
            transport: Sum::ZERO,
            frame,
        };
        let written = |frame: &[u8], at: usize| {
            let sum = !u16::from_be_bytes([frame[at], frame[at + 1]]);
            Sum::ZERO.add_u16(sum)
        };
        if let Some(at) = ip_checksum {
            // The checksum is the sixth word of its header.
            Ipv4::new(&mut template.frame[at - 10..])?.fill_checksum();
            template.ip = written(&template.frame, at);
        }
        match protocol {
            Protocol::Udp => template.layout = Some(StampLayout::new(&template.frame)?),
            Protocol::Tcp => {
                let start = transport_checksum - 16;
                let length = template.frame.len() - start;
                let pseudo_header = match ip_checksum {
                    Some(at) => Ipv4::new(&template.frame[at - 10..])?.pseudo_header(length as u16),
                    None => {
                        Ipv6::new(&template.frame[start - taut_wire::ipv6::HEADER_LEN_BYTES..])?
                            .pseudo_header(taut_wire::IpProtocol::TCP, length as u32)
                    }
                };
                Tcp::new(&mut template.frame[start..])?.fill_checksum(pseudo_header);
                template.transport = written(&template.frame, transport_checksum);
            }
            Protocol::IcmpEcho => {}
        }
        Ok(template)
    }
}

/// Makes a template for each frame size, and the writers of the varied fields.
fn templates_of(plan: &Plan) -> Result<(Vec<Template>, Vec<FieldWriter>), StreamError> {
    let mut templates = Vec::new();
    let mut fields: Vec<FieldWriter> = Vec::new();
    let headers = plan.flow.header_bytes(plan.protocol, plan.tunnel.as_ref());
    let stamp = match plan.protocol {
        Protocol::Udp => STAMP_LEN_BYTES,
        Protocol::Tcp | Protocol::IcmpEcho => 0,
    };
    let least = MIN_FRAME_SIZE_BYTES.max(headers + stamp + FRAME_CHECK_SEQUENCE_BYTES);
    for (size, _) in plan.sizes.parts() {
        if !(least..=MAX_FRAME_SIZE_BYTES).contains(size) {
            return Err(StreamError::Size {
                size: *size,
                least,
                headers,
                stamp,
            });
        }
        let wrong = |source| StreamError::Frame {
            size: *size,
            source,
        };
        let frame = plan
            .flow
            .frame_as(plan.protocol, plan.tunnel.as_ref(), *size);
        let frame = frame.map_err(wrong)?;
        if fields.is_empty() {
            fields = field_writers(plan, &frame)?;
        }
        templates.push(Template::new(frame, &fields, plan.protocol).map_err(wrong)?);
    }
    Ok((templates, fields))
}

fn field_writers(plan: &Plan, frame: &[u8]) -> Result<Vec<FieldWriter>, StreamError> {
    let mut fields = Vec::new();
    for (index, (name, values)) in plan.varied.iter().enumerate() {
        let seed = plan.seed.wrapping_mul(31).wrapping_add(index as u64);
        let writer = FieldWriter::new(frame, *name, *values, seed);
        fields.push(writer.ok_or(StreamError::NoSuchField(name.key()))?);
    }
    Ok(fields)
}

/// Returns the gateway of a stream with the first source address `asker_ip`; none if the plan has no gateway.
fn gateway_of(plan: &Plan, asker_ip: IpAddr) -> Result<Option<Gateway>, StreamError> {
    match plan.gateway {
        Some(ip) if ip.is_ipv4() != asker_ip.is_ipv4() => {
            Err(StreamError::GatewayOfOtherVersion(ip))
        }
        gateway => Ok(gateway.map(|ip| Gateway {
            ip,
            asker_ip,
            asker_mac: plan.flow.src_mac,
            vlan: plan.flow.vlan.map_or(Vlan::Untagged, Vlan::Single),
        })),
    }
}

/// Returns source and destination addresses of the outermost packet.
fn ends(plan: &Plan) -> [Addresses; 2] {
    let end = |name: FieldName, first: IpAddr| {
        let values = plan.varied.iter().find(|(field, _)| *field == name);
        Addresses {
            first,
            more: values.map_or(0, |(_, values)| values.count - 1),
        }
    };
    match &plan.tunnel {
        Some(tunnel) => [tunnel.src_ip, tunnel.dst_ip].map(|first| Addresses { first, more: 0 }),
        None => [
            end(FieldName::SrcIp, plan.flow.src_ip),
            end(FieldName::DstIp, plan.flow.dst_ip),
        ],
    }
}

/// Returns the ports of a flow in both directions, so that packets are also identified after a device that swaps ports.
fn port_range(flow: &UdpFlow, varied: &[(FieldName, Values)]) -> PortRange {
    let ends = |name: FieldName, fixed: u16| {
        let values = varied.iter().find(|(field, _)| *field == name);
        values.map_or((fixed, fixed), |(_, v)| {
            (v.low as u16, (v.low + u128::from(v.count - 1)) as u16)
        })
    };
    let (source, destination) = (
        ends(FieldName::SrcPort, flow.src_port),
        ends(FieldName::DstPort, flow.dst_port),
    );
    PortRange {
        low: source.0.min(destination.0),
        high: source.1.max(destination.1),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::collections::BTreeSet;
    use taut_port::PoolHandle;
    use taut_wire::{Ethernet, Received, Udp, VlanTag, classify};

    fn packets(plan: Plan, n: u64) -> Vec<Vec<u8>> {
        let mut stream = Stream::of(plan).unwrap();
        let pool = PoolHandle::new(2, false).unwrap();
        (0..n)
            .map(|sequence| {
                let (template, len) = stream.next();
                let mut packet = pool.take(len).unwrap();
                let varied = stream.fill(template, &mut packet);
                stream.stamp(template, &mut packet, varied, 5, sequence, 1_000 + sequence);
                packet.bytes().to_vec()
            })
            .collect()
    }

    fn varied(fields: &[(FieldName, &str)]) -> Vec<(FieldName, Values)> {
        fields
            .iter()
            .map(|(name, text)| (*name, name.values(text).unwrap()))
            .collect()
    }

    #[test]
    fn workers_jointly_send_one_sequence_and_draw_different_random_values() {
        let pool = PoolHandle::new(2, false).unwrap();
        let plan = |fields: &[(FieldName, &str)], sizes: &str| Plan {
            sizes: sizes.parse().unwrap(),
            varied: varied(fields),
            ..Plan::default()
        };
        let made = |stream: &mut Stream| {
            let (template, len) = stream.next();
            let mut packet = pool.take(len).unwrap();
            stream.fill(template, &mut packet);
            packet.bytes().to_vec()
        };
        let counting = [
            (FieldName::DstIp, "10.0.0.1-10.0.0.7"),
            (FieldName::DstPort, "5-6"),
        ];
        let counting = plan(&counting, "imix");
        for of in [1, 2, 3, 5, 9, 20] {
            let mut one = Stream::of(counting.clone()).unwrap();
            let mut workers: Vec<Stream> = vec![one.clone(); of];
            for (number, worker) in workers.iter_mut().enumerate() {
                worker.share(number, of);
            }
            for n in 0..100 {
                assert_eq!(made(&mut workers[n % of]), made(&mut one), "{n} of {of}");
            }
            workers.iter_mut().for_each(Stream::restart);
            one.restart();
            let len = |stream: &mut Stream| stream.next().1;
            let last = of - 1;
            let sizes = workers[last].frame_sizes();
            for n in 0..30 {
                let sent = len(&mut workers[n % of]);
                assert_eq!(sent, len(&mut one), "{n} of {of}");
                if n % of == last {
                    assert_eq!(sizes[n / of % sizes.len()], sent + 4, "{n} of {of}");
                }
            }
        }
        let mut first = Stream::of(plan(&[(FieldName::DstPort, "1-60000 random")], "64")).unwrap();
        let (mut alone, mut second) = (first.clone(), first.clone());
        first.share(0, 2);
        second.share(1, 2);
        let drawn = |stream: &mut Stream| -> Vec<_> { (0..50).map(|_| made(stream)).collect() };
        let of_first = drawn(&mut first);
        assert_eq!(of_first, drawn(&mut alone));
        let of_second = drawn(&mut second);
        let same = of_second.iter().filter(|it| of_first.contains(it)).count();
        assert!(same < 5, "{same}");
    }

    #[test]
    fn all_checksums_are_correct_whichever_fields_vary() {
        let v6 = UdpFlow {
            src_ip: "2001:2::1".parse().unwrap(),
            dst_ip: "2001:2::2".parse().unwrap(),
            ..UdpFlow::default()
        };
        let tagged = UdpFlow {
            vlan: Some(VlanTag::new(1).unwrap()),
            ..UdpFlow::default()
        };
        let tunnel = Tunnel {
            teid: 1,
            src_ip: "10.0.0.1".parse().unwrap(),
            dst_ip: "10.0.0.2".parse().unwrap(),
        };
        let common = [
            (
                FieldName::SrcMac,
                "02:00:00:00:00:00-02:00:00:00:ff:ff random",
            ),
            (FieldName::Ttl, "2-200 random"),
            (FieldName::SrcPort, "1024-65535 random"),
            (FieldName::DstPort, "5000-6000"),
        ];
        let v4_addresses = [
            (FieldName::SrcIp, "1.2.3.4-250.2.3.4 random"),
            (FieldName::DstIp, "10.0.0.1-10.0.255.254 zipf(1.1)"),
        ];
        let v6_addresses = [
            (FieldName::SrcIp, "2001:2::1-2001:2::1:ffff:ffff random"),
            (FieldName::DstIp, "2001:3::1-2001:3::ffff"),
        ];
        for (flow, tunnel, fields, size) in [
            (
                UdpFlow::default(),
                None,
                [&common[..], &v4_addresses].concat(),
                64,
            ),
            (v6, None, [&common[..], &v6_addresses].concat(), 95),
            (
                tagged,
                None,
                [&common[..], &v4_addresses, &[(FieldName::Vlan, "10-20")]].concat(),
                101,
            ),
            (
                UdpFlow::default(),
                Some(tunnel),
                [
                    &common[..],
                    &v4_addresses,
                    &[(FieldName::Teid, "1-9999 random")],
                ]
                .concat(),
                150,
            ),
        ] {
            let plan = Plan {
                flow,
                tunnel,
                sizes: Sizes::one(size),
                varied: varied(&fields),
                ..Plan::default()
            };
            let ports = Stream::of(plan.clone()).unwrap().ports();
            let frames = packets(plan, 300);
            for (sequence, frame) in frames.iter().enumerate() {
                let Received::Stamped(stamp) = classify(frame, ports) else {
                    panic!("{sequence}: {frame:x?}");
                };
                assert_eq!(stamp.sequence, sequence as u64);
                if let Ok(ip) = Ipv4::new(Ethernet::new(&frame[..]).unwrap().payload()) {
                    ip.verify_checksum().unwrap();
                }
            }
            let different: BTreeSet<&[u8]> = frames.iter().map(|f| &f[..f.len() - 18]).collect();
            assert!(different.len() > 250);
        }
    }

    #[test]
    fn tcp_segments_have_correct_checksums_and_are_not_measured() {
        let plan = Plan {
            protocol: Protocol::Tcp,
            varied: varied(&[
                (FieldName::SrcPort, "1-60000 random"),
                (FieldName::DstIp, "10.0.0.1-10.0.0.9"),
            ]),
            ..Plan::default()
        };
        assert!(!Stream::of(plan.clone()).unwrap().is_measured());
        for frame in packets(plan, 50) {
            let ip = Ipv4::new(&frame[14..]).unwrap();
            ip.verify_checksum().unwrap();
            let length = ip.payload().len() as u16;
            let tcp = Tcp::new(ip.payload()).unwrap();
            tcp.verify_checksum(ip.pseudo_header(length)).unwrap();
        }
    }

    #[test]
    fn frame_sizes_occur_in_proportion_to_their_weights() {
        let plan = Plan {
            sizes: "imix".parse().unwrap(),
            ..Plan::default()
        };
        let lengths: Vec<usize> = packets(plan, 24).iter().map(Vec::len).collect();
        let of = |size: usize| lengths.iter().filter(|l| **l == size - 4).count();
        assert_eq!((of(64), of(594), of(1518)), (14, 8, 2));
    }

    #[test]
    fn incremented_field_values_wrap_at_the_end_of_their_range() {
        let plan = Plan {
            varied: varied(&[(FieldName::DstPort, "100-102")]),
            ..Plan::default()
        };
        let ports: Vec<u16> = packets(plan, 4)
            .iter()
            .map(|f| Udp::new(&f[34..]).unwrap().destination_port())
            .collect();
        assert_eq!(ports, [100, 101, 102, 100]);
    }

    #[test]
    fn fields_that_frames_do_not_have_are_refused() {
        for (name, text) in [(FieldName::Vlan, "1-5"), (FieldName::Teid, "1-5")] {
            let plan = Plan {
                varied: varied(&[(name, text)]),
                ..Plan::default()
            };
            let error = Stream::of(plan).unwrap_err();
            assert_eq!(error, StreamError::NoSuchField(name.key()));
        }
    }
}
