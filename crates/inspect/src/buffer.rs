//! Parts of a packet or a message that rules look into.

/// Part of a packet or of a message that a rule looks into.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
#[repr(u8)]
pub enum Buffer {
    /// What the packet carries behind its header of layer 4; of TCP also where it continues what came before.
    Payload,
    /// Method of an HTTP request.
    HttpMethod,
    /// Its target without scheme and host, decoded once and with a normal path.
    HttpUri,
    /// Its target as sent.
    HttpRawUri,
    /// Version in a request or response.
    HttpProtocol,
    /// First line of a request.
    HttpRequestLine,
    /// Header lines, each as `Name: value` and a line end.
    HttpHeader,
    /// Header lines as sent.
    HttpRawHeader,
    /// Cookies of a request, or what a response sets.
    HttpCookie,
    /// Cookies as sent.
    HttpRawCookie,
    /// Host that the target or else `Host` names, in lower case, without port; several are joined by `, `.
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
    /// Names of the header lines as sent, a line end in front of the first, behind each, and behind all.
    HttpHeaderNames,
    /// First line and header lines as sent, with the empty line behind them.
    HttpStart,
    /// First bytes of a request's body.
    HttpClientBody,
    /// First bytes of a response's body.
    HttpServerBody,
    /// Status of a response, three digits.
    HttpStatusCode,
    /// Reason that a response gives.
    HttpStatusMessage,
    /// First line of a response.
    HttpResponseLine,
    /// Name that a DNS query asks for, in dots.
    DnsQuery,
    /// Server name of a TLS client hello.
    TlsSni,
    /// Each certificate of a TLS server, as sent.
    TlsCertificates,
    /// Whom the first certificate of a TLS server is for, such as `C=FR, CN=example.org`.
    TlsSubject,
    /// Who has signed it, in the same form.
    TlsIssuer,
    /// Its number, bytes as two capital digits each with colons between them.
    TlsSerial,
    /// Fingerprint of a TLS client by its hello: the MD5 of the following.
    Ja3Hash,
    /// Version, cipher suites, extensions, groups and point formats of a TLS client's hello, in decimals.
    Ja3String,
    /// Fingerprint of a TLS server by its hello: the MD5 of the following.
    Ja3sHash,
    /// Version, cipher suite and extensions of a TLS server's hello, in decimals.
    Ja3sString,
    /// What `base64_decode` of the same rule has decoded.
    Base64,
    /// Each interface that a DCE/RPC call is of: its name of 16 bytes as it is written, its major version of two bytes, and 1 if it was bound by a first fragment.
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
    /// Reason that a SIP response gives.
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
    /// Number of the kind of an MQTT packet.
    MqttType,
    /// Flags of an MQTT packet.
    MqttFlags,
    /// Quality of service of an MQTT packet.
    MqttQos,
    /// Each reason code of an MQTT packet.
    MqttReasonCode,
    /// Whether the server of MQTT has a session, 1 or 0.
    MqttSessionPresent,
    /// Version of MQTT that the client has named.
    MqttProtocolVersion,
    /// Flags of an MQTT client that connects.
    MqttConnectFlags,
    /// Name of the protocol that an MQTT client sends.
    MqttProtocolString,
    /// Name of an MQTT client.
    MqttClientId,
    /// User that an MQTT client names.
    MqttUsername,
    /// Password that an MQTT client sends.
    MqttPassword,
    /// Topic to which the server publishes when an MQTT client is gone.
    MqttWillTopic,
    /// Message that it publishes there.
    MqttWillMessage,
    /// Topic that an MQTT packet publishes to.
    MqttPublishTopic,
    /// Message that an MQTT packet publishes.
    MqttPublishMessage,
    /// Each topic that an MQTT client subscribes to.
    MqttSubscribeTopic,
    /// Each topic that an MQTT client does not subscribe to any more.
    MqttUnsubscribeTopic,
    /// Number of the kind of an HTTP/2 frame.
    Http2FrameType,
    /// Error code of an HTTP/2 frame.
    Http2ErrorCode,
    /// Weight that an HTTP/2 frame gives its stream.
    Http2Priority,
    /// Bytes by which an HTTP/2 frame widens a window.
    Http2Window,
    /// Each size of the table of headers that an HTTP/2 header block sets.
    Http2SizeUpdate,
    /// Each setting of an HTTP/2 frame, its number above 32 bits of its value.
    Http2Settings,
    /// Name of each header of an HTTP/2 header block.
    Http2HeaderName,
    /// First bytes of the body of a request or of a response.
    FileData,
    /// Each header line of a request, without its end.
    HttpRequestHeader,
    /// Each header line of a response, without its end.
    HttpResponseHeader,
    /// Name that a DNS query asks for, or that its response answers for.
    DnsQuestion,
    /// Header of IP, with its options or the headers behind it.
    IpHeader,
    /// Header of TCP, UDP or ICMP.
    TransportHeader,
    /// Word of an FTP command, in capitals.
    FtpCommand,
    /// What follows the word of an FTP command.
    FtpCommandData,
    /// Text of a line of an FTP reply, behind its code.
    FtpReply,
    /// Code of a line of an FTP reply, three digits.
    FtpCompletionCode,
    /// 1 where an FTP reply is complete.
    FtpReplyReceived,
    /// Who connects for data of FTP: 1 for the server, 2 for the client.
    FtpMode,
    /// Port that an FTP command and its reply agree on for data.
    FtpDynamicPort,
    /// Version of the protocol that an end of SSH names.
    SshProto,
    /// Software that an end of SSH names.
    SshSoftware,
    /// Fingerprint of an SSH client by its algorithms: the MD5 of the following.
    SshHassh,
    /// Algorithms of an SSH client for keys, encryption, authentication and compression.
    SshHasshString,
    /// Fingerprint of an SSH server by its algorithms: the MD5 of the following.
    SshHasshServer,
    /// Algorithms of an SSH server for the same.
    SshHasshServerString,
    /// Version of an NTP message.
    NtpVersion,
    /// Stratum of an NTP message.
    NtpStratum,
    /// Mode of an NTP message.
    NtpMode,
    /// Reference of an NTP message, four bytes.
    NtpReferenceId,
    /// Index of the initiator in an IKE message to the server, 16 small digits.
    IkeInitiatorSpi,
    /// Index of the responder in an IKE message to the client, 16 small digits.
    IkeResponderSpi,
    /// Number of the kind of an IKE exchange.
    IkeExchangeType,
    /// Each vendor that a client of IKE 1 names, in small digits.
    IkeVendor,
    /// Key exchange of an IKE 1 message.
    IkeKeyExchange,
    /// Nonce of an IKE 1 message.
    IkeNonce,
    /// Attributes that a server of IKE chooses, each as `;name=number;`.
    IkeChosen,
}

impl Buffer {
    /// Number of buffers.
    pub const COUNT: usize = 109;

    /// All of them, by their numbers.
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

    /// When it is there: 0 with a packet, 1 with a message, 2 with what comes after it of the same end; what came before is there still.
    pub fn stage(self) -> u8 {
        match self {
            body if body.is_body() => 2,
            Self::TlsCertificates | Self::TlsSubject | Self::TlsIssuer | Self::TlsSerial => 2,
            // These may come with a reply, after the command.
            Self::FtpMode | Self::FtpDynamicPort => 2,
            Self::SshHassh
            | Self::SshHasshString
            | Self::SshHasshServer
            | Self::SshHasshServerString => 2,
            other => u8::from(other.application().is_some()),
        }
    }

    /// Says whether it is a body, which grows with each piece of it that comes.
    #[inline]
    pub fn is_body(self) -> bool {
        matches!(
            self,
            Self::HttpClientBody | Self::HttpServerBody | Self::FileData
        )
    }

    /// Whether a message may have several of it, each of which a rule may ask for by itself, as in Suricata.
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

    /// Direction of the messages that have it; none if those of both may.
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

    /// Returns the buffer that holds the HTTP bodies of a direction.
    pub(crate) fn body_of(to_server: bool) -> Self {
        match to_server {
            true => Self::HttpClientBody,
            false => Self::HttpServerBody,
        }
    }

    /// Returns whether a rule may ask for this buffer to be missing (`absent`). That is so for parts of HTTP messages that are optional;
    /// of other buffers, the parsers do not report that they are missing.
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

    /// Protocol whose inspector finds it, the first of them if it is of several; none for what every packet has.
    pub fn application(self) -> Option<Application> {
        self.applications().first().copied()
    }

    /// Protocols whose inspectors find it; none for what every packet has.
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

/// Protocol above layer 4 that has an inspector.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Application {
    /// HTTP/1.x.
    Http,
    /// DNS over UDP or TCP.
    Dns,
    /// TLS, up to the client's hello and the server's certificates.
    Tls,
    /// SMTP, by its first command.
    Smtp,
    /// The control connection of FTP.
    Ftp,
    /// SSH, up to the keys.
    Ssh,
    /// SMB over NetBIOS or TCP, by its first message.
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
    /// All of them.
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

    /// What rules and events call it.
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

    /// The one of that name.
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|it| it.name() == name)
    }
}

/// Set of buffers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct BufferSet(u128);

impl BufferSet {
    /// Puts a buffer into it.
    #[inline]
    pub fn insert(&mut self, buffer: Buffer) {
        self.0 |= 1 << buffer as u32;
    }

    /// Says whether that buffer is in it.
    #[inline]
    pub fn contains(self, buffer: Buffer) -> bool {
        self.0 & (1 << buffer as u32) != 0
    }

    /// Says whether there is none in it.
    #[inline]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Says whether any buffer is in both.
    #[inline]
    pub fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Adds the buffers that are parts of these, or the same by another name.
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

    /// Makes the set of what is in either.
    #[inline]
    #[must_use]
    pub fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Goes through it.
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
    fn a_set_gives_back_what_was_put_in() {
        let all: BufferSet = Buffer::ALL.into_iter().collect();
        assert!(all.iter().eq(Buffer::ALL));
        let one: BufferSet = [Buffer::TlsSni].into_iter().collect();
        assert!(one.contains(Buffer::TlsSni) && !one.contains(Buffer::Payload));
        assert!(one.union(BufferSet::default()).iter().eq([Buffer::TlsSni]));
    }

    #[test]
    fn numbers_are_places() {
        for (number, buffer) in Buffer::ALL.into_iter().enumerate() {
            assert_eq!(buffer as usize, number);
        }
    }
}
