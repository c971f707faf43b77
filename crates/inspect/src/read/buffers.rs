//! The names of buffers, of headers that are buffers, and of transforms, as options select them.

use super::contents::bytes;
use super::packet::is_protocol;
use crate::buffer::Buffer;
use crate::keywords;
use crate::number::number;
use crate::refusal::{Read, Refusal, wrong};
use crate::rule::HeaderTest;
use crate::syntax::parts;
use crate::transform::{BASE64, MOST_KEY, Others, Transform};

/// Returns the buffer that an option selects, in the syntax of any rule language; none for other options.
pub(super) fn buffer_of(name: &str, value: &str) -> Read<Option<Buffer>> {
    let buffer = match name {
        "pkt_data" | "raw_data" => Buffer::Payload,
        "http.method" | "http_method" => Buffer::HttpMethod,
        "http.uri" | "http_uri" => Buffer::HttpUri,
        "http.uri.raw" | "http_raw_uri" => Buffer::HttpRawUri,
        "http.protocol" | "http_protocol" | "http_version" => Buffer::HttpProtocol,
        "http.request_line" | "http_request_line" => Buffer::HttpRequestLine,
        "http.response_line" | "http_response_line" => Buffer::HttpResponseLine,
        "http.header" => Buffer::HttpHeader,
        "http_header" => http_header(value)?,
        "http.header.raw" | "http_raw_header" => Buffer::HttpRawHeader,
        "http.cookie" | "http_cookie" => Buffer::HttpCookie,
        "http_raw_cookie" => Buffer::HttpRawCookie,
        "http.host" | "http_host" => Buffer::HttpHost,
        "http.user_agent" | "http_user_agent" => Buffer::HttpUserAgent,
        "http.referer" | "http_referer" => Buffer::HttpReferer,
        "http.content_type" | "http_content_type" => Buffer::HttpContentType,
        "http.accept" | "http_accept" => Buffer::HttpAccept,
        "http.accept_enc" | "http_accept_enc" => Buffer::HttpAcceptEncoding,
        "http.accept_lang" | "http_accept_lang" => Buffer::HttpAcceptLanguage,
        "http.connection" | "http_connection" => Buffer::HttpConnection,
        "http.content_len" | "http_content_len" => Buffer::HttpContentLength,
        "http.header_names" | "http_header_names" => Buffer::HttpHeaderNames,
        "http.start" | "http_start" => Buffer::HttpStart,
        "http.request_body" | "http_client_body" => Buffer::HttpClientBody,
        "http.response_body" | "http_server_body" => Buffer::HttpServerBody,
        "file_data" | "file.data" => Buffer::FileData,
        "http.stat_code" | "http_stat_code" => Buffer::HttpStatusCode,
        "http.stat_msg" | "http_stat_msg" => Buffer::HttpStatusMessage,
        "dns.query" | "dns_query" => Buffer::DnsQuery,
        "http.location" | "http_location" => Buffer::HttpLocation,
        "http.server" | "http_server" => Buffer::HttpServer,
        "tls.sni" | "tls_sni" => Buffer::TlsSni,
        "tls.certs" => Buffer::TlsCertificates,
        "tls.cert_subject" | "tls_cert_subject" => Buffer::TlsSubject,
        "tls.cert_issuer" | "tls_cert_issuer" => Buffer::TlsIssuer,
        "tls.cert_serial" | "tls_cert_serial" => Buffer::TlsSerial,
        "ja3.hash" | "ja3_hash" => Buffer::Ja3Hash,
        "ja3.string" | "ja3_string" => Buffer::Ja3String,
        "ja3s.hash" => Buffer::Ja3sHash,
        "ja3s.string" => Buffer::Ja3sString,
        "base64_data" => Buffer::Base64,
        _ => match keywords::buffer_of(name) {
            Some(buffer) => buffer,
            None => return Ok(None),
        },
    };
    // The value selects a part of the buffer, such as `path` in `http_uri:path`, which is not supported.
    if !value.is_empty() && name != "http_header" {
        return Err(Refusal::NotUnderstood);
    }
    Ok(Some(buffer))
}

/// Returns the buffer that `http_header` selects: all header lines, or one header by its name.
fn http_header(value: &str) -> Read<Buffer> {
    let field = value
        .strip_prefix("field")
        .map(|it| it.trim().to_ascii_lowercase());
    match field.as_deref() {
        None if value.is_empty() => Ok(Buffer::HttpHeader),
        Some("user-agent") => Ok(Buffer::HttpUserAgent),
        Some("host") => Ok(Buffer::HttpHost),
        Some("referer") => Ok(Buffer::HttpReferer),
        Some("content-type") => Ok(Buffer::HttpContentType),
        Some("accept") => Ok(Buffer::HttpAccept),
        _ => Err(Refusal::NotUnderstood),
    }
}

/// Returns the packet header that an option selects as buffer, and the tests that limit the rule to packets with that
/// header; none for other options.
pub(super) fn header_of(name: &str) -> Option<(Buffer, Vec<HeaderTest>)> {
    let version = |version| vec![HeaderTest::IpVersion(version)];
    let protocol = |number| vec![is_protocol(number)];
    Some(match name {
        "ipv4.hdr" => (Buffer::IpHeader, version(4)),
        "ipv6.hdr" => (Buffer::IpHeader, version(6)),
        "tcp.hdr" => (Buffer::TransportHeader, protocol(6)),
        "udp.hdr" => (Buffer::TransportHeader, protocol(17)),
        "icmpv4.hdr" => (Buffer::TransportHeader, protocol(1)),
        "icmpv6.hdr" => (Buffer::TransportHeader, protocol(58)),
        _ => return None,
    })
}

/// Reads a transform from its name and its value; none for other options.
pub(super) fn transform_of(name: &str, value: &str) -> Read<Option<Transform>> {
    match name {
        "xor" => {
            let key = bytes(&format!("\"|{}|\"", value.trim_matches('"')))?;
            if !(1..=MOST_KEY).contains(&key.len()) {
                return wrong(format!(
                    "expected a key of 1 to {MOST_KEY} bytes in hexadecimal digits"
                ));
            }
            Ok(Some(Transform::Xor(key.into())))
        }
        "from_base64" => from_base64(value).map(Some),
        _ => match Transform::of_name(name) {
            Some(_) if !value.is_empty() => Err(Refusal::NotUnderstood),
            found => Ok(found),
        },
    }
}

fn from_base64(value: &str) -> Read<Transform> {
    let mut how = BASE64;
    for part in parts(value).into_iter().filter(|part| !part.is_empty()) {
        let (name, value) = part.split_once(' ').unwrap_or((part, ""));
        let value = value.trim().to_ascii_lowercase();
        match (name, &*value) {
            ("offset", value) => how.offset = number(value)?,
            ("bytes", value) => how.bytes = number(value)?,
            ("mode", "rfc4648") => how.others = Others::End,
            ("mode", "rfc2045") => how.others = Others::Skip,
            ("mode", "strict") => how.others = Others::Refuse,
            _ => return wrong(format!("{part:?}: expected bytes, offset or mode")),
        }
    }
    Ok(Transform::DecodeBase64(how))
}
