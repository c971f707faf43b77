//! Anomalies of a packet, and the names that rules use for them. The caller sets their bits ([`crate::evaluate::Packet::anomalies`]).

/// Something odd.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Anomaly {
    /// The checksum of the IPv4 header is wrong.
    HeaderChecksum,
    /// That of TCP, UDP or ICMP is wrong.
    Checksum,
    /// A segment lies outside of the window that its receiver has offered.
    OutOfWindow,
    /// A segment acknowledges what was never sent.
    BadAcknowledgement,
    /// A segment repeats bytes of its stream with other content.
    Overlap,
    /// Bytes of the stream are missing for good.
    Gap,
    /// A fragment overlaps another one of its datagram.
    FragmentOverlap,
    /// The acknowledgement number is set but the ACK flag is not.
    BrokenAcknowledgement,
    /// The timestamp is older than the latest one that the receiver has.
    Timestamp,
    /// A segment repeats only bytes that were already acknowledged.
    SpuriousRetransmission,
    /// A segment follows a RST from the same end.
    AfterReset,
    /// A RST belongs to no known connection.
    ResetOfNothing,
    /// A RST acknowledges bytes that were never sent.
    ResetAcknowledgement,
    /// A FIN belongs to no known connection.
    FinOfNothing,
    /// The client that sent a SYN sends the SYN+ACK as well.
    AskedAnswerFromClient,
    /// A SYN+ACK acknowledges another number than that of the SYN.
    AskedAnswerOther,
    /// In a simultaneous open, the SYN+ACK of the first end acknowledges another number than that of the other's SYN.
    BothAnswerOther,
    /// In a simultaneous open, the SYN+ACK of the first end has another sequence number than its SYN.
    BothAnswerOtherNumber,
    /// The client sends a SYN+ACK after the server's SYN+ACK.
    AnsweredAnswerToServer,
    /// The server's SYN+ACK is repeated with another acknowledgement number.
    AnsweredAnswerOther,
    /// The server's SYN+ACK is repeated with another sequence number.
    AnsweredAnswerOtherNumber,
    /// The server sends a SYN after its SYN+ACK.
    AnsweredOpeningToClient,
    /// The client repeats its SYN with another sequence number after the server's SYN+ACK.
    AnsweredOpeningOther,
    /// The server sends data before the ACK that completes the handshake.
    AnsweredData,
    /// The server sends another segment before the ACK that completes the handshake.
    AnsweredFromServer,
    /// The ACK that completes the handshake has the right sequence number but a wrong acknowledgement number.
    AnsweredWrongAcknowledgement,
    /// The ACK that completes the handshake has a wrong sequence number.
    AnsweredWrongNumbers,
    /// The client sends a SYN+ACK in an established connection.
    OpenAnswerToServer,
    /// The server's SYN+ACK is repeated in an established connection with another acknowledgement number.
    OpenAnswerOther,
    /// The server's SYN+ACK is repeated in an established connection with another sequence number.
    OpenAnswerOtherNumber,
    /// The server's SYN+ACK is repeated after the server has sent other segments.
    OpenAnswerAgain,
    /// The server sends a SYN in an established connection.
    OpenOpeningToClient,
    /// The client sends a SYN with another sequence number in an established connection.
    OpenOpeningOther,
    /// The client repeats its SYN in an established connection.
    OpenOpeningAgain,
    /// A segment of an established connection acknowledges bytes that were never sent.
    OpenAcknowledgement,
    /// A segment of an established connection ends before the acknowledged bytes.
    OpenBefore,
    /// The first FIN acknowledges bytes that were never sent.
    FinAcknowledgement,
    /// The first FIN lies outside of the receive window.
    FinOutOfWindow,
    /// The first FIN has the SYN flag as well.
    FinWithSyn,
    /// A SYN arrives while the connection is being closed.
    ClosingOpening,
    /// After the client's FIN, a FIN lies outside of the receive window.
    ClientClosedFinOutOfWindow,
    /// After the client's FIN, a segment lies outside of the receive window.
    ClientClosedOutOfWindow,
    /// After the client's FIN, a segment acknowledges bytes that were never sent.
    ClientClosedAcknowledgement,
    /// After the client's FIN, a segment repeats only bytes that were already acknowledged.
    ClientClosedBefore,
    /// After the server's FIN, a FIN lies outside of the receive window.
    ServerClosedFinNumber,
    /// After the server's FIN, a segment lies outside of the receive window.
    ServerClosedNumber,
    /// After the server's FIN, a segment acknowledges bytes that were never sent.
    ServerClosedAcknowledgement,
    /// After the server's FIN was acknowledged, a FIN lies outside of the receive window.
    ServerHeardFinNumber,
    /// After the server's FIN was acknowledged, a segment lies outside of the receive window.
    ServerHeardNumber,
    /// After the server's FIN was acknowledged, a segment acknowledges bytes that were never sent.
    ServerHeardAcknowledgement,
    /// After a simultaneous close, a segment begins behind the sender's FIN.
    ClosingNumber,
    /// After a simultaneous close, a segment acknowledges bytes that were never sent.
    ClosingAcknowledgement,
    /// After the FIN of the client and then that of the server, a segment begins behind the sender's FIN.
    LastNumber,
    /// After the FIN of the client and then that of the server, a segment acknowledges bytes that were never sent.
    LastAcknowledgement,
    /// After the FIN of the server and then that of the client, a segment begins behind the sender's FIN.
    WaitingNumber,
    /// After the FIN of the server and then that of the client, a segment acknowledges bytes that were never sent.
    WaitingAcknowledgement,
}

impl Anomaly {
    /// Returns its bit.
    #[inline]
    pub const fn bit(self) -> u64 {
        1 << self as u8
    }
}

/// Names of events in fragments. Others are of faults that no packet has when rules are asked, or are not told.
const OF_FRAGMENTS: [(&str, u8); 2] = [("ipv4.frag_overlap", 4), ("ipv6.frag_overlap", 6)];

/// Names of events in streams. Others are about how often something comes (`3whs_syn_flood`), a state that is none here (`4whs_wrong_seq`),
/// a limit that is none here (`reassembly_depth_reached`), or what is not told (`pkt_bad_window_update`).
const OF_STREAMS: [(&str, Anomaly); 53] = [
    ("pkt_invalid_ack", Anomaly::BadAcknowledgement),
    ("est_packet_out_of_window", Anomaly::OutOfWindow),
    ("reassembly_overlap_different_data", Anomaly::Overlap),
    ("reassembly_seq_gap", Anomaly::Gap),
    ("pkt_broken_ack", Anomaly::BrokenAcknowledgement),
    ("pkt_invalid_timestamp", Anomaly::Timestamp),
    (
        "pkt_spurious_retransmission",
        Anomaly::SpuriousRetransmission,
    ),
    ("suspected_rst_inject", Anomaly::AfterReset),
    ("rst_but_no_session", Anomaly::ResetOfNothing),
    ("rst_invalid_ack", Anomaly::ResetAcknowledgement),
    ("fin_but_no_session", Anomaly::FinOfNothing),
    (
        "3whs_synack_in_wrong_direction",
        Anomaly::AskedAnswerFromClient,
    ),
    ("3whs_synack_with_wrong_ack", Anomaly::AskedAnswerOther),
    ("4whs_synack_with_wrong_ack", Anomaly::BothAnswerOther),
    ("4whs_synack_with_wrong_syn", Anomaly::BothAnswerOtherNumber),
    (
        "3whs_synack_toserver_on_syn_recv",
        Anomaly::AnsweredAnswerToServer,
    ),
    (
        "3whs_synack_resend_with_different_ack",
        Anomaly::AnsweredAnswerOther,
    ),
    (
        "3whs_synack_resend_with_diff_seq",
        Anomaly::AnsweredAnswerOtherNumber,
    ),
    (
        "3whs_syn_toclient_on_syn_recv",
        Anomaly::AnsweredOpeningToClient,
    ),
    (
        "3whs_syn_resend_diff_seq_on_syn_recv",
        Anomaly::AnsweredOpeningOther,
    ),
    ("3whs_ack_data_inject", Anomaly::AnsweredData),
    ("3whs_ack_in_wrong_dir", Anomaly::AnsweredFromServer),
    (
        "3whs_right_seq_wrong_ack_evasion",
        Anomaly::AnsweredWrongAcknowledgement,
    ),
    ("3whs_wrong_seq_wrong_ack", Anomaly::AnsweredWrongNumbers),
    ("est_synack_toserver", Anomaly::OpenAnswerToServer),
    (
        "est_synack_resend_with_different_ack",
        Anomaly::OpenAnswerOther,
    ),
    (
        "est_synack_resend_with_diff_seq",
        Anomaly::OpenAnswerOtherNumber,
    ),
    ("est_synack_resend", Anomaly::OpenAnswerAgain),
    ("est_syn_toclient", Anomaly::OpenOpeningToClient),
    ("est_syn_resend_diff_seq", Anomaly::OpenOpeningOther),
    ("est_syn_resend", Anomaly::OpenOpeningAgain),
    ("est_invalid_ack", Anomaly::OpenAcknowledgement),
    ("est_pkt_before_last_ack", Anomaly::OpenBefore),
    ("fin_invalid_ack", Anomaly::FinAcknowledgement),
    ("fin_out_of_window", Anomaly::FinOutOfWindow),
    ("fin_syn", Anomaly::FinWithSyn),
    ("shutdown_syn_resend", Anomaly::ClosingOpening),
    (
        "closewait_fin_out_of_window",
        Anomaly::ClientClosedFinOutOfWindow,
    ),
    (
        "closewait_ack_out_of_window",
        Anomaly::ClientClosedOutOfWindow,
    ),
    (
        "closewait_invalid_ack",
        Anomaly::ClientClosedAcknowledgement,
    ),
    ("closewait_pkt_before_last_ack", Anomaly::ClientClosedBefore),
    ("fin1_fin_wrong_seq", Anomaly::ServerClosedFinNumber),
    ("fin1_ack_wrong_seq", Anomaly::ServerClosedNumber),
    ("fin1_invalid_ack", Anomaly::ServerClosedAcknowledgement),
    ("fin2_fin_wrong_seq", Anomaly::ServerHeardFinNumber),
    ("fin2_ack_wrong_seq", Anomaly::ServerHeardNumber),
    ("fin2_invalid_ack", Anomaly::ServerHeardAcknowledgement),
    ("closing_ack_wrong_seq", Anomaly::ClosingNumber),
    ("closing_invalid_ack", Anomaly::ClosingAcknowledgement),
    ("lastack_ack_wrong_seq", Anomaly::LastNumber),
    ("lastack_invalid_ack", Anomaly::LastAcknowledgement),
    ("timewait_ack_wrong_seq", Anomaly::WaitingNumber),
    ("timewait_invalid_ack", Anomaly::WaitingAcknowledgement),
];

/// Keywords about checksums, with the version of IP and the protocol behind its header.
const CHECKSUMS: [(&str, u8, Option<u8>); 7] = [
    ("ipv4-csum", 4, None),
    ("tcpv4-csum", 4, Some(6)),
    ("tcpv6-csum", 6, Some(6)),
    ("udpv4-csum", 4, Some(17)),
    ("udpv6-csum", 6, Some(17)),
    ("icmpv4-csum", 4, Some(1)),
    ("icmpv6-csum", 6, Some(58)),
];

/// Returns what an event of that name is about, and the version of IP that its name says; none if there is no such thing here.
pub(crate) fn event(keyword: &str, name: &str) -> Option<(Anomaly, Option<u8>)> {
    match keyword {
        "decode-event" => {
            let found = OF_FRAGMENTS.iter().find(|it| it.0 == name)?;
            Some((Anomaly::FragmentOverlap, Some(found.1)))
        }
        _ => Some((OF_STREAMS.iter().find(|it| it.0 == name)?.1, None)),
    }
}

/// Returns the version of IP that a keyword about checksums means, and the protocol behind its header; none if it is no such keyword.
pub(crate) fn checksum(keyword: &str) -> Option<(u8, Option<u8>)> {
    let found = CHECKSUMS.iter().find(|it| it.0 == keyword);
    found.map(|&(_, version, protocol)| (version, protocol))
}
