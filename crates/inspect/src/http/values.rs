//! The header lines whose values fill separate buffers.

use crate::buffer::Buffer;

/// Names in lower case of the header lines whose values fill a buffer, without the host.
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

/// Header lines of [`VALUES`] that only responses have.
pub(crate) const OF_RESPONSES: [&[u8]; 2] = [b"location", b"server"];
