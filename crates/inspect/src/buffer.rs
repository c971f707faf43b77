//! The parts of a packet or a message that rules test.

/// A part of a packet or of a message that a rule tests.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
#[repr(u8)]
pub enum Buffer {
    /// Payload after the layer-4 header; for TCP, preceded by the bytes of the stream before the payload.
    Payload,
    /// Method of an HTTP request.
    HttpMethod,
    /// Target of an HTTP request without scheme and host, decoded once and with a normalised path.
    HttpUri,
    /// Target of an HTTP request as sent.
    HttpRawUri,
    /// Version in an HTTP request or response.
    HttpProtocol,
    /// First line of an HTTP request.
    HttpRequestLine,
    /// HTTP header lines, each as `Name: value` and a line end.
    HttpHeader,
    /// HTTP header lines as sent.
    HttpRawHeader,
    /// Cookies of an HTTP request, or those that a response sets.
    HttpCookie,
    /// HTTP cookies as sent.
    HttpRawCookie,
    /// Host in the target, or else in `Host`, in lower case, without port; several are joined by `, `.
    HttpHost,
    /// Header `User-Agent`; several are joined by `, `.
    HttpUserAgent,
    /// Header `Referer`; several are joined by `, `.
    HttpReferer,
    /// Header `Content-Type`; several are joined by `, `.
    HttpContentType,
    /// Header `Accept`; several are joined by `, `.
    HttpAccept,
    /// Header `Accept-Encoding`; several are joined by `, `.
    HttpAcceptEncoding,
    /// Header `Accept-Language`; several are joined by `, `.
    HttpAcceptLanguage,
    /// Header `Connection`; several are joined by `, `.
    HttpConnection,
    /// Header `Content-Length`; several are joined by `, `.
    HttpContentLength,
    /// Header `Location` of a response; several are joined by `, `.
    HttpLocation,
    /// Header `Server` of a response; several are joined by `, `.
    HttpServer,
    /// Names of the header lines as sent: a line end, then each name with a line end, then another line end.
    HttpHeaderNames,
    /// First line and header lines as sent, with the empty line after them.
    HttpStart,
    /// First bytes of the body of an HTTP request.
    HttpClientBody,
    /// First bytes of the body of an HTTP response.
    HttpServerBody,
    /// Status of an HTTP response, three digits.
    HttpStatusCode,
    /// Reason phrase in the first line of an HTTP response.
    HttpStatusMessage,
    /// First line of an HTTP response.
    HttpResponseLine,
    /// Name in a DNS query, with dots.
    DnsQuery,
    /// Server name of a TLS ClientHello.
    TlsSni,
    /// Each certificate of a TLS server, as sent.
    TlsCertificates,
    /// Subject of the first certificate of a TLS server, such as `C=FR, CN=example.org`.
    TlsSubject,
    /// Issuer of the first certificate of a TLS server, in the form of [`Buffer::TlsSubject`].
    TlsIssuer,
    /// Serial number of the first certificate of a TLS server, as two capital hexadecimal digits per byte, separated by
    /// colons.
    TlsSerial,
    /// Fingerprint of a TLS client: the MD5 of [`Buffer::Ja3String`].
    Ja3Hash,
    /// Version, cipher suites, extensions, groups and point formats of a TLS ClientHello, in decimals.
    Ja3String,
    /// Fingerprint of a TLS server: the MD5 of [`Buffer::Ja3sString`].
    Ja3sHash,
    /// Version, cipher suite and extensions of a TLS ServerHello, in decimals.
    Ja3sString,
    /// Bytes that `base64_decode` of the same rule has decoded.
    Base64,
    /// Each interface of a DCE/RPC call, in 19 bytes: its UUID in written order (16), its major version (2), and a
    /// byte. The byte is 1 if the request to bind the interface was in a first fragment, otherwise 0.
    DceInterface,
    /// Number of the operation of a DCE/RPC call.
    DceOpnum,
    /// Stub data of a DCE/RPC call or of its response.
    DceStub,
    /// Method of a SIP request.
    SipMethod,
    /// Target of a SIP request.
    SipUri,
    /// First line of a SIP request.
    SipRequestLine,
    /// Status of a SIP response, three digits.
    SipStatusCode,
    /// Reason phrase in the first line of a SIP response.
    SipStatusMessage,
    /// First line of a SIP response.
    SipResponseLine,
    /// Version in a SIP request or response.
    SipProtocol,
    /// Each header `From` of SIP.
    SipFrom,
    /// Each header `To` of SIP.
    SipTo,
    /// Each header `Via` of SIP.
    SipVia,
    /// Each header `User-Agent` of SIP.
    SipUserAgent,
    /// Each header `Content-Type` of SIP.
    SipContentType,
    /// Each header `Content-Length` of SIP.
    SipContentLength,
    /// Type of an MQTT packet, as a number.
    MqttType,
    /// Flags of an MQTT packet.
    MqttFlags,
    /// Quality of service of an MQTT packet.
    MqttQos,
    /// Each reason code of an MQTT packet.
    MqttReasonCode,
    /// Session-present flag of an MQTT server, 1 or 0.
    MqttSessionPresent,
    /// Version of MQTT in the client's CONNECT packet.
    MqttProtocolVersion,
    /// Flags of an MQTT CONNECT packet.
    MqttConnectFlags,
    /// Protocol name in an MQTT CONNECT packet.
    MqttProtocolString,
    /// Client identifier of an MQTT client.
    MqttClientId,
    /// User name that an MQTT client sends.
    MqttUsername,
    /// Password that an MQTT client sends.
    MqttPassword,
    /// Will topic: the server publishes the will message to it when the MQTT client has disconnected.
    MqttWillTopic,
    /// Message that the server publishes to the will topic.
    MqttWillMessage,
    /// Topic that an MQTT packet publishes to.
    MqttPublishTopic,
    /// Message that an MQTT packet publishes.
    MqttPublishMessage,
    /// Each topic that an MQTT client subscribes to.
    MqttSubscribeTopic,
    /// Each topic that an MQTT client unsubscribes from.
    MqttUnsubscribeTopic,
    /// Type of an HTTP/2 frame, as a number.
    Http2FrameType,
    /// Error code of an HTTP/2 frame.
    Http2ErrorCode,
    /// Weight that an HTTP/2 frame gives its stream.
    Http2Priority,
    /// Bytes by which an HTTP/2 frame enlarges a flow-control window.
    Http2Window,
    /// Each size of the header table that an HTTP/2 header block sets.
    Http2SizeUpdate,
    /// Each setting of an HTTP/2 frame: its value in the low 32 bits, its identifier above them.
    Http2Settings,
    /// Name of each header of an HTTP/2 header block.
    Http2HeaderName,
    /// First bytes of the body of an HTTP request or response.
    FileData,
    /// Each header line of an HTTP request, without its line end.
    HttpRequestHeader,
    /// Each header line of an HTTP response, without its line end.
    HttpResponseHeader,
    /// Name in a DNS query or in the question of its response.
    DnsQuestion,
    /// Header of IP, with its options or extension headers.
    IpHeader,
    /// Header of TCP, UDP or ICMP.
    TransportHeader,
    /// Name of an FTP command, in capitals.
    FtpCommand,
    /// Parameter of an FTP command, after the command name.
    FtpCommandData,
    /// Text of a line of an FTP reply, after its code.
    FtpReply,
    /// Code of a line of an FTP reply, three digits.
    FtpCompletionCode,
    /// Value 1 for the last line of the final reply to an FTP command; other lines lack this buffer.
    FtpReplyReceived,
    /// Endpoint that opens the data connection of FTP: 1 for the server, 2 for the client.
    FtpMode,
    /// Port of the FTP data connection, from a command and its reply.
    FtpDynamicPort,
    /// Protocol version that an SSH client or server sends.
    SshProto,
    /// Software name that an SSH client or server sends.
    SshSoftware,
    /// Fingerprint of an SSH client: the MD5 of [`Buffer::SshHasshString`].
    SshHassh,
    /// Algorithms of an SSH client for key exchange, encryption, authentication and compression.
    SshHasshString,
    /// Fingerprint of an SSH server: the MD5 of [`Buffer::SshHasshServerString`].
    SshHasshServer,
    /// Algorithms of an SSH server for key exchange, encryption, authentication and compression.
    SshHasshServerString,
    /// Version of an NTP message.
    NtpVersion,
    /// Stratum of an NTP message.
    NtpStratum,
    /// Mode of an NTP message.
    NtpMode,
    /// Reference identifier of an NTP message, four bytes.
    NtpReferenceId,
    /// Initiator SPI of an IKE message to the server, 16 lower-case hexadecimal digits.
    IkeInitiatorSpi,
    /// Responder SPI of an IKE message to the client, 16 lower-case hexadecimal digits.
    IkeResponderSpi,
    /// Type of an IKE exchange, as a number.
    IkeExchangeType,
    /// Each vendor identifier of an IKE 1 client, in lower-case hexadecimal digits.
    IkeVendor,
    /// Key exchange of an IKE 1 message.
    IkeKeyExchange,
    /// Nonce of an IKE 1 message.
    IkeNonce,
    /// Attributes that an IKE server chooses, each as `;name=number;`.
    IkeChosen,
}

impl Buffer {
    /// Number of buffers.
    pub const COUNT: usize = 109;

    /// All buffers, in the order of their discriminants.
    pub const ALL: [Self; Self::COUNT] = [
        Self::Payload,
        Self::HttpMethod,
        Self::HttpUri,
        Self::HttpRawUri,
        Self::HttpProtocol,
        Self::HttpRequestLine,
        Self::HttpHeader,
        Self::HttpRawHeader,
        Self::HttpCookie,
        Self::HttpRawCookie,
        Self::HttpHost,
        Self::HttpUserAgent,
        Self::HttpReferer,
        Self::HttpContentType,
        Self::HttpAccept,
        Self::HttpAcceptEncoding,
        Self::HttpAcceptLanguage,
        Self::HttpConnection,
        Self::HttpContentLength,
        Self::HttpLocation,
        Self::HttpServer,
        Self::HttpHeaderNames,
        Self::HttpStart,
        Self::HttpClientBody,
        Self::HttpServerBody,
        Self::HttpStatusCode,
        Self::HttpStatusMessage,
        Self::HttpResponseLine,
        Self::DnsQuery,
        Self::TlsSni,
        Self::TlsCertificates,
        Self::TlsSubject,
        Self::TlsIssuer,
        Self::TlsSerial,
        Self::Ja3Hash,
        Self::Ja3String,
        Self::Ja3sHash,
        Self::Ja3sString,
        Self::Base64,
        Self::DceInterface,
        Self::DceOpnum,
        Self::DceStub,
        Self::SipMethod,
        Self::SipUri,
        Self::SipRequestLine,
        Self::SipStatusCode,
        Self::SipStatusMessage,
        Self::SipResponseLine,
        Self::SipProtocol,
        Self::SipFrom,
        Self::SipTo,
        Self::SipVia,
        Self::SipUserAgent,
        Self::SipContentType,
        Self::SipContentLength,
        Self::MqttType,
        Self::MqttFlags,
        Self::MqttQos,
        Self::MqttReasonCode,
        Self::MqttSessionPresent,
        Self::MqttProtocolVersion,
        Self::MqttConnectFlags,
        Self::MqttProtocolString,
        Self::MqttClientId,
        Self::MqttUsername,
        Self::MqttPassword,
        Self::MqttWillTopic,
        Self::MqttWillMessage,
        Self::MqttPublishTopic,
        Self::MqttPublishMessage,
        Self::MqttSubscribeTopic,
        Self::MqttUnsubscribeTopic,
        Self::Http2FrameType,
        Self::Http2ErrorCode,
        Self::Http2Priority,
        Self::Http2Window,
        Self::Http2SizeUpdate,
        Self::Http2Settings,
        Self::Http2HeaderName,
        Self::FileData,
        Self::HttpRequestHeader,
        Self::HttpResponseHeader,
        Self::DnsQuestion,
        Self::IpHeader,
        Self::TransportHeader,
        Self::FtpCommand,
        Self::FtpCommandData,
        Self::FtpReply,
        Self::FtpCompletionCode,
        Self::FtpReplyReceived,
        Self::FtpMode,
        Self::FtpDynamicPort,
        Self::SshProto,
        Self::SshSoftware,
        Self::SshHassh,
        Self::SshHasshString,
        Self::SshHasshServer,
        Self::SshHasshServerString,
        Self::NtpVersion,
        Self::NtpStratum,
        Self::NtpMode,
        Self::NtpReferenceId,
        Self::IkeInitiatorSpi,
        Self::IkeResponderSpi,
        Self::IkeExchangeType,
        Self::IkeVendor,
        Self::IkeKeyExchange,
        Self::IkeNonce,
        Self::IkeChosen,
    ];

    /// Returns the stage at which the buffer becomes available: 0 with every packet, 1 with a message, 2 only with
    /// later bytes of the same sender. A buffer stays available at later stages.
    pub fn stage(self) -> u8 {
        match self {
            body if body.is_body() => 2,
            Self::TlsCertificates | Self::TlsSubject | Self::TlsIssuer | Self::TlsSerial => 2,
            // These buffers may become complete only with the reply to a command.
            Self::FtpMode | Self::FtpDynamicPort => 2,
            Self::SshHassh
            | Self::SshHasshString
            | Self::SshHasshServer
            | Self::SshHasshServerString => 2,
            other => u8::from(other.application().is_some()),
        }
    }

    /// Returns true if the buffer is a message body, which grows as its bytes arrive.
    #[inline]
    pub fn is_body(self) -> bool {
        matches!(
            self,
            Self::HttpClientBody | Self::HttpServerBody | Self::FileData
        )
    }

    /// Returns true if a message may contain several instances, each of which a rule can test on its own, as in
    /// Suricata.
    pub fn has_instances(self) -> bool {
        matches!(
            self,
            Self::HttpRequestHeader
                | Self::HttpResponseHeader
                | Self::Http2HeaderName
                | Self::MqttSubscribeTopic
                | Self::MqttUnsubscribeTopic
                | Self::IkeVendor
                | Self::FtpReply
                | Self::DnsQuery
                | Self::DnsQuestion
                | Self::TlsCertificates
        )
    }

    /// Returns true if the buffer is only in messages to the server, false if only in messages to the client, and none
    /// if in both directions.
    pub fn to_server(self) -> Option<bool> {
        match self {
            Self::HttpMethod
            | Self::HttpUri
            | Self::HttpRawUri
            | Self::HttpRequestLine
            | Self::HttpHost
            | Self::HttpUserAgent
            | Self::HttpReferer
            | Self::HttpAccept
            | Self::HttpAcceptEncoding
            | Self::HttpAcceptLanguage
            | Self::HttpClientBody
            | Self::HttpRequestHeader
            | Self::DnsQuery
            | Self::TlsSni
            | Self::Ja3Hash
            | Self::Ja3String
            | Self::SipMethod
            | Self::SipUri
            | Self::SipRequestLine
            | Self::FtpCommand
            | Self::FtpCommandData
            | Self::SshHassh
            | Self::SshHasshString
            | Self::IkeInitiatorSpi
            | Self::IkeVendor => Some(true),
            Self::HttpStatusCode
            | Self::HttpStatusMessage
            | Self::HttpResponseLine
            | Self::HttpLocation
            | Self::HttpServer
            | Self::HttpServerBody
            | Self::HttpResponseHeader
            | Self::TlsCertificates
            | Self::TlsSubject
            | Self::TlsIssuer
            | Self::TlsSerial
            | Self::Ja3sHash
            | Self::Ja3sString
            | Self::FtpReply
            | Self::FtpCompletionCode
            | Self::FtpReplyReceived
            | Self::SshHasshServer
            | Self::SshHasshServerString
            | Self::IkeResponderSpi
            | Self::IkeChosen => Some(false),
            _ => None,
        }
    }

    /// Returns the buffer with the bodies of HTTP requests (`to_server`) or of responses.
    pub(crate) fn body_of(to_server: bool) -> Self {
        match to_server {
            true => Self::HttpClientBody,
            false => Self::HttpServerBody,
        }
    }

    /// Returns true if a rule may test for the absence of this buffer (`absent`). That holds for the optional parts of
    /// HTTP messages; the parsers do not report the absence of other buffers.
    pub fn may_be_absent(self) -> bool {
        self.is_body()
            || matches!(
                self,
                Self::HttpCookie
                    | Self::HttpRawCookie
                    | Self::HttpHost
                    | Self::HttpUserAgent
                    | Self::HttpReferer
                    | Self::HttpContentType
                    | Self::HttpAccept
                    | Self::HttpAcceptEncoding
                    | Self::HttpAcceptLanguage
                    | Self::HttpConnection
                    | Self::HttpContentLength
                    | Self::HttpLocation
                    | Self::HttpServer
                    | Self::HttpRequestHeader
                    | Self::HttpResponseHeader
            )
    }

    /// Returns the protocol whose inspector fills the buffer, the first one if there are several; none if every packet
    /// has the buffer.
    pub fn application(self) -> Option<Application> {
        self.applications().first().copied()
    }

    /// Returns the protocols whose inspectors fill the buffer; none if every packet has the buffer.
    pub fn applications(self) -> &'static [Application] {
        match self {
            Self::Payload | Self::Base64 | Self::IpHeader | Self::TransportHeader => &[],
            Self::DnsQuery | Self::DnsQuestion => &[Application::Dns],
            Self::TlsSni
            | Self::TlsCertificates
            | Self::TlsSubject
            | Self::TlsIssuer
            | Self::TlsSerial
            | Self::Ja3Hash
            | Self::Ja3String
            | Self::Ja3sHash
            | Self::Ja3sString => &[Application::Tls],
            Self::DceInterface | Self::DceOpnum | Self::DceStub => &[Application::DceRpc],
            Self::SipMethod
            | Self::SipUri
            | Self::SipRequestLine
            | Self::SipStatusCode
            | Self::SipStatusMessage
            | Self::SipResponseLine
            | Self::SipProtocol
            | Self::SipFrom
            | Self::SipTo
            | Self::SipVia
            | Self::SipUserAgent
            | Self::SipContentType
            | Self::SipContentLength => &[Application::Sip],
            Self::MqttType
            | Self::MqttFlags
            | Self::MqttQos
            | Self::MqttReasonCode
            | Self::MqttSessionPresent
            | Self::MqttProtocolVersion
            | Self::MqttConnectFlags
            | Self::MqttProtocolString
            | Self::MqttClientId
            | Self::MqttUsername
            | Self::MqttPassword
            | Self::MqttWillTopic
            | Self::MqttWillMessage
            | Self::MqttPublishTopic
            | Self::MqttPublishMessage
            | Self::MqttSubscribeTopic
            | Self::MqttUnsubscribeTopic => &[Application::Mqtt],
            Self::Http2FrameType
            | Self::Http2ErrorCode
            | Self::Http2Priority
            | Self::Http2Window
            | Self::Http2SizeUpdate
            | Self::Http2Settings
            | Self::Http2HeaderName => &[Application::Http2],
            Self::FtpCommand
            | Self::FtpCommandData
            | Self::FtpReply
            | Self::FtpCompletionCode
            | Self::FtpReplyReceived
            | Self::FtpMode
            | Self::FtpDynamicPort => &[Application::Ftp],
            Self::SshProto
            | Self::SshSoftware
            | Self::SshHassh
            | Self::SshHasshString
            | Self::SshHasshServer
            | Self::SshHasshServerString => &[Application::Ssh],
            Self::NtpVersion | Self::NtpStratum | Self::NtpMode | Self::NtpReferenceId => {
                &[Application::Ntp]
            }
            Self::IkeInitiatorSpi
            | Self::IkeResponderSpi
            | Self::IkeExchangeType
            | Self::IkeVendor
            | Self::IkeKeyExchange
            | Self::IkeNonce
            | Self::IkeChosen => &[Application::Ike],
            _ => &[Application::Http, Application::Http2],
        }
    }
}

/// A protocol above layer 4 that has an inspector.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Application {
    /// HTTP/1.0 and HTTP/1.1.
    Http,
    /// DNS over UDP or TCP.
    Dns,
    /// TLS, up to the ClientHello and the server's certificates.
    Tls,
    /// SMTP, recognised by its first command.
    Smtp,
    /// The control connection of FTP.
    Ftp,
    /// SSH, up to the key exchange.
    Ssh,
    /// SMB over NetBIOS or TCP, recognised by its first message.
    Smb,
    /// DCE/RPC over TCP.
    DceRpc,
    /// SIP over UDP or TCP.
    Sip,
    /// MQTT.
    Mqtt,
    /// HTTP/2 without TLS.
    Http2,
    /// NTP.
    Ntp,
    /// IKE.
    Ike,
}

impl Application {
    /// All protocols above layer 4 that have an inspector.
    const ALL: [Self; 13] = [
        Self::Http,
        Self::Dns,
        Self::Tls,
        Self::Smtp,
        Self::Ftp,
        Self::Ssh,
        Self::Smb,
        Self::DceRpc,
        Self::Sip,
        Self::Mqtt,
        Self::Http2,
        Self::Ntp,
        Self::Ike,
    ];

    /// Returns the name of the protocol in rules and events.
    pub fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Dns => "dns",
            Self::Tls => "tls",
            Self::Smtp => "smtp",
            Self::Ftp => "ftp",
            Self::Ssh => "ssh",
            Self::Smb => "smb",
            Self::DceRpc => "dcerpc",
            Self::Sip => "sip",
            Self::Mqtt => "mqtt",
            Self::Http2 => "http2",
            Self::Ntp => "ntp",
            Self::Ike => "ike",
        }
    }

    /// Returns the protocol with the given name; none if no inspected protocol has it.
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|it| it.name() == name)
    }
}

/// A set of buffers, with one bit for each [`Buffer`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct BufferSet(u128);

impl BufferSet {
    /// Adds a buffer to the set.
    #[inline]
    pub fn insert(&mut self, buffer: Buffer) {
        self.0 |= 1 << buffer as u32;
    }

    /// Returns true if the set contains that buffer.
    #[inline]
    pub fn contains(self, buffer: Buffer) -> bool {
        self.0 & (1 << buffer as u32) != 0
    }

    /// Returns true if the set is empty.
    #[inline]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns true if at least one buffer is in both sets.
    #[inline]
    pub fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Returns the set, extended by the buffers that are part of a buffer in the set, or have the same content under
    /// another name.
    #[inline]
    #[must_use]
    pub fn with_parts(mut self) -> Self {
        for (of, parts) in [
            (Buffer::HttpClientBody, &[Buffer::FileData][..]),
            (Buffer::HttpServerBody, &[Buffer::FileData]),
            (
                Buffer::HttpHeader,
                &[Buffer::HttpRequestHeader, Buffer::HttpResponseHeader],
            ),
            (Buffer::DnsQuery, &[Buffer::DnsQuestion]),
        ] {
            if self.contains(of) {
                parts.iter().for_each(|&part| self.insert(part));
            }
        }
        self
    }

    /// Returns the union of both sets.
    #[inline]
    #[must_use]
    pub fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Iterates over the buffers of the set.
    #[inline]
    pub fn iter(self) -> impl Iterator<Item = Buffer> {
        let mut left = self.0;
        std::iter::from_fn(move || {
            let number = left.trailing_zeros() as usize;
            left &= left.wrapping_sub(1);
            Buffer::ALL.get(number).copied()
        })
    }
}

impl FromIterator<Buffer> for BufferSet {
    fn from_iter<I: IntoIterator<Item = Buffer>>(buffers: I) -> Self {
        let mut set = Self::default();
        buffers.into_iter().for_each(|buffer| set.insert(buffer));
        set
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_set_contains_exactly_the_inserted_buffers() {
        let all: BufferSet = Buffer::ALL.into_iter().collect();
        assert!(all.iter().eq(Buffer::ALL));
        let one: BufferSet = [Buffer::TlsSni].into_iter().collect();
        assert!(one.contains(Buffer::TlsSni) && !one.contains(Buffer::Payload));
        assert!(one.union(BufferSet::default()).iter().eq([Buffer::TlsSni]));
    }

    #[test]
    fn the_value_of_each_buffer_is_its_list_index() {
        for (number, buffer) in Buffer::ALL.into_iter().enumerate() {
            assert_eq!(buffer as usize, number);
        }
    }
}
