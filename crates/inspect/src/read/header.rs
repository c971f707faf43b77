//! The header of a rule: its action, protocol, hook, addresses and ports. Also the option `app-layer-protocol`, which
//! names a protocol as headers do.

use super::reader::{Dialect, Reader};
use crate::buffer::Application;
use crate::form;
use crate::number::negated;
use crate::refusal::{Placed, Read, Refusal, unable, wrong};
use crate::rule::*;
use crate::syntax::Word;
use std::sync::Arc;

pub(super) fn action(name: &str) -> Read<Action> {
    Ok(match name {
        "alert" => Action::Alert,
        "pass" => Action::Pass,
        "drop" | "block" | "sdrop" => Action::Drop,
        "reject" | "rejectsrc" | "rejectdst" | "rejectboth" | "react" => Action::Reject,
        "log" | "rewrite" | "activate" | "dynamic" | "file_id" | "config" => {
            return Err(Refusal::NotUnderstood);
        }
        _ if form::is_scoped(name) => return Err(Refusal::NotUnderstood),
        _ => return wrong(format!("{name:?}: expected alert, pass, drop or reject")),
    })
}

impl Reader<'_> {
    pub(super) fn header(&mut self, header: &[Word<'_>], rule: &mut Rule) -> Placed<()> {
        let first = header[0].at;
        let Some(protocol) = header.get(1) else {
            return Err((
                first,
                "expected a protocol after the action, such as tcp".to_string(),
            ));
        };
        self.protocol(protocol.text, rule)
            .map_err(|reason| (protocol.at, reason))?;
        let rest = &header[2..];
        if rest.is_empty() && self.dialect == Dialect::Snort3 {
            return Ok(());
        }
        let [source, source_ports, way, destination, destination_ports] = rest else {
            return Err((
                protocol.at,
                "expected addresses and ports on both sides of ->, such as any any -> any 80"
                    .to_string(),
            ));
        };
        rule.both_ways = match way.text {
            "->" => false,
            "<>" => true,
            // Each half of the rule has its own direction.
            "=>" => false,
            other => return Err((way.at, format!("{other:?}: expected ->, <> or =>"))),
        };
        self.is_of_transactions = way.text == "=>";
        let side = |addresses: &Word<'_>, ports: &Word<'_>| {
            let at = |at| move |reason| (at, reason);
            let read = Side {
                addresses: Arc::new(
                    self.variables
                        .addresses(addresses.text)
                        .map_err(at(addresses.at))?,
                ),
                ports: Arc::new(self.variables.ports(ports.text).map_err(at(ports.at))?),
            };
            for (word, is_empty) in [
                (addresses, read.addresses.is_empty()),
                (ports, read.ports.is_empty()),
            ] {
                if is_empty {
                    let why = "it is empty; check its variables";
                    return Err((word.at, format!("{}: {why}", word.text)));
                }
            }
            Ok(read)
        };
        rule.source = side(source, source_ports)?;
        rule.destination = side(destination, destination_ports)?;
        Ok(())
    }

    /// Reads the protocol of a header, and the hook after a colon, if there is one: the message with which Suricata
    /// evaluates the rule, such as `http:request_line`.
    fn protocol(&mut self, text: &str, rule: &mut Rule) -> Result<(), String> {
        let text = text.to_ascii_lowercase();
        let (name, hook) = match text.split_once(':') {
            Some((name, hook)) => (name, Some(hook)),
            None => (&*text, None),
        };
        let Some((protocol, applications)) = protocol_of(name) else {
            if form::is_known_elsewhere(name) {
                self.not_understood
                    .push(format!("{name}: not a protocol that taut reads"));
                return Ok(());
            }
            return Err(format!(
                "unknown protocol {name:?}: expected tcp, udp, icmp, ip, http, dns, tls, smtp, ftp, ssh, smb, \
                dcerpc, sip, mqtt, http2, ntp or ike"
            ));
        };
        (rule.protocol, rule.applications) = (protocol, applications);
        rule.is_positional = name == "tcp-pkt";
        rule.flow.only_stream = name == "tcp-stream";
        match name {
            "ipv4" | "ip4" | "icmpv4" => rule.headers.push(HeaderTest::IpVersion(4)),
            "ipv6" | "ip6" | "icmpv6" => rule.headers.push(HeaderTest::IpVersion(6)),
            _ => {}
        }
        let Some(hook) = hook else {
            return Ok(());
        };
        match hook_of(&rule.applications, hook) {
            Some(to_server) => {
                rule.flow.to_server = Some(to_server);
                self.hook = Some(format!("hook {text}"));
            }
            None => self.not_understood.push(format!("hook {text}")),
        }
        Ok(())
    }
}

/// Returns the layer-4 protocol and the protocols above layer 4 for a protocol name in a header; none for an unknown
/// name.
fn protocol_of(name: &str) -> Option<(Protocol, Vec<Application>)> {
    Some(match name {
        "ip" | "ipv4" | "ip4" | "ipv6" | "ip6" => (Protocol::Ip, Vec::new()),
        "tcp" | "tcp-pkt" | "tcp-stream" => (Protocol::Tcp, Vec::new()),
        "udp" => (Protocol::Udp, Vec::new()),
        "icmp" | "icmpv4" | "icmpv6" => (Protocol::Icmp, Vec::new()),
        "dns" | "sip" => (Protocol::Ip, applications_of(name)?),
        "ntp" | "ike" | "ikev2" => (Protocol::Udp, applications_of(name)?),
        _ => (Protocol::Tcp, applications_of(name)?),
    })
}

/// Returns the protocols for the name of a protocol above layer 4 in a rule; none for an unknown name. `http` means
/// HTTP/1 and HTTP/2.
fn applications_of(name: &str) -> Option<Vec<Application>> {
    Some(match name {
        "http" => vec![Application::Http, Application::Http2],
        "http1" => vec![Application::Http],
        "ssl" | "https" => vec![Application::Tls],
        "ikev2" => vec![Application::Ike],
        _ => vec![Application::of_name(name)?],
    })
}

/// Supported hooks: protocol, hook name, and whether the messages of the hook go to the server.
const HOOKS: [(Application, &str, bool); 11] = [
    (Application::Http, "request_line", true),
    (Application::Http, "request_headers", true),
    (Application::Http, "request_body", true),
    (Application::Http, "request_complete", true),
    (Application::Http, "response_line", false),
    (Application::Http, "response_headers", false),
    (Application::Http, "response_body", false),
    (Application::Http, "response_complete", false),
    (Application::Dns, "request_complete", true),
    (Application::Tls, "client_hello_done", true),
    (Application::Tls, "server_cert_done", false),
];

fn hook_of(of: &[Application], name: &str) -> Option<bool> {
    let is = |it: &&(Application, &str, bool)| of.contains(&it.0) && it.1 == name;
    HOOKS.iter().find(is).map(|it| it.2)
}

/// Reads `app-layer-protocol`. Its direction has no effect, because in taut a flow has the same protocol in both
/// directions and from its first bytes on.
pub(super) fn application(value: &str, rule: &mut Rule) -> Read<()> {
    let (not, value) = negated(value);
    let (name, mode) = value.split_once(',').unwrap_or((value, "either"));
    let name = name.trim();
    if !matches!(
        mode.trim(),
        "either" | "both" | "final" | "to_server" | "to_client"
    ) {
        return unable(format!("app-layer-protocol with {}", mode.trim()));
    }
    let Some(applications) = applications_of(name) else {
        return unable(format!("app-layer-protocol:{name}"));
    };
    if not {
        rule.not_applications.extend(applications);
        return Ok(());
    }
    if rule.applications.is_empty() {
        rule.applications = applications;
        return Ok(());
    }
    if !rule.applications.iter().any(|it| applications.contains(it)) {
        return unable(format!("app-layer-protocol:{name} with another protocol"));
    }
    rule.applications.retain(|it| applications.contains(it));
    Ok(())
}
