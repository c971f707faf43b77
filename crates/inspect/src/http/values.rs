//! The header lines whose values are buffers of their own.

use crate::buffer::Buffer;

/// Header lines, in addition to the host, whose values are buffers of their own, by their names in lower case.
pub(crate) const VALUES: [(&[u8], Buffer); 10] = [
    (b"user-agent", Buffer::HttpUserAgent),
    (b"referer", Buffer::HttpReferer),
    (b"content-type", Buffer::HttpContentType),
    (b"accept", Buffer::HttpAccept),
    (b"accept-encoding", Buffer::HttpAcceptEncoding),
    (b"accept-language", Buffer::HttpAcceptLanguage),
    (b"connection", Buffer::HttpConnection),
    (b"content-length", Buffer::HttpContentLength),
    (b"location", Buffer::HttpLocation),
    (b"server", Buffer::HttpServer),
];

/// Header lines among them that only responses have.
pub(crate) const OF_RESPONSES: [&[u8]; 2] = [b"location", b"server"];
