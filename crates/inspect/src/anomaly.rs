//! Anomalies of a packet, and their names in rules. The caller of [`crate::compile::Inspector`] detects the anomalies
//! and sets one bit for each of them ([`crate::evaluate::Packet::anomalies`]).

/// Defines the anomalies, and the list of the names of stream events in rules.
macro_rules! anomalies {
    ($($(#[$about:meta])* $kind:ident $(= $name:literal)?,)*) => {
        /// An anomaly of a packet that rules can test, by the name of an event or with a checksum keyword.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[repr(u8)]
        pub enum Anomaly {
            $($(#[$about])* $kind,)*
        }

        /// Names of stream events. Taut does not report Suricata's other stream events: `pkt_bad_window_update`, and
        /// events about a frequency (`3whs_syn_flood`), a state (`4whs_wrong_seq`) or a limit
        /// (`reassembly_depth_reached`) that taut does not have.
        const OF_STREAMS: &[(&str, Anomaly)] = &[$($(($name, Anomaly::$kind),)?)*];
    };
}

anomalies! {
    /// The checksum of the IPv4 header is wrong.
    HeaderChecksum,
    /// The checksum of TCP, UDP or ICMP is wrong.
    Checksum,
    /// A segment is outside the window that its receiver has offered.
    OutOfWindow = "est_packet_out_of_window",
    /// A segment acknowledges bytes that were never sent.
    BadAcknowledgement = "pkt_invalid_ack",
    /// A segment has other bytes than an earlier segment for the same sequence numbers.
    Overlap = "reassembly_overlap_different_data",
    /// Bytes of the stream are permanently missing.
    Gap = "reassembly_seq_gap",
    /// A fragment overlaps another fragment of the same datagram.
    FragmentOverlap,
    /// The acknowledgement number of a segment is not 0, but its ACK flag is clear.
    BrokenAcknowledgement = "pkt_broken_ack",
    /// The timestamp of a segment is older than the latest timestamp that its receiver has received.
    Timestamp = "pkt_invalid_timestamp",
    /// A segment repeats only bytes that were already acknowledged.
    SpuriousRetransmission = "pkt_spurious_retransmission",
    /// A segment follows a RST from the same endpoint.
    AfterReset = "suspected_rst_inject",
    /// A RST belongs to no known connection.
    ResetOfNothing = "rst_but_no_session",
    /// A RST acknowledges bytes that were never sent.
    ResetAcknowledgement = "rst_invalid_ack",
    /// A FIN belongs to no known connection.
    FinOfNothing = "fin_but_no_session",
    /// The SYN+ACK comes from the client, which has sent the SYN.
    AskedAnswerFromClient = "3whs_synack_in_wrong_direction",
    /// The acknowledgement number of a SYN+ACK does not match the SYN.
    AskedAnswerOther = "3whs_synack_with_wrong_ack",
    /// In a simultaneous open, the acknowledgement number of the first endpoint's SYN+ACK does not match the other
    /// endpoint's SYN.
    BothAnswerOther = "4whs_synack_with_wrong_ack",
    /// In a simultaneous open, the first endpoint's SYN+ACK has another sequence number than its SYN.
    BothAnswerOtherNumber = "4whs_synack_with_wrong_syn",
    /// The client sends a SYN+ACK after the server's SYN+ACK.
    AnsweredAnswerToServer = "3whs_synack_toserver_on_syn_recv",
    /// The server's SYN+ACK is repeated with another acknowledgement number.
    AnsweredAnswerOther = "3whs_synack_resend_with_different_ack",
    /// The server's SYN+ACK is repeated with another sequence number.
    AnsweredAnswerOtherNumber = "3whs_synack_resend_with_diff_seq",
    /// The server sends a SYN after its SYN+ACK.
    AnsweredOpeningToClient = "3whs_syn_toclient_on_syn_recv",
    /// The client repeats its SYN with another sequence number after the server's SYN+ACK.
    AnsweredOpeningOther = "3whs_syn_resend_diff_seq_on_syn_recv",
    /// The server sends data before the ACK that completes the handshake.
    AnsweredData = "3whs_ack_data_inject",
    /// The server sends another segment before the ACK that completes the handshake.
    AnsweredFromServer = "3whs_ack_in_wrong_dir",
    /// The ACK that completes the handshake has the right sequence number but a wrong acknowledgement number.
    AnsweredWrongAcknowledgement = "3whs_right_seq_wrong_ack_evasion",
    /// The ACK that completes the handshake has a wrong sequence number.
    AnsweredWrongNumbers = "3whs_wrong_seq_wrong_ack",
    /// The client sends a SYN+ACK in an established connection.
    OpenAnswerToServer = "est_synack_toserver",
    /// The server's SYN+ACK is repeated in an established connection with another acknowledgement number.
    OpenAnswerOther = "est_synack_resend_with_different_ack",
    /// The server's SYN+ACK is repeated in an established connection with another sequence number.
    OpenAnswerOtherNumber = "est_synack_resend_with_diff_seq",
    /// The server's SYN+ACK is repeated after the server has sent other segments.
    OpenAnswerAgain = "est_synack_resend",
    /// The server sends a SYN in an established connection.
    OpenOpeningToClient = "est_syn_toclient",
    /// The client sends a SYN with another sequence number in an established connection.
    OpenOpeningOther = "est_syn_resend_diff_seq",
    /// The client repeats its SYN in an established connection.
    OpenOpeningAgain = "est_syn_resend",
    /// A segment of an established connection acknowledges bytes that were never sent.
    OpenAcknowledgement = "est_invalid_ack",
    /// A segment of an established connection ends before the acknowledged bytes.
    OpenBefore = "est_pkt_before_last_ack",
    /// The first FIN acknowledges bytes that were never sent.
    FinAcknowledgement = "fin_invalid_ack",
    /// The first FIN is outside the receive window.
    FinOutOfWindow = "fin_out_of_window",
    /// The first FIN has the SYN flag as well.
    FinWithSyn = "fin_syn",
    /// A SYN arrives while the connection is being closed.
    ClosingOpening = "shutdown_syn_resend",
    /// After the client's FIN, a FIN is outside of the receive window.
    ClientClosedFinOutOfWindow = "closewait_fin_out_of_window",
    /// After the client's FIN, a segment is outside of the receive window.
    ClientClosedOutOfWindow = "closewait_ack_out_of_window",
    /// After the client's FIN, a segment acknowledges bytes that were never sent.
    ClientClosedAcknowledgement = "closewait_invalid_ack",
    /// After the client's FIN, a segment repeats only bytes that were already acknowledged.
    ClientClosedBefore = "closewait_pkt_before_last_ack",
    /// After the server's FIN, a FIN is outside of the receive window.
    ServerClosedFinNumber = "fin1_fin_wrong_seq",
    /// After the server's FIN, a segment is outside of the receive window.
    ServerClosedNumber = "fin1_ack_wrong_seq",
    /// After the server's FIN, a segment acknowledges bytes that were never sent.
    ServerClosedAcknowledgement = "fin1_invalid_ack",
    /// After the server's FIN was acknowledged, a FIN is outside of the receive window.
    ServerHeardFinNumber = "fin2_fin_wrong_seq",
    /// After the server's FIN was acknowledged, a segment is outside of the receive window.
    ServerHeardNumber = "fin2_ack_wrong_seq",
    /// After the server's FIN was acknowledged, a segment acknowledges bytes that were never sent.
    ServerHeardAcknowledgement = "fin2_invalid_ack",
    /// After a simultaneous close, the sequence number of a segment is after the FIN of the same sender.
    ClosingNumber = "closing_ack_wrong_seq",
    /// After a simultaneous close, a segment acknowledges bytes that were never sent.
    ClosingAcknowledgement = "closing_invalid_ack",
    /// After a FIN of the client and then one of the server, the sequence number of a segment is after the FIN of the
    /// same sender.
    LastNumber = "lastack_ack_wrong_seq",
    /// After the FIN of the client and then that of the server, a segment acknowledges bytes that were never sent.
    LastAcknowledgement = "lastack_invalid_ack",
    /// After a FIN of the server and then one of the client, the sequence number of a segment is after the FIN of the
    /// same sender.
    WaitingNumber = "timewait_ack_wrong_seq",
    /// After the FIN of the server and then that of the client, a segment acknowledges bytes that were never sent.
    WaitingAcknowledgement = "timewait_invalid_ack",
}

impl Anomaly {
    /// Returns the anomaly as one bit of a mask such as [`crate::evaluate::Packet::anomalies`].
    #[inline]
    pub const fn bit(self) -> u64 {
        1 << self as u8
    }
}

/// Names of fragment events, with the IP version of each. Taut does not report Suricata's other fragment events, or
/// drops the fragments that they concern before it evaluates rules.
const OF_FRAGMENTS: [(&str, u8); 2] = [("ipv4.frag_overlap", 4), ("ipv6.frag_overlap", 6)];

/// Checksum keywords, each with the IP version, and with the protocol number whose checksum the keyword tests; none for
/// the checksum of the IP header.
const CHECKSUMS: [(&str, u8, Option<u8>); 7] = [
    ("ipv4-csum", 4, None),
    ("tcpv4-csum", 4, Some(6)),
    ("tcpv6-csum", 6, Some(6)),
    ("udpv4-csum", 4, Some(17)),
    ("udpv6-csum", 6, Some(17)),
    ("icmpv4-csum", 4, Some(1)),
    ("icmpv6-csum", 6, Some(58)),
];

/// Returns the anomaly of the event `name`, and the IP version in that name; none if taut does not report the event.
pub(crate) fn event(keyword: &str, name: &str) -> Option<(Anomaly, Option<u8>)> {
    match keyword {
        "decode-event" => {
            let found = OF_FRAGMENTS.iter().find(|it| it.0 == name)?;
            Some((Anomaly::FragmentOverlap, Some(found.1)))
        }
        _ => Some((OF_STREAMS.iter().find(|it| it.0 == name)?.1, None)),
    }
}

/// Returns the IP version of a checksum keyword and the protocol whose checksum it tests; none for other keywords.
pub(crate) fn checksum(keyword: &str) -> Option<(u8, Option<u8>)> {
    let found = CHECKSUMS.iter().find(|it| it.0 == keyword);
    found.map(|&(_, version, protocol)| (version, protocol))
}
