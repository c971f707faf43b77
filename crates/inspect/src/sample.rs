//! Three hundred rules in the language of Suricata, for trials, measurements and tests. They were written for taut, and
//! no licence restricts their use. They use every option that Suricata and taut both support, and none of them matches
//! the traffic of `taut generate`.

use std::fmt::Write as _;

/// Number of sample rules.
pub const RULES: usize = 300;

/// Beginnings of rules: header and options. Each `@` is replaced by a word that occurs in no other rule.
const FORMS: &[&str] = &[
    "udp any any -> any 53 (content:\"@\"; nocase; offset:12; depth:200",
    "udp any any -> any 53 (content:\"|01 00 00 01|\"; offset:2; depth:4; content:\"@\"; nocase; distance:4; within:64",
    "dns any any -> any any (dns.query; dotprefix; content:\".@.example\"; nocase; endswith",
    "dns any any -> any any (dns.query; content:\"@\"; startswith; bsize:>20; pcre:\"/@[0-9]{4}/i\"",
    "http any any -> any any (flow:to_server,established; http.method; content:\"POST\"; http.uri; content:\"/@.php\"; fast_pattern; isdataat:!1,relative",
    "http any any -> any any (flow:to_server,established; http.uri.raw; content:\"%2f@\"; nocase; urilen:>8",
    "http any any -> any any (flow:to_server,established; http.host; content:\"@.example\"; endswith; http.user_agent; content:!\"Mozilla\"",
    "http any any -> any any (flow:to_server,established; http.header; content:\"X-@|3a|\"; nocase; http.cookie; content:\"id=@\"",
    "http any any -> any any (flow:to_server,established; content:\"@\"; http_client_body; nocase; content:\"user=\"; http_client_body; distance:1; within:40",
    "http any any -> any any (flow:to_client,established; http.stat_code; content:\"200\"; http.response_body; content:\"<script>@\"; nocase",
    "http any any -> any any (flow:to_server,established; http.request_line; content:\"GET /@ HTTP/1.0\"; http.referer; content:\"@\"; http.protocol; content:\"HTTP/1.0\"",
    "http any any -> any any (flow:to_client,established; http.stat_msg; content:\"@\"; http.content_type; content:\"text/html\"; http.response_line; content:\"@\"; http.server; content:\"@\"; http.location; content:\"@\"",
    "http any any -> any any (flow:to_server,established; http.accept; content:\"@\"; http.header.raw; content:\"|0d 0a|Accept|3a 20|@\"",
    "tls any any -> any any (tls.sni; content:\"@.example\"; nocase; endswith; ssl_state:client_hello; tls.version:1.2",
    "tcp any any -> any [21,25,110,143] (flow:to_server,established; content:\"@ \"; depth:24; nocase; pcre:\"/^@\\s+(\\S+)\\s+\\1/i\"",
    "tcp any any -> any 445 (flow:to_server,established; content:\"|ff|SMB\"; offset:4; depth:4; byte_test:1,&,128,6,relative; byte_jump:2,3,relative,little,align,post_offset -2; content:\"@\"; distance:0",
    "tcp any any -> any 1024: (flow:established; content:\"@\"; byte_extract:2,0,length,relative; isdataat:length,relative; byte_test:4,>,length,0,relative,string,hex",
    "tcp any any <> any 6667 (content:\"PRIVMSG \"; content:\"@\"; distance:0; within:100; byte_math:bytes 1,offset 0,oper +,rvalue 3,result sum,relative; byte_test:1,<=,sum,0,relative",
    "tcp any any -> any any (flow:to_server,established; flowbits:set,@; flowbits:noalert; content:\"BEGIN @\"; dsize:<1000",
    "tcp any any -> any any (flow:to_server,established; flowbits:isset,@; flowbits:isnotset,@.done; content:\"END @\"; flowbits:unset,@; threshold:type limit, track by_src, count 1, seconds 60",
    "tcp any any -> any any (flags:SFRPAUEC; window:12345; seq:1234567; ack:7654321; content:\"@\"",
    "icmp any any -> any any (itype:8; icode:0; icmp_id:4660; icmp_seq:22136; content:\"@\"; detection_filter:track by_src, count 30, seconds 10",
    "ip any any -> any any (ip_proto:!17; ttl:1-3; tos:8; id:4660; fragbits:D; content:\"@\"; sameip",
    "ip any any -> any any (ipopts:lsrr; fragoffset:0; content:\"@\"; priority:1",
    "tcp any any -> any 80 (flow:to_server,established; content:\"Authorization|3a| Basic \"; nocase; base64_decode:bytes 40,offset 0,relative; base64_data; content:\"@\"",
    "tls any any -> any any (flow:to_client,established; tls.cert_subject; content:\"CN=@.example\"; nocase; endswith; tls.cert_issuer; content:\"O=@\"; tls.cert_serial; content:\"0A|3a|\"; startswith; tls.certs; content:\"|30 82|\"; depth:2",
    "tls any any -> any any (flow:to_server,established; ja3.string; content:\"771,@\"; startswith; ja3.hash; content:!\"0123456789abcdef0123456789abcdef\"",
    "tls any any -> any any (flow:to_client,established; ja3s.string; content:\"771,@\"; startswith; ja3s.hash; content:!\"0123456789abcdef0123456789abcdef\"",
    "smtp any any -> any any (flow:to_server,established; content:\"MAIL FROM|3a|<@\"; nocase; xbits:set,@,track ip_src,expire 60; stream_size:server,<,2000",
    "tcp any any -> any any (flow:to_server,established; app-layer-protocol:ftp; content:\"RETR @\"; nocase; xbits:isnotset,@.done,track ip_pair; stream_size:both,>,4",
];

/// Returns the text of a file with the sample rules.
///
/// ```
/// use taut_inspect::read::{Options, Reading};
///
/// let mut reading = Reading::default();
/// reading.read(&taut_inspect::sample::rules(), &Options::default());
/// assert_eq!(reading.rules.len(), taut_inspect::sample::RULES);
/// ```
pub fn rules() -> String {
    let mut text = String::from(
        "# Rules for trials: they use every option that taut and Suricata understand, and mean nothing.\n",
    );
    for number in 0..RULES {
        let (form, turn) = (number % FORMS.len(), number / FORMS.len());
        // A unique word without meaning.
        let word = format!("taut{:04x}", (number * 40_503 + 0x1d2b) & 0xffff);
        let rule = FORMS[form].replace('@', &word);
        let action = if turn % 4 == 3 { "drop" } else { "alert" };
        let _ = writeln!(
            text,
            "{action} {rule}; msg:\"trial {number}\"; classtype:misc-activity; reference:url,example.org/{word}; metadata:made_for trials; sid:{}; rev:1;)",
            9_000_001 + number
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compile::RuleSet;
    use crate::read::{Options, Reading};

    #[test]
    fn all_sample_rules_are_parsed_and_compiled_without_errors() {
        let mut reading = Reading::default();
        reading.read(&rules(), &Options::default());
        assert_eq!(reading.mistakes, []);
        assert!(
            reading.not_understood.is_empty(),
            "{:?}",
            reading.not_understood
        );
        assert_eq!((reading.rules.len(), reading.doubled), (RULES, 0));
        let set = RuleSet::new(reading.rules, reading.names);
        assert!(set.is_ok_and(|set| !set.asked().is_empty() && set.memory_bytes() > 0));
    }
}
