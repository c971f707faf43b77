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
}

impl Buffer {
    /// Number of buffers.
    pub const COUNT: usize = 39;

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
    ];

    /// When it is there: 0 with a packet, 1 with a message, 2 with one that comes after another of the same end.
    pub fn stage(self) -> u8 {
        match self {
            Self::TlsCertificates | Self::TlsSubject | Self::TlsIssuer | Self::TlsSerial => 2,
            other => u8::from(other.application().is_some()),
        }
    }

    /// Protocol whose inspector finds it; none for what every packet has.
    pub fn application(self) -> Option<Application> {
        match self {
            Self::Payload | Self::Base64 => None,
            Self::DnsQuery => Some(Application::Dns),
            Self::TlsSni
            | Self::TlsCertificates
            | Self::TlsSubject
            | Self::TlsIssuer
            | Self::TlsSerial
            | Self::Ja3Hash
            | Self::Ja3String
            | Self::Ja3sHash
            | Self::Ja3sString => Some(Application::Tls),
            _ => Some(Application::Http),
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
    /// FTP, by its first command.
    Ftp,
    /// SSH, by its first line.
    Ssh,
    /// SMB over NetBIOS or TCP, by its first message.
    Smb,
}

impl Application {
    /// All of them.
    const ALL: [Self; 7] = [
        Self::Http,
        Self::Dns,
        Self::Tls,
        Self::Smtp,
        Self::Ftp,
        Self::Ssh,
        Self::Smb,
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
        }
    }

    /// The one of that name.
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|it| it.name() == name)
    }
}

/// Set of buffers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct BufferSet(u64);

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
