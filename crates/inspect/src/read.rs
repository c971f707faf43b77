//! The interpretation of options of rules. A rule with an unsupported part is not loaded, unless lenient reading is
//! requested.

use crate::anomaly::{self, Anomaly};
use crate::buffer::{Application, Buffer};
use crate::evaluate::{MOST_CHANGED, MOST_VLANS};
use crate::form;
use crate::keywords;
use crate::number::{negated, number, signed, within};
use crate::pattern::{Flags, Regex};
use crate::ranges::Ranges;
use crate::refusal::{Placed, Read, Refusal, unable, wrong};
use crate::requires::unmet;
use crate::rule::*;
use crate::syntax::{Joined, Mistake, Word, Written, WrittenOption, joined, parts, split};
use crate::transform::{BASE64, MOST_KEY, MOST_TRANSFORMS, Others, Transform};
use crate::variables::Variables;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// The syntax of a rule file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// Snort 3: `http_uri; content:"x",nocase;`.
    Snort3,
    /// Suricata, and Snort 2: `content:"x"; nocase; http_uri;` or `http.uri; content:"x"; nocase;`.
    Suricata,
}

/// The settings for reading rules.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Variables for addresses and ports.
    pub variables: Variables,
    /// Syntax; by default that of most rules in the file.
    pub dialect: Option<Dialect>,
    /// True if rules that are commented out are read, too.
    pub with_disabled: bool,
    /// True if a rule is loaded without its unsupported parts.
    pub is_lenient: bool,
}

/// The result of reading rule files.
#[derive(Debug, Default)]
pub struct Reading {
    /// Rules that can be evaluated.
    pub rules: Vec<Rule>,
    /// Names of flow bits.
    pub names: Names,
    /// The first [`MOST_MISTAKES`] errors, each with the index of its file.
    pub mistakes: Vec<(usize, Mistake)>,
    /// Number of rules that were skipped because of an error.
    pub mistaken: usize,
    /// Unsupported options, each with the identifiers of the rules that were not loaded because of it, or loaded only
    /// in part.
    pub not_understood: BTreeMap<String, Vec<u32>>,
    /// Number of rules that were not loaded because of an unsupported part.
    pub left_out: usize,
    /// Number of rules that were loaded in part: their unsupported options were skipped.
    pub in_part: usize,
    /// Number of rules that were skipped because an earlier one has the same identifier and generator, and the same or
    /// a later revision.
    pub doubled: usize,
    files: usize,
    known: HashMap<(u32, u32), usize>,
}

/// The names of flow bits, by number.
#[derive(Debug, Default, Clone)]
pub struct Names {
    numbers: HashMap<String, u16>,
}

impl Names {
    fn number(&mut self, name: &str) -> Option<u16> {
        let next = u16::try_from(self.numbers.len())
            .ok()
            .filter(|&it| it < u16::MAX)?;
        Some(*self.numbers.entry(name.to_string()).or_insert(next))
    }

    /// Returns the number of names.
    pub fn len(&self) -> usize {
        self.numbers.len()
    }

    /// Returns true if there is none.
    pub fn is_empty(&self) -> bool {
        self.numbers.is_empty()
    }
}

/// Maximum number of errors that are stored; further ones are only counted.
pub const MOST_MISTAKES: usize = 10_000;
/// Maximum number of rules; any further rule is an error.
const MOST_RULES: usize = 200_000;
/// Default time in seconds that a bit of a host is set for, as in Suricata, and the maximum: a year.
const HOST_BIT_SECONDS: u32 = 30;
const MOST_BIT_SECONDS: u32 = 365 * 86_400;
/// Default time in seconds for `hostbits`.
const ONE_HOST_SECONDS: u32 = 300;
/// Maximum number of steps of a rule.
const MOST_STEPS: usize = 64;

impl Reading {
    /// Reads a file of rules, in addition to those that were read before.
    pub fn read(&mut self, text: &str, options: &Options) {
        let file = self.files;
        self.files += 1;
        let text = if options.with_disabled {
            with_disabled(text)
        } else {
            text.to_string()
        };
        let is_action = |word: &str| !matches!(action(word), Err(Refusal::Wrong(_)));
        let rules = joined(&text, &is_action);
        let dialect = options.dialect.unwrap_or_else(|| looks_like(&rules));
        for rule in &rules {
            if let Err(mistake) = self.rule(rule, dialect, options) {
                self.mistaken += 1;
                if self.mistakes.len() < MOST_MISTAKES {
                    self.mistakes.push((file, mistake));
                }
            }
        }
    }

    fn rule(
        &mut self,
        joined: &Joined,
        dialect: Dialect,
        options: &Options,
    ) -> Result<(), Mistake> {
        let written = split(joined)?;
        let mut reader = Reader::new(&mut self.names, dialect, &options.variables);
        let rule = reader
            .rule(&written)
            .map_err(|(at, reason)| joined.mistake(at, reason))?;
        let not_understood = std::mem::take(&mut reader.not_understood);
        let is_whole = not_understood.is_empty();
        for option in not_understood {
            self.not_understood
                .entry(option)
                .or_default()
                .push(rule.about.id);
        }
        if !is_whole {
            if !options.is_lenient {
                self.left_out += 1;
                return Ok(());
            }
            self.in_part += 1;
        }
        let key = (rule.about.group, rule.about.id);
        if let Some(&before) = self.known.get(&key) {
            self.doubled += 1;
            if self.rules[before].about.revision < rule.about.revision {
                self.rules[before] = rule;
            }
            return Ok(());
        }
        if self.rules.len() == MOST_RULES {
            return Err(joined.mistake(0, format!("more than {MOST_RULES} rules")));
        }
        self.known.insert(key, self.rules.len());
        self.rules.push(rule);
        Ok(())
    }
}

/// Returns the text with commented-out rules enabled.
fn with_disabled(text: &str) -> String {
    let mut all = String::with_capacity(text.len());
    for line in text.lines() {
        let bare = line.trim_start().trim_start_matches('#').trim_start();
        let is_rule = action(bare.split_whitespace().next().unwrap_or_default()).is_ok()
            && bare.contains("sid:");
        all.push_str(if is_rule { bare } else { line });
        all.push('\n');
    }
    all
}

/// Returns the syntax of the majority of the rules, so that a mistyped one does not change the meaning of the others.
fn looks_like(rules: &[Joined]) -> Dialect {
    let (mut snort, mut suricata) = (0, 0);
    for rule in rules.iter().filter_map(|rule| split(rule).ok()) {
        if is_of_snort(&rule) {
            snort += 1;
        } else if rule
            .options
            .iter()
            .any(|option| option.name.contains('.') || MODIFIERS_OF_CONTENT.contains(&option.name))
        {
            suricata += 1;
        }
    }
    if snort > suricata {
        Dialect::Snort3
    } else {
        Dialect::Suricata
    }
}

/// Returns true for the syntax of Snort 3: only that has commas after contents, services, and headers of one word.
fn is_of_snort(rule: &Written<'_>) -> bool {
    rule.header.len() == 2
        || rule
            .options
            .iter()
            .any(|option| match (option.name, option.value) {
                ("content", Some(value)) => parts(value).len() > 1,
                ("service" | "bufferlen", _) => true,
                _ => false,
            })
}

fn action(name: &str) -> Read<Action> {
    Ok(match name {
        "alert" => Action::Alert,
        "pass" => Action::Pass,
        "drop" | "block" | "sdrop" => Action::Drop,
        "reject" | "rejectsrc" | "rejectdst" | "rejectboth" | "react" => Action::Reject,
        "log" | "rewrite" | "activate" | "dynamic" | "file_id" | "config" => {
            return Err(Refusal::NotUnderstood);
        }
        _ if form::is_scoped(name) => return Err(Refusal::NotUnderstood),
        _ => return wrong(format!("{name:?}: want alert, pass, drop or reject")),
    })
}

struct Reader<'a> {
    names: &'a mut Names,
    dialect: Dialect,
    variables: &'a Variables,
    /// Buffer that the next contents are in.
    buffer: Buffer,
    /// Transforms of the buffer, and the number of its instance.
    transforms: Vec<Transform>,
    instance: u8,
    /// Hook at which the rule is to be evaluated.
    hook: Option<String>,
    /// Names of the variables of byte_extract and byte_math.
    variable_names: Vec<String>,
    not_understood: Vec<String>,
    /// True if the header of the rule has `=>`: the rule is about a request and its response.
    is_of_transactions: bool,
    /// Message of the selected buffer in a rule with `=>`, if it is given: `true` for the request.
    side: Option<bool>,
}

impl<'a> Reader<'a> {
    fn new(names: &'a mut Names, dialect: Dialect, variables: &'a Variables) -> Self {
        Self {
            names,
            dialect,
            variables,
            buffer: Buffer::Payload,
            transforms: Vec::new(),
            instance: 0,
            hook: None,
            variable_names: Vec::new(),
            not_understood: Vec::new(),
            is_of_transactions: false,
            side: None,
        }
    }

    /// Returns true if options of that name are supported, with at least one value.
    fn knows(&self, name: &str) -> bool {
        let mut names = Names::default();
        let mut other = Reader::new(&mut names, self.dialect, self.variables);
        let option = WrittenOption {
            name,
            value: None,
            at: 0,
        };
        let read = other.option(&option, &mut no_rule(Action::Alert, 0));
        !matches!(read, Err(Refusal::Unknown))
    }

    fn rule(&mut self, written: &Written<'_>) -> Placed<Rule> {
        let Some(first) = written.header.first() else {
            return Err((0, "want an action, such as alert".to_string()));
        };
        let action = match action(first.text) {
            Ok(action) => action,
            Err(Refusal::Wrong(reason)) => return Err((first.at, reason)),
            Err(_) => {
                self.not_understood.push(format!("action {}", first.text));
                Action::Alert
            }
        };
        let mut rule = no_rule(action, written.line);
        self.header(&written.header, &mut rule)?;
        form::check(&written.options)?;
        let mut sides = Vec::new();
        for option in &written.options {
            match self.option(option, &mut rule) {
                Ok(()) => {}
                Err(Refusal::Wrong(reason)) => {
                    return Err((option.at, format!("{}: {reason}", option.name)));
                }
                Err(Refusal::NotUnderstood | Refusal::Unknown) => {
                    self.not_understood.push(option.name.to_string());
                }
                Err(Refusal::Unable(what)) => self.not_understood.push(what),
            }
            sides.resize(rule.steps.len(), self.side);
        }
        if rule.about.id == 0 {
            return Err((0, "a rule needs its number: sid:1;".to_string()));
        }
        if self.is_of_transactions {
            match split_by_side(&mut rule, &sides) {
                Ok(response) => rule.response = Some(Box::new(self.finished(response)?)),
                Err(reason) => self.not_understood.push(format!("=> {reason}")),
            }
        }
        self.finished(rule)
    }

    /// Returns the rule, once all of its options have been read.
    fn finished(&mut self, mut rule: Rule) -> Placed<Rule> {
        if rule.steps.len() > MOST_STEPS {
            return Err((0, format!("more than {MOST_STEPS} tests of contents")));
        }
        if self.dialect == Dialect::Suricata {
            // Tests of one buffer become adjacent, wherever they are in the rule.
            let first_beside = |step| rule.steps.iter().position(|it| it.is_beside(step));
            let order: Vec<_> = rule.steps.iter().map(first_beside).collect();
            let mut placed: Vec<_> = order.into_iter().zip(rule.steps).collect();
            placed.sort_by_key(|(place, step)| (*place, !step.is_absence()));
            rule.steps = placed.into_iter().map(|(_, step)| step).collect();
        }
        check_absences(&rule.steps).map_err(|reason| (0, reason))?;
        if changed_of(&rule.steps) > MOST_CHANGED {
            return Err((
                0,
                format!("more than {MOST_CHANGED} buffers that are changed or decoded"),
            ));
        }
        let in_payload = |step: &&Step| step.buffer == Buffer::Payload;
        rule.is_positional |= rule
            .steps
            .iter()
            .filter(in_payload)
            .any(|step| step.test.is_positional())
            || rule
                .headers
                .iter()
                .any(|test| matches!(test, HeaderTest::PayloadLen(_)));
        self.not_understood.extend(never_fits(&mut rule));
        let asks_messages = |step: &Step| step.buffer.application().is_some();
        if let Some(hook) = self.hook.take()
            && !rule.steps.iter().any(asks_messages)
        {
            self.not_understood.push(format!("{hook} without a buffer"));
        }
        Ok(rule)
    }

    fn header(&mut self, header: &[Word<'_>], rule: &mut Rule) -> Placed<()> {
        let first = header[0].at;
        let Some(protocol) = header.get(1) else {
            return Err((
                first,
                "want a protocol behind the action, such as tcp".to_string(),
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
                "want addresses and ports on both sides of ->, such as any any -> any 80"
                    .to_string(),
            ));
        };
        rule.both_ways = match way.text {
            "->" => false,
            "<>" => true,
            // Each half of the rule has its own direction.
            "=>" => false,
            other => return Err((way.at, format!("{other:?}: want ->, <> or =>"))),
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
                    let why = "nothing is left of it; what do its variables stand for?";
                    return Err((word.at, format!("{}: {why}", word.text)));
                }
            }
            Ok(read)
        };
        rule.source = side(source, source_ports)?;
        rule.destination = side(destination, destination_ports)?;
        Ok(())
    }

    /// Reads the protocol of a header, with an optional hook after it.
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
                "{name:?} is no protocol: want tcp, udp, icmp, ip, http, dns, tls, smtp, ftp, ssh, smb, dcerpc, sip, mqtt, http2, ntp or ike"
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

    fn option(&mut self, option: &WrittenOption<'_>, rule: &mut Rule) -> Read<()> {
        let value = option.value.unwrap_or_default();
        if self.is_of_transactions
            && let Some(side) = side_of(value)
            && let Some(buffer) = buffer_of(option.name, "")?
        {
            if buffer.to_server().is_some_and(|it| it != side) {
                return wrong("a buffer of the other message");
            }
            self.select(buffer, option.name, rule)?;
            self.side = Some(side);
            return Ok(());
        }
        if let Some(buffer) = buffer_of(option.name, value)? {
            return self.select(buffer, option.name, rule);
        }
        if let Some((buffer, header)) = header_of(option.name) {
            rule.headers.extend(header);
            return self.select(buffer, option.name, rule);
        }
        if let Some(transform) = transform_of(option.name, value)? {
            if self.transforms.len() == MOST_TRANSFORMS {
                return wrong(format!("more than {MOST_TRANSFORMS} changes to a buffer"));
            }
            self.transforms.push(transform);
            return Ok(());
        }
        // Snort has another syntax for their values.
        if self.dialect == Dialect::Suricata
            && let Some(steps) = keywords::steps_of(option.name, value)?
        {
            rule.steps.extend(steps);
            return Ok(());
        }
        if self.about(option, rule)?
            || self.payload(option, rule)?
            || self.about_headers(option, rule)?
        {
            return Ok(());
        }
        match anomaly::checksum(option.name) {
            Some((version, protocol)) => checksum(version, protocol, value, rule),
            None => Err(Refusal::Unknown),
        }
    }

    /// Reads an option about the rule itself, or about flows and hosts. Returns false for others.
    fn about(&mut self, option: &WrittenOption<'_>, rule: &mut Rule) -> Read<bool> {
        let value = option.value.unwrap_or_default();
        match option.name {
            "msg" => rule.about.message = text(value),
            "sid" => rule.about.id = number(value)?,
            "rev" => rule.about.revision = number(value)?,
            "gid" => rule.about.group = number(value)?,
            "classtype" => rule.about.class = value.to_string(),
            "priority" => rule.about.priority = number(value)?,
            "reference" => {
                let (kind, place) = value.split_once(',').unwrap_or(("url", value));
                rule.about
                    .references
                    .push((kind.trim().to_string(), place.trim().to_string()));
            }
            "metadata" => {
                for part in value.split(',') {
                    let (key, value) = part.trim().split_once(' ').unwrap_or((part.trim(), ""));
                    rule.about
                        .metadata
                        .push((key.to_string(), value.trim().to_string()));
                }
            }
            // These options are information for users, or hints for the speed of a detector.
            "target" | "rem" | "enable" | "prefilter" | "rawbytes" | "logto" => {}
            "requires" => {
                if let Some(what) = unmet(value, |name| self.knows(name))? {
                    return unable(what);
                }
            }
            "service" => self.services(value, rule),
            "flow" => self.flow(value, rule)?,
            "noalert" => rule.is_silent = true,
            "alert" => rule.is_told = true,
            "bypass" => rule.bypasses = true,
            "flowbits" => self.flow_bits(value, rule)?,
            "xbits" => self.host_bits(value, rule)?,
            "hostbits" => self.bits_of_one_host(value, rule)?,
            "detection_filter" => rule.rate = Some(rate(value, Some(RateKind::Filter))?),
            "threshold" => rule.rate = Some(rate(value, None)?),
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Reads an option about the bytes of a buffer. Returns false for others.
    fn payload(&mut self, option: &WrittenOption<'_>, rule: &mut Rule) -> Read<bool> {
        let value = option.value.unwrap_or_default();
        match option.name {
            "content" | "uricontent" => self.content(option.name, value, rule)?,
            name if MODIFIERS_OF_CONTENT.contains(&name) => {
                let Some(content) = last_content(rule) else {
                    return wrong("there is no content in front of it");
                };
                modify(content, option.name, value, &self.variable_names)?;
            }
            "pcre" => self.regex(value, rule)?,
            "byte_test" => self.byte_test(value, rule)?,
            "byte_jump" => self.byte_jump(value, rule)?,
            "byte_extract" => self.byte_extract(value, rule)?,
            "byte_math" => self.byte_math(value, rule)?,
            "isdataat" => self.data_at(value, rule)?,
            "absent" => self.absent(value, rule)?,
            "entropy" => self.push(entropy(value)?, rule),
            "bufferlen" | "bsize" => {
                let value = value.split(',').next().unwrap_or_default();
                self.push(Test::Len(self.up_to(i64::MAX, value)?), rule);
            }
            "urilen" => {
                let (value, kind) = value.split_once(',').unwrap_or((value, "raw"));
                let buffer = if kind.trim() == "norm" {
                    Buffer::HttpUri
                } else {
                    Buffer::HttpRawUri
                };
                rule.steps.push(Step {
                    buffer,
                    transforms: Vec::new(),
                    instance: 0,
                    test: Test::Len(self.up_to(i64::MAX, value)?),
                });
            }
            "base64_decode" => self.push(base64(value)?, rule),
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Reads an option about headers, or about the state of a connection. Returns false for others.
    fn about_headers(&mut self, option: &WrittenOption<'_>, rule: &mut Rule) -> Read<bool> {
        let value = option.value.unwrap_or_default();
        match option.name {
            "dsize" => rule
                .headers
                .push(HeaderTest::PayloadLen(self.up_to(form::SHORT, value)?)),
            "ttl" => rule
                .headers
                .push(HeaderTest::Ttl(self.up_to(form::BYTE, value)?)),
            "id" => rule
                .headers
                .push(HeaderTest::IpId(self.up_to(form::SHORT, value)?)),
            "tos" => rule
                .headers
                .push(HeaderTest::Tos(self.up_to(form::BYTE, value)?)),
            "window" | "tcp.window" => rule
                .headers
                .push(HeaderTest::TcpWindow(self.up_to(form::SHORT, value)?)),
            "seq" => rule.headers.push(HeaderTest::TcpSequence(number(value)?)),
            "ack" => rule
                .headers
                .push(HeaderTest::TcpAcknowledgement(number(value)?)),
            "itype" => rule
                .headers
                .push(HeaderTest::IcmpType(self.up_to(form::BYTE, value)?)),
            "icode" => rule
                .headers
                .push(HeaderTest::IcmpCode(self.up_to(form::BYTE, value)?)),
            "icmp_id" => rule.headers.push(HeaderTest::IcmpId(number(value)?)),
            "icmp_seq" => rule.headers.push(HeaderTest::IcmpSequence(number(value)?)),
            "fragoffset" => rule.headers.push(HeaderTest::FragmentOffset(
                self.up_to(form::FRAGMENT_OFFSET, value)?,
            )),
            "sameip" => rule.headers.push(HeaderTest::SameAddresses),
            "ip_proto" => rule
                .headers
                .push(HeaderTest::IpProtocol(ip_protocol(value)?)),
            "flags" | "tcp.flags" => rule.headers.push(HeaderTest::TcpFlags(tcp_flags(value)?)),
            "fragbits" => rule
                .headers
                .push(HeaderTest::FragmentBits(bits(value, "MDR")?)),
            "ipopts" => rule.headers.push(HeaderTest::IpOption(ip_option(value)?)),
            "ssl_state" => rule.headers.push(HeaderTest::TlsState(tls_state(value)?)),
            "ssl_version" | "tls.version" => rule
                .headers
                .push(HeaderTest::TlsVersion(tls_version(value)?)),
            "stream_size" => rule.headers.push(self.stream_size(value)?),
            "flow.pkts" | "flow.bytes" => self.flow_size(option.name, value, rule)?,
            "vlan.id" => self.vlan_id(value, rule)?,
            "vlan.layers" => {
                let layers = self.up_to(MOST_LAYERS, value)?;
                if !(0..=MOST_VLANS as i64).any(|it| layers.fits(it)) {
                    return unable("vlan.layers of frames with three tags");
                }
                rule.headers.push(HeaderTest::VlanLayers(layers));
            }
            "app-layer-protocol" => application(value, rule)?,
            "stream-event" | "decode-event" => {
                let Some((anomaly, version)) = anomaly::event(option.name, value) else {
                    return unable(format!("{}:{value}", option.name));
                };
                rule.headers.extend(version.map(HeaderTest::IpVersion));
                rule.headers.push(is_odd(anomaly, false));
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Reads `isdataat`.
    fn data_at(&mut self, value: &str, rule: &mut Rule) -> Read<()> {
        let (not, value) = negated(value);
        let parts = parts(value);
        for part in &parts[1..] {
            if !matches!(*part, "relative" | "rawbytes") {
                return Err(Refusal::NotUnderstood);
            }
        }
        let relative = parts.contains(&"relative");
        let test = Test::DataAt {
            at: self.number_or_name(parts[0])?,
            relative,
            to_end: relative && self.dialect == Dialect::Suricata,
            not,
        };
        self.push(test, rule);
        Ok(())
    }

    /// Selects the buffer for the next contents; in the older syntax, for the content before.
    fn select(&mut self, buffer: Buffer, name: &str, rule: &mut Rule) -> Read<()> {
        let is_modifier = self.dialect == Dialect::Suricata && MODIFIERS.contains(&name);
        if is_modifier {
            let is_content = |step: &Step| matches!(step.test, Test::Content(_));
            let Some(last) = rule.steps.iter().rposition(is_content) else {
                return wrong("there is no content in front of it");
            };
            // Tests after the content that depend on it move to the same buffer.
            let before = std::mem::replace(&mut rule.steps[last].buffer, buffer);
            for step in &mut rule.steps[last + 1..] {
                let follows = step.test.is_relative() && !is_sought(&step.test);
                if follows && step.buffer == before {
                    step.buffer = buffer;
                }
            }
            return Ok(());
        }
        (self.buffer, self.side) = (buffer, None);
        self.transforms.clear();
        // A repeated selection allows another instance to match.
        let of_it = rule.steps.iter().filter(|step| step.buffer == buffer);
        let last = of_it.map(|step| step.instance).max();
        self.instance = match last {
            Some(last) if buffer.has_instances() => last.saturating_add(1),
            _ => 0,
        };
        Ok(())
    }

    fn push(&self, test: Test, rule: &mut Rule) {
        let (mut buffer, mut transforms) = (self.buffer, self.transforms.clone());
        let mut instance = self.instance;
        // Without a selected buffer, a test relative to the last match applies to the buffer of that match.
        if self.dialect == Dialect::Suricata && buffer == Buffer::Payload && test.is_relative() {
            let last = rule.steps.iter().rev().find(|step| is_sought(&step.test));
            if let Some(last) = last {
                (buffer, transforms) = (last.buffer, last.transforms.clone());
                instance = last.instance;
            }
        }
        rule.steps.push(Step {
            buffer,
            transforms,
            instance,
            test,
        });
    }

    /// Adds a test for the absence of the selected buffer.
    fn absent(&self, value: &str, rule: &mut Rule) -> Read<()> {
        if self.dialect != Dialect::Suricata {
            return Err(Refusal::NotUnderstood);
        }
        let or_else = match value {
            "" => false,
            "or_else" => true,
            _ => return wrong(format!("{value:?}: want or_else or nothing")),
        };
        if self.buffer == Buffer::Payload {
            return wrong("there is no buffer in front of it");
        }
        if !self.buffer.may_be_absent() {
            return unable("absent behind a buffer of which that is not told");
        }
        self.push(Test::Absent { or_else }, rule);
        Ok(())
    }

    /// Returns the transforms of a buffer, which are those of the selected one.
    fn transforms_of(&self, buffer: Buffer) -> Vec<Transform> {
        match buffer == self.buffer {
            true => self.transforms.clone(),
            false => Vec::new(),
        }
    }

    /// Returns the number of the instance of a buffer, which is that of the selected one.
    fn instance_of(&self, buffer: Buffer) -> u8 {
        match buffer == self.buffer {
            true => self.instance,
            false => 0,
        }
    }

    fn content(&mut self, name: &str, value: &str, rule: &mut Rule) -> Read<()> {
        let parts = parts(value);
        let (not, quoted) = negated(parts[0]);
        let content = Content {
            bytes: bytes(quoted)?.into(),
            any_case: false,
            not,
            offset: None,
            depth: None,
            distance: None,
            within: None,
            at_end: false,
            is_fast: false,
        };
        if content.bytes.is_empty() {
            return wrong("no bytes");
        }
        let buffer = if name == "uricontent" {
            Buffer::HttpUri
        } else {
            self.buffer
        };
        rule.steps.push(Step {
            buffer,
            transforms: self.transforms_of(buffer),
            instance: self.instance_of(buffer),
            test: Test::Content(content),
        });
        for part in &parts[1..] {
            let (name, value) = part.split_once([' ', ':']).unwrap_or((part, ""));
            if let Some(content) = last_content(rule) {
                modify(content, name, value.trim(), &self.variable_names)?;
            }
        }
        Ok(())
    }

    fn regex(&mut self, value: &str, rule: &mut Rule) -> Read<()> {
        let (not, quoted) = negated(value);
        let in_quotes = quoted.strip_prefix('"').and_then(|it| it.strip_suffix('"'));
        let Some(inner) = in_quotes.or(Some(quoted).filter(|it| it.starts_with('/'))) else {
            return wrong("want an expression in quotes, such as \"/a+/i\"");
        };
        // An `m` may precede other delimiters, as in Perl.
        let (delimiter, body) = match inner.strip_prefix('m') {
            Some(rest) => (
                rest.chars().next().unwrap_or('/'),
                rest.get(1..).unwrap_or_default(),
            ),
            None => ('/', inner.strip_prefix('/').unwrap_or_default()),
        };
        let Some((expression, letters)) = body.rsplit_once(delimiter) else {
            return wrong("want an expression between slashes, such as \"/a+/i\"");
        };
        if letters.contains(',') {
            return unable("pcre that keeps what it finds");
        }
        let (mut flags, mut relative, mut buffer) = (Flags::default(), false, self.buffer);
        for letter in letters.chars() {
            match letter {
                'i' => flags.any_case = true,
                's' => flags.dot_all = true,
                'm' => flags.lines = true,
                'x' => flags.spaced = true,
                'A' => flags.anchored = true,
                'E' => flags.very_end = true,
                'G' => flags.lazy = true,
                'R' => relative = true,
                'O' => {}
                'B' => buffer = Buffer::Payload,
                'U' => buffer = Buffer::HttpUri,
                'I' => buffer = Buffer::HttpRawUri,
                'P' => buffer = Buffer::HttpClientBody,
                'Q' => buffer = Buffer::HttpServerBody,
                'H' => buffer = Buffer::HttpHeader,
                'D' => buffer = Buffer::HttpRawHeader,
                'M' => buffer = Buffer::HttpMethod,
                'C' => buffer = Buffer::HttpCookie,
                'K' => buffer = Buffer::HttpRawCookie,
                'S' => buffer = Buffer::HttpStatusCode,
                'Y' => buffer = Buffer::HttpStatusMessage,
                'V' => buffer = Buffer::HttpUserAgent,
                'W' => buffer = Buffer::HttpHost,
                _ => return wrong(format!("no flag {letter:?}")),
            }
        }
        // Rule files may escape a quote, a semicolon or a colon unnecessarily.
        let expression = expression.replace("\\\"", "\"").replace("\\;", ";");
        let regex = Regex::new(&expression, flags).or_else(wrong)?;
        rule.steps.push(Step {
            buffer,
            transforms: self.transforms_of(buffer),
            instance: self.instance_of(buffer),
            test: Test::Regex {
                regex: Arc::new(regex),
                not,
                relative,
            },
        });
        Ok(())
    }

    /// Reads services of Snort 3: flows that an inspector identifies as one of them match on any port. Services without
    /// an inspector are identified by their ports only.
    fn services(&mut self, value: &str, rule: &mut Rule) {
        for service in value.split(',') {
            rule.services.extend(match service.trim() {
                "http" => Some(Application::Http),
                "dns" => Some(Application::Dns),
                "ssl" | "https" => Some(Application::Tls),
                _ => None,
            });
        }
    }

    fn flow(&mut self, value: &str, rule: &mut Rule) -> Read<()> {
        for part in value.split(',') {
            let is_direction = |it| part.trim().ends_with(it);
            rule.flow.is_of_packets |= !["server", "client"].into_iter().any(is_direction);
            match part.trim() {
                "to_server" | "from_client" => rule.flow.to_server = Some(true),
                "to_client" | "from_server" => rule.flow.to_server = Some(false),
                "established" => rule.flow.established = Some(true),
                "not_established" => rule.flow.established = Some(false),
                // The rule is evaluated on each packet alone.
                "no_stream" => rule.is_positional = true,
                "only_stream" => rule.flow.only_stream = true,
                "stateless" | "no_frag" => {}
                "only_frag" => return Err(Refusal::NotUnderstood),
                other => {
                    return wrong(format!(
                        "{other:?}: want to_server, to_client, established or stateless"
                    ));
                }
            }
        }
        Ok(())
    }

    fn flow_bits(&mut self, value: &str, rule: &mut Rule) -> Read<()> {
        let mut parts = value.splitn(2, ',');
        let verb = parts.next().unwrap_or_default().trim();
        if verb == "noalert" {
            rule.is_silent = true;
            return Ok(());
        }
        let names = parts.next().unwrap_or_default();
        // Snort 2 has a group after the name.
        let names = names.split(',').next().unwrap_or_default().trim();
        if names.is_empty() {
            return wrong("want the name of a bit");
        }
        if names.split(['|', '&']).any(|name| name.trim().is_empty()) {
            return wrong("a bit without a name");
        }
        let any = names.contains('|');
        let numbers = names
            .split(['|', '&'])
            .map(|name| self.names.number(name.trim()));
        let Some(bits) = numbers.collect::<Option<Vec<_>>>() else {
            return wrong("too many names of bits in all");
        };
        rule.bits.push(match verb {
            "set" | "setx" => FlowBit::Set(bits),
            "unset" => FlowBit::Unset(bits),
            "toggle" => FlowBit::Toggle(bits),
            "isset" => FlowBit::IsSet { bits, any },
            "isnotset" => FlowBit::IsNotSet(bits),
            _ => {
                return wrong(format!(
                    "{verb:?}: want set, unset, toggle, isset, isnotset or noalert"
                ));
            }
        });
        Ok(())
    }

    /// Reads `flow.pkts` or `flow.bytes`: the ends and the number.
    fn flow_size(&self, name: &str, value: &str, rule: &mut Rule) -> Read<()> {
        let (ends, count) = value.split_once(',').unwrap_or((value, ""));
        let ends = match ends.trim() {
            "toserver" => Ends::Client,
            "toclient" => Ends::Server,
            "either" => Ends::Either,
            other => return wrong(format!("{other:?}: want toserver, toclient or either")),
        };
        let count = self.up_to(i64::MAX, count)?;
        rule.headers.push(match name {
            "flow.pkts" => HeaderTest::FlowPackets {
                ends,
                packets: count,
            },
            _ => HeaderTest::FlowBytes { ends, bytes: count },
        });
        Ok(())
    }

    /// Reads `vlan.id`: a number, and the tags it applies to.
    fn vlan_id(&self, value: &str, rule: &mut Rule) -> Read<()> {
        let (id, of) = value.split_once(',').unwrap_or((value, "any"));
        let of = match of.trim() {
            "any" => VlanTags::Any,
            "all" => VlanTags::All,
            place => {
                let place: i8 = number(place)?;
                if !(-MOST_LAYERS..MOST_LAYERS).contains(&place.into()) {
                    return wrong(format!("tag {place}: want -3 to 2, any or all"));
                }
                if !(-(MOST_VLANS as i8)..MOST_VLANS as i8).contains(&place) {
                    return unable("vlan.id of a third tag");
                }
                VlanTags::At(place)
            }
        };
        let id = self.up_to(form::VLAN, id)?;
        rule.headers.push(HeaderTest::VlanId { id, of });
        Ok(())
    }

    /// Reads `hostbits`, which contains one end and no time.
    fn bits_of_one_host(&mut self, value: &str, rule: &mut Rule) -> Read<()> {
        let parts = parts(value);
        let track = match parts.get(2).copied() {
            None | Some("src") => "ip_src",
            Some("dst") => "ip_dst",
            Some(_) => return Err(Refusal::NotUnderstood),
        };
        match parts[..] {
            ["noalert"] => self.host_bits("noalert", rule),
            [verb, name] | [verb, name, _] => {
                let more = format!("track {track},expire {ONE_HOST_SECONDS}");
                self.host_bits(&format!("{verb},{name},{more}"), rule)
            }
            _ => wrong("want what to do, the name of a bit, and src or dst"),
        }
    }

    fn host_bits(&mut self, value: &str, rule: &mut Rule) -> Read<()> {
        let parts = parts(value);
        if parts[..] == ["noalert"] {
            rule.is_silent = true;
            return Ok(());
        }
        let [verb, name, more @ ..] = &parts[..] else {
            return wrong("want what to do, the name of a bit, and whose it is");
        };
        if name.is_empty() {
            return wrong("a bit without a name");
        }
        let (mut track, mut seconds) = (None, HOST_BIT_SECONDS);
        for part in more {
            match part
                .split_once(' ')
                .map(|(name, value)| (name, value.trim()))
            {
                Some(("track", "ip_src")) => track = Some(Track::Source),
                Some(("track", "ip_dst")) => track = Some(Track::Destination),
                Some(("track", "ip_pair")) => track = Some(Track::Both),
                Some(("expire", value)) => seconds = number(value)?,
                _ => return Err(Refusal::NotUnderstood),
            }
        }
        let Some(track) = track else {
            return wrong("want track ip_src, ip_dst or ip_pair");
        };
        if !(1..=MOST_BIT_SECONDS).contains(&seconds) {
            return wrong(format!(
                "expire {seconds}: want 1 to {MOST_BIT_SECONDS} seconds"
            ));
        }
        // Flow bits may have the same names.
        let Some(bit) = self.names.number(&format!("host {name}")) else {
            return wrong("too many names of bits in all");
        };
        let verb = match *verb {
            "set" => HostBitVerb::Set(seconds),
            "unset" => HostBitVerb::Unset,
            "toggle" => HostBitVerb::Toggle(seconds),
            "isset" => HostBitVerb::IsSet,
            "isnotset" => HostBitVerb::IsNotSet,
            _ => {
                return wrong(format!(
                    "{verb:?}: want set, unset, toggle, isset, isnotset or noalert"
                ));
            }
        };
        rule.host_bits.push(HostBit { bit, track, verb });
        Ok(())
    }

    /// Reads `stream_size`.
    fn stream_size(&self, value: &str) -> Read<HeaderTest> {
        let [ends, how, bytes] = parts(value)[..] else {
            return wrong("want whose bytes, how they are compared, and with how many");
        };
        let ends = match ends {
            "client" => Ends::Client,
            "server" => Ends::Server,
            "both" => Ends::Both,
            "either" => Ends::Either,
            _ => return wrong(format!("{ends:?}: want client, server, both or either")),
        };
        let bytes = self.up_to(i64::MAX, &format!("{how}{bytes}"))?;
        Ok(HeaderTest::StreamBytes { ends, bytes })
    }

    fn up_to(&self, most: i64, text: &str) -> Read<Within> {
        form::up_to(most, within(text, self.dialect == Dialect::Snort3)?)
    }

    fn number_or_name(&self, text: &str) -> Read<Number> {
        number_or_name(text, &self.variable_names)
    }

    fn variable(&mut self, name: &str) -> Read<u8> {
        let place = self.variable_names.iter().position(|known| known == name);
        let place = place.unwrap_or_else(|| {
            self.variable_names.push(name.to_string());
            self.variable_names.len() - 1
        });
        if place >= MOST_VARIABLES {
            return wrong(format!("more than {MOST_VARIABLES} variables"));
        }
        Ok(place as u8)
    }

    fn field(&self, bytes: &str, offset: &str) -> Read<Field> {
        let bytes = self.number_or_name(bytes)?;
        if let Number::Is(bytes) = bytes
            && !(1..=10).contains(&bytes)
        {
            return wrong(format!("{bytes} bytes: want 1 to 10"));
        }
        Ok(Field {
            bytes,
            offset: self.number_or_name(offset)?,
            relative: false,
            form: Form::Big,
            mask: 0,
        })
    }

    /// Reads a field as [`Reader::field`] does, with `none` bytes if the text is 0.
    fn field_or(&self, bytes: &str, none: i64, offset: &str) -> Read<Field> {
        if self.number_or_name(bytes)? != Number::Is(0) {
            return self.field(bytes, offset);
        }
        Ok(Field {
            bytes: Number::Is(none),
            ..self.field("1", offset)?
        })
    }

    fn byte_test(&mut self, value: &str, rule: &mut Rule) -> Read<()> {
        let parts = parts(value);
        let [bytes, operator, value, offset, more @ ..] = &parts[..] else {
            return wrong("want bytes, operator, value, place");
        };
        let (not, operator) = negated(operator);
        let how = match operator {
            "<" => Comparison::Less,
            ">" => Comparison::Greater,
            "=" | "" => Comparison::Equal,
            "<=" => Comparison::AtMost,
            ">=" => Comparison::AtLeast,
            "&" => Comparison::And,
            "^" => Comparison::Xor,
            _ => return wrong(format!("{operator:?}: want <, >, =, <=, >=, & or ^")),
        };
        let mut field = if more.iter().any(|part| part.starts_with("string")) {
            // The field has as many digits as there are.
            self.field_or(bytes, LONGEST_NUMBER, offset)?
        } else {
            self.field(bytes, offset)?
        };
        for part in more {
            field_option(&mut field, part)?;
        }
        check(field)?;
        let test = Test::Byte {
            field,
            how,
            not,
            value: self.number_or_name(value)?,
        };
        self.push(test, rule);
        Ok(())
    }

    fn byte_jump(&mut self, value: &str, rule: &mut Rule) -> Read<()> {
        let parts = parts(value);
        let [bytes, offset, more @ ..] = &parts[..] else {
            return wrong("want bytes, place");
        };
        let mut field = self.field_or(bytes, 0, offset)?;
        let (mut times, mut align, mut from, mut and) = (1, false, JumpFrom::Here, 0);
        for part in more {
            match part
                .split_once([' '])
                .map(|(name, value)| (name, value.trim()))
            {
                Some(("multiplier", value)) => times = number(value)?,
                Some(("post_offset", value)) => and = signed(value)?,
                None if *part == "align" => align = true,
                None if *part == "from_beginning" => from = JumpFrom::Beginning,
                None if *part == "from_end" => from = JumpFrom::End,
                _ => field_option(&mut field, part)?,
            }
        }
        if field.bytes != Number::Is(0) {
            check(field)?;
        }
        self.push(
            Test::Jump {
                field,
                times,
                align,
                from,
                and,
            },
            rule,
        );
        Ok(())
    }

    fn byte_extract(&mut self, value: &str, rule: &mut Rule) -> Read<()> {
        let parts = parts(value);
        let [bytes, offset, name, more @ ..] = &parts[..] else {
            return wrong("want bytes, place, name");
        };
        let mut field = self.field(bytes, offset)?;
        let (mut times, mut align) = (1, 1);
        for part in more {
            match part.split_once(' ') {
                Some(("multiplier", value)) => times = number(value)?,
                Some(("align", value)) => align = number::<i64>(value)?.clamp(1, 4),
                _ => field_option(&mut field, part)?,
            }
        }
        check(field)?;
        let into = self.variable(name)?;
        self.push(
            Test::Extract {
                field,
                times,
                align,
                into,
            },
            rule,
        );
        Ok(())
    }

    fn byte_math(&mut self, value: &str, rule: &mut Rule) -> Read<()> {
        let (mut bytes, mut offset, mut operator, mut value_, mut name) = ("", "0", "", "", "");
        let mut more = Vec::new();
        for part in parts(value) {
            match part
                .split_once([' ', ':'])
                .map(|(name, value)| (name, value.trim()))
            {
                Some(("bytes", value)) => bytes = value,
                Some(("offset", value)) => offset = value,
                Some(("oper", value)) => operator = value,
                Some(("rvalue", value)) => value_ = value,
                Some(("result", value)) => name = value,
                Some(("endian", value)) => more.push(value),
                _ => more.push(part),
            }
        }
        let operator = match operator {
            "+" => b'+',
            "-" => b'-',
            "*" => b'*',
            "/" => b'/',
            "<<" => b'<',
            ">>" => b'>',
            _ => return wrong(format!("oper {operator:?}: want +, -, *, /, << or >>")),
        };
        if name.is_empty() {
            return wrong("want a result");
        }
        let mut field = self.field(bytes, offset)?;
        for part in more {
            field_option(&mut field, part)?;
        }
        check(field)?;
        let value = self.number_or_name(value_)?;
        let into = self.variable(name)?;
        self.push(
            Test::Math {
                field,
                operator,
                value,
                into,
            },
            rule,
        );
        Ok(())
    }
}

/// Maximum number of VLAN tags in Suricata; rules about frames with more than [`MOST_VLANS`] are not supported here.
const MOST_LAYERS: i64 = 3;
/// Maximum number of bytes that `base64_decode` decodes.
const BASE64_BYTES: usize = 1024;
/// Number of digits of the longest 64-bit number.
const LONGEST_NUMBER: i64 = 20;

/// Checks that a buffer that must be absent has no other test, and that one that may be absent has one.
fn check_absences(steps: &[Step]) -> Result<(), String> {
    for (place, step) in steps.iter().enumerate() {
        let Test::Absent { or_else } = step.test else {
            continue;
        };
        let has_other = |it: &Step| it.is_beside(step) && !it.is_absence();
        let rest = steps.get(place + 1..).unwrap_or_default();
        match (or_else, rest.iter().any(has_other)) {
            (false, true) => return Err("absent: want no other test of that buffer".to_string()),
            (true, false) => return Err("absent: want a test behind or_else".to_string()),
            _ => {}
        }
    }
    Ok(())
}

/// Returns how many buffers of a rule are transformed or decoded.
fn changed_of(steps: &[Step]) -> usize {
    let mut before = None;
    let mut changed = 0;
    for step in steps {
        let place = (step.buffer, &step.transforms);
        let is_new = before.replace(place) != Some(place);
        changed += usize::from(is_new && !step.transforms.is_empty());
        changed += usize::from(matches!(step.test, Test::Base64 { .. }));
    }
    changed
}

/// Returns true if a test searches for something, so that later positions can be relative to it.
fn is_sought(test: &Test) -> bool {
    matches!(test, Test::Content(_) | Test::Regex { .. })
}

/// Reads the message that a buffer belongs to in a rule with `=>`: `true` for the request.
fn side_of(value: &str) -> Option<bool> {
    match value.trim() {
        "to_server" => Some(true),
        "to_client" => Some(false),
        _ => None,
    }
}

/// Splits a rule about a request and its response: it keeps the tests of the request, and the returned rule has those
/// of the response. `sides` contains the message of each test, if the rule gives it.
///
/// # Errors
/// Returns the reason why the rule is not supported.
fn split_by_side(rule: &mut Rule, sides: &[Option<bool>]) -> Result<Rule, String> {
    if !rule.applications.contains(&Application::Http) {
        return Err("of another protocol than HTTP/1".to_string());
    }
    if rule.flow.to_server.is_some() {
        return Err("with a direction".to_string());
    }
    if !rule.headers.is_empty() {
        return Err("with tests of headers".to_string());
    }
    let (mut of_request, mut of_response) = (Vec::new(), Vec::new());
    for (step, side) in rule.steps.iter().zip(sides) {
        match step.buffer.to_server().or(*side) {
            Some(true) => of_request.push(step.clone()),
            Some(false) => of_response.push(step.clone()),
            None => {
                let what = "with a buffer that both messages have: say to_server or to_client";
                return Err(what.to_string());
            }
        }
    }
    if of_request.is_empty() || of_response.is_empty() {
        return Err("without buffers of both messages".to_string());
    }
    // Frames of HTTP/2 are not matched with the request that they answer.
    rule.applications = vec![Application::Http];
    rule.flow.to_server = Some(true);
    let mut response = rule.clone();
    std::mem::swap(&mut response.source, &mut response.destination);
    response.flow.to_server = Some(false);
    (rule.steps, response.steps) = (of_request, of_response);
    Ok(response)
}

/// Limits the protocols of a rule to those that have all of its buffers; returns the reason if it can never match.
fn never_fits(rule: &mut Rule) -> Option<String> {
    for step in &rule.steps {
        let of = step.buffer.applications();
        let (Some(of_buffer), Some(of_rule)) = (of.first(), rule.applications.first()) else {
            rule.applications.extend(of);
            continue;
        };
        if !rule.applications.iter().any(|it| of.contains(it)) {
            return Some(format!(
                "a buffer of {} in a rule about {}",
                of_buffer.name(),
                of_rule.name()
            ));
        }
        rule.applications.retain(|it| of.contains(it));
    }
    let is_carried = |it: &Application| match rule.protocol {
        Protocol::Ip => true,
        Protocol::Tcp => !matches!(it, Application::Ntp | Application::Ike),
        Protocol::Udp => matches!(
            it,
            Application::Dns | Application::Sip | Application::Ntp | Application::Ike
        ),
        Protocol::Icmp => false,
    };
    if let Some(first) = rule.applications.first()
        && !rule.applications.iter().any(is_carried)
    {
        return Some(format!(
            "{} over another protocol than its own",
            first.name()
        ));
    }
    let directions = rule.steps.iter().map(|step| step.buffer.to_server());
    let directions = directions.chain([rule.flow.to_server]);
    let mut known = directions.flatten();
    let first = known.next();
    if known.any(|it| Some(it) != first) {
        return Some("buffers of the other direction".to_string());
    }
    // An absent buffer does not determine the direction.
    if rule.steps.iter().any(Step::is_absence) {
        rule.flow.to_server = first;
    }
    None
}

/// Returns the protocol of IP and the protocols above layer 4 for a name in a header.
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

/// Returns the protocols here for the name of a protocol above layer 4.
fn applications_of(name: &str) -> Option<Vec<Application>> {
    Some(match name {
        "http" => vec![Application::Http, Application::Http2],
        "http1" => vec![Application::Http],
        "ssl" | "https" => vec![Application::Tls],
        "ikev2" => vec![Application::Ike],
        _ => vec![Application::of_name(name)?],
    })
}

/// Hooks that are supported, and whether their messages go to the server.
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

/// Reads `app-layer-protocol`: a flow has one protocol here, in both directions and from its first bytes on.
fn application(value: &str, rule: &mut Rule) -> Read<()> {
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

/// Reads `base64_decode`.
fn base64(value: &str) -> Read<Test> {
    let (mut bytes, mut offset, mut relative) = (BASE64_BYTES, 0, false);
    for part in parts(value).into_iter().filter(|part| !part.is_empty()) {
        match part.split_once(' ') {
            Some(("bytes", value)) => bytes = number::<usize>(value)?.min(BASE64_BYTES),
            Some(("offset", value)) => offset = number(value)?,
            None if part == "relative" => relative = true,
            _ => return wrong(format!("{part:?}: want bytes, offset or relative")),
        }
    }
    Ok(Test::Base64 {
        bytes,
        offset,
        relative,
    })
}

/// Reads `entropy`: the range of bytes, and a comparison with bits per byte.
fn entropy(value: &str) -> Read<Test> {
    let (mut offset, mut bytes, mut within) = (0, 0, None);
    for part in parts(value) {
        match part
            .split_once(' ')
            .map(|(name, value)| (name, value.trim()))
        {
            Some(("offset", value)) => offset = signed(value)?,
            Some(("bytes", value)) => bytes = signed(value)?,
            Some(("value", value)) => within = Some(measure(value)?),
            _ => return wrong(format!("{part:?}: want bytes, offset or value")),
        }
    }
    let Some(within) = within else {
        return wrong("want a value, such as value > 7.5");
    };
    let count = |number: i64| usize::try_from(number).unwrap_or(0);
    Ok(Test::Entropy {
        offset: count(offset),
        bytes: count(bytes),
        within,
    })
}

/// Reads a comparison with a decimal number: `4.5`, `>4`, `<=4`, `!=4`, `4-5` (exclusive) and `!4-5`.
fn measure(text: &str) -> Read<Measure> {
    let number = |text: &str| match text.trim().parse::<f64>() {
        Ok(number) if number.is_finite() => Ok(number),
        _ => wrong(format!("{text:?}: want a number, such as 4.5")),
    };
    let is = |least, most, with_ends| {
        Ok(Measure {
            least,
            most,
            with_ends,
            not: false,
        })
    };
    let (low, high) = (f64::NEG_INFINITY, f64::INFINITY);
    if let Some(text) = text.strip_prefix(">=") {
        return is(number(text)?, high, true);
    }
    if let Some(text) = text.strip_prefix("<=") {
        return is(low, number(text)?, true);
    }
    if let Some(text) = text.strip_prefix('>') {
        return is(number(text)?, high, false);
    }
    if let Some(text) = text.strip_prefix('<') {
        return is(low, number(text)?, false);
    }
    let (not, text) = negated(text);
    let ends = text.split_once("<>").or_else(|| text.split_once('-'));
    let (least, most, with_ends) = match ends {
        Some((least, most)) => (number(least)?, number(most)?, false),
        None => {
            let number = number(text.strip_prefix('=').unwrap_or(text))?;
            (number, number, true)
        }
    };
    if least > most || (least == most && !with_ends) {
        return wrong("there is no such number");
    }
    Ok(Measure {
        least,
        most,
        with_ends,
        not,
    })
}

/// Returns the header that an option selects, and the tests for packets that have it.
fn header_of(name: &str) -> Option<(Buffer, Vec<HeaderTest>)> {
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

/// Returns a test for the protocol after the IP header.
fn is_protocol(number: u8) -> HeaderTest {
    HeaderTest::IpProtocol(Within {
        least: number.into(),
        most: number.into(),
        not: false,
    })
}

/// Reads the name of a transform and its value.
fn transform_of(name: &str, value: &str) -> Read<Option<Transform>> {
    match name {
        "xor" => {
            let key = bytes(&format!("\"|{}|\"", value.trim_matches('"')))?;
            if !(1..=MOST_KEY).contains(&key.len()) {
                return wrong(format!(
                    "want a key of 1 to {MOST_KEY} bytes in hexadecimal digits"
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
            _ => return wrong(format!("{part:?}: want bytes, offset or mode")),
        }
    }
    Ok(Transform::DecodeBase64(how))
}

/// Returns a test for an anomaly of the packet.
fn is_odd(anomaly: Anomaly, not: bool) -> HeaderTest {
    HeaderTest::Anomaly {
        bits: anomaly.bit(),
        not,
    }
}

/// Reads a test for a correct or wrong checksum, of packets that have it.
fn checksum(version: u8, protocol: Option<u8>, value: &str, rule: &mut Rule) -> Read<()> {
    let not = match value.trim_matches('"') {
        "invalid" => false,
        "valid" => true,
        _ => return wrong(format!("{value:?}: want valid or invalid")),
    };
    let anomaly = match protocol {
        None => Anomaly::HeaderChecksum,
        Some(_) => Anomaly::Checksum,
    };
    rule.headers.push(HeaderTest::IpVersion(version));
    rule.headers.extend(protocol.map(is_protocol));
    rule.headers.push(is_odd(anomaly, not));
    Ok(())
}

/// Returns a rule without tests.
fn no_rule(action: Action, line: usize) -> Rule {
    Rule {
        action,
        protocol: Protocol::Ip,
        applications: Vec::new(),
        not_applications: Vec::new(),
        services: Vec::new(),
        source: any_side(),
        destination: any_side(),
        both_ways: false,
        flow: FlowTest::default(),
        headers: Vec::new(),
        steps: Vec::new(),
        is_positional: false,
        bits: Vec::new(),
        host_bits: Vec::new(),
        is_silent: false,
        is_told: false,
        bypasses: false,
        rate: None,
        response: None,
        half: None,
        about: About {
            group: 1,
            line,
            ..About::default()
        },
    }
}

fn any_side() -> Side {
    Side {
        addresses: Arc::new(Ranges::all()),
        ports: Arc::new(Ranges::all()),
    }
}

/// Options that refine the content before them.
const MODIFIERS_OF_CONTENT: [&str; 8] = [
    "nocase",
    "depth",
    "offset",
    "distance",
    "within",
    "fast_pattern",
    "startswith",
    "endswith",
];

/// Names of buffers that apply to the content before them, in Suricata's older syntax; all others apply to the contents
/// after them.
const MODIFIERS: [&str; 14] = [
    "http_method",
    "http_uri",
    "http_raw_uri",
    "http_version",
    "http_header",
    "http_raw_header",
    "http_cookie",
    "http_raw_cookie",
    "http_host",
    "http_user_agent",
    "http_client_body",
    "http_server_body",
    "http_stat_code",
    "http_stat_msg",
];

/// Returns the buffer that an option selects, in any syntax.
fn buffer_of(name: &str, value: &str) -> Read<Option<Buffer>> {
    let buffer = match name {
        "pkt_data" | "raw_data" => Buffer::Payload,
        "http.method" | "http_method" => Buffer::HttpMethod,
        "http.uri" | "http_uri" => Buffer::HttpUri,
        "http.uri.raw" | "http_raw_uri" => Buffer::HttpRawUri,
        "http.protocol" | "http_protocol" | "http_version" => Buffer::HttpProtocol,
        "http.request_line" | "http_request_line" => Buffer::HttpRequestLine,
        "http.response_line" | "http_response_line" => Buffer::HttpResponseLine,
        "http.header" => Buffer::HttpHeader,
        "http_header" => match value
            .strip_prefix("field")
            .map(|it| it.trim().to_ascii_lowercase())
        {
            None if value.is_empty() => Buffer::HttpHeader,
            Some(field) => match field.as_str() {
                "user-agent" => Buffer::HttpUserAgent,
                "host" => Buffer::HttpHost,
                "referer" => Buffer::HttpReferer,
                "content-type" => Buffer::HttpContentType,
                "accept" => Buffer::HttpAccept,
                _ => return Err(Refusal::NotUnderstood),
            },
            None => return Err(Refusal::NotUnderstood),
        },
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
    // Parts of a target, such as `http_uri:path`, and the like.
    if !value.is_empty() && name != "http_header" {
        return Err(Refusal::NotUnderstood);
    }
    Ok(Some(buffer))
}

fn last_content(rule: &mut Rule) -> Option<&mut Content> {
    rule.steps
        .iter_mut()
        .rev()
        .find_map(|step| match &mut step.test {
            Test::Content(content) => Some(content),
            _ => None,
        })
}

fn modify(content: &mut Content, name: &str, value: &str, variables: &[String]) -> Read<()> {
    let place = |value: &str| number_or_name(value, variables).map(Some);
    match name {
        "nocase" => {
            content.any_case = true;
            content.bytes.make_ascii_lowercase();
        }
        "offset" => content.offset = place(value)?,
        "depth" => content.depth = place(value)?,
        "distance" => content.distance = place(value)?,
        "within" => content.within = place(value)?,
        "startswith" => {
            content.offset = Some(Number::Is(0));
            content.depth = Some(Number::Is(content.bytes.len() as i64));
        }
        "endswith" => content.at_end = true,
        "fast_pattern" => content.is_fast = true,
        // They select the part that is searched first, which does not change the result.
        "fast_pattern_offset" | "fast_pattern_length" | "rawbytes" => {}
        _ => return wrong(format!("{name:?} is nothing that a content can have")),
    }
    for (bytes, name) in [(content.depth, "depth"), (content.within, "within")] {
        if let Some(Number::Is(bytes)) = bytes
            && bytes < content.bytes.len() as i64
        {
            return wrong(format!("{name} {bytes}: shorter than the content itself"));
        }
    }
    Ok(())
}

/// Returns the text between quotes, for users.
fn text(value: &str) -> String {
    let inner = value
        .strip_prefix('"')
        .and_then(|it| it.strip_suffix('"'))
        .unwrap_or(value);
    let mut text = String::with_capacity(inner.len());
    let mut chars = inner.chars();
    while let Some(c) = chars.next() {
        text.push(if c == '\\' {
            chars.next().unwrap_or(c)
        } else {
            c
        });
    }
    text
}

/// Returns the bytes of a content: text with hexadecimal numbers between bars.
fn bytes(quoted: &str) -> Read<Vec<u8>> {
    let Some(inner) = quoted.strip_prefix('"').and_then(|it| it.strip_suffix('"')) else {
        return wrong("want bytes in quotes, such as \"GET |0d 0a|\"");
    };
    let mut bytes = Vec::with_capacity(inner.len());
    let (mut in_hex, mut half) = (false, None::<u8>);
    let mut each = inner.bytes();
    while let Some(byte) = each.next() {
        match byte {
            b'|' => {
                if half.is_some() {
                    return wrong("half a byte between bars");
                }
                in_hex = !in_hex;
            }
            _ if in_hex => match (char::from(byte).to_digit(16), half) {
                (Some(digit), None) => half = Some(digit as u8),
                (Some(digit), Some(high)) => {
                    bytes.push(high << 4 | digit as u8);
                    half = None;
                }
                (None, None) if byte.is_ascii_whitespace() => {}
                _ => return wrong("want hexadecimal numbers of two digits between bars"),
            },
            b'\\' => bytes.extend(each.next()),
            _ => bytes.push(byte),
        }
    }
    if in_hex {
        return wrong("a bar that is not closed");
    }
    Ok(bytes)
}

fn number_or_name(text: &str, variables: &[String]) -> Read<Number> {
    if let Some(variable) = variables.iter().position(|known| known == text.trim()) {
        return Ok(Number::Read(variable as u8));
    }
    signed(text).map(Number::Is).or_else(|_| {
        wrong(format!(
            "{text:?}: want a number, or the name of one that was read before"
        ))
    })
}

fn field_option(field: &mut Field, part: &str) -> Read<()> {
    let text = |base| Form::Text(base);
    match part {
        "relative" => field.relative = true,
        "big" | "string" if part == "big" => field.form = Form::Big,
        "little" => field.form = Form::Little,
        // Digits determine their base by a prefix, unless the rule gives one.
        "string" => field.form = text(0),
        "hex" => field.form = text(16),
        "dec" => field.form = text(10),
        "oct" => field.form = text(8),
        "string,hex" => field.form = text(16),
        "string,dec" => field.form = text(10),
        // The byte order that DCE/RPC announces: practically all implementations send little-endian.
        "dce" => field.form = Form::Little,
        _ => match part.split_once(' ') {
            Some(("bitmask", mask)) => field.mask = signed(mask)? as u64,
            Some(("string", base)) => return field_option(field, base.trim()),
            _ => return Err(Refusal::NotUnderstood),
        },
    }
    Ok(())
}

fn check(field: Field) -> Read<()> {
    match field.bytes {
        Number::Is(bytes) if bytes > field.form.most_bytes() as i64 => wrong(format!(
            "{bytes} bytes: want 1 to {}",
            field.form.most_bytes()
        )),
        _ => Ok(()),
    }
}

fn rate(value: &str, kind: Option<RateKind>) -> Read<Rate> {
    let (mut kind, mut track, mut count, mut seconds) = (kind, None, None, None);
    let mut factor = None;
    for part in value.split(',') {
        let (name, value) = part
            .trim()
            .split_once([' ', ':'])
            .unwrap_or((part.trim(), ""));
        match (name, value.trim()) {
            ("type", "limit") => kind = Some(RateKind::Limit),
            ("type", "threshold") => kind = Some(RateKind::Every),
            ("type", "both") => kind = Some(RateKind::Once),
            ("type", "backoff") => seconds = Some(u32::MAX),
            ("multiplier", value) => factor = Some(number::<u32>(value)?),
            ("track", "by_flow") => track = Some(Track::Flow),
            ("track", "by_src") => track = Some(Track::Source),
            ("track", "by_dst") => track = Some(Track::Destination),
            ("track", "by_both") => track = Some(Track::Both),
            ("track", "by_rule") => track = Some(Track::Rule),
            ("count", count_) => count = Some(number(count_)?),
            ("seconds", seconds_) => seconds = Some(number(seconds_)?),
            _ => return Err(Refusal::NotUnderstood),
        }
    }
    if let Some(multiplier) = factor {
        if multiplier < 2 || kind.is_some() {
            return wrong("want a multiplier of 2 or more, and type backoff");
        }
        kind = Some(RateKind::Backoff { multiplier });
    }
    match (kind, track, count, seconds) {
        (Some(kind), Some(track), Some(count), Some(seconds)) => Ok(Rate {
            kind,
            track,
            count,
            seconds,
        }),
        _ => wrong("want track, count and seconds"),
    }
}

fn ip_protocol(value: &str) -> Read<Within> {
    let names = [
        ("icmp", 1),
        ("igmp", 2),
        ("tcp", 6),
        ("udp", 17),
        ("gre", 47),
        ("esp", 50),
        ("ah", 51),
        ("sctp", 132),
        ("ipv6-icmp", 58),
    ];
    let (not, name) = negated(value);
    match names.iter().find(|it| it.0.eq_ignore_ascii_case(name)) {
        Some(&(_, number)) => Ok(Within {
            least: number,
            most: number,
            not,
        }),
        None => form::up_to(form::BYTE, within(value, true)?),
    }
}

fn tcp_flags(value: &str) -> Read<Bits> {
    let (value, but) = value.split_once(',').unwrap_or((value, ""));
    // The order is that of the bits of the header; `C` and `E` are the former 1 and 2.
    let letters = |text: &str| text.replace(['1', 'c'], "C").replace(['2', 'e'], "E");
    let mut bits = bits(&letters(value).replace('0', ""), "FSRPAUEC")?;
    for letter in letters(but).trim().chars() {
        match "FSRPAUEC".find(letter) {
            Some(bit) => bits.looked_at &= !(1 << bit),
            None => return wrong(format!("no flag {letter:?}")),
        }
    }
    Ok(bits)
}

/// Reads bits by their letters, the lowest first, with `+`, `*` or `!` before or after them.
fn bits(value: &str, letters: &str) -> Read<Bits> {
    let mut is = Bits {
        bits: 0,
        looked_at: 0xff,
        how: BitsHow::Exactly,
    };
    for letter in value.trim().chars() {
        match letter {
            '+' => is.how = BitsHow::All,
            '*' => is.how = BitsHow::Any,
            '!' => is.how = BitsHow::None,
            _ => match letters.find(letter) {
                Some(bit) => is.bits |= 1 << bit,
                None => return wrong(format!("no flag {letter:?}")),
            },
        }
    }
    Ok(is)
}

fn ip_option(value: &str) -> Read<Option<u8>> {
    let names = [
        ("rr", 7),
        ("eol", 0),
        ("nop", 1),
        ("ts", 68),
        ("sec", 130),
        ("esec", 133),
        ("lsrr", 131),
        ("lsrre", 131),
        ("ssrr", 137),
        ("satid", 136),
    ];
    match names.iter().find(|it| it.0 == value) {
        Some(&(_, number)) => Ok(Some(number)),
        None if value == "any" => Ok(None),
        None => wrong(format!("{value:?} is no option of IP that has a name")),
    }
}

/// Names of the kinds of TLS messages, by their bits ([`crate::evaluate::Packet::tls`]).
pub const TLS_STATES: [&str; 5] = [
    "client_hello",
    "server_hello",
    "client_keyx",
    "server_keyx",
    "unknown",
];

fn tls_state(value: &str) -> Read<Bits> {
    let (not, value) = negated(value);
    let mut is = Bits {
        bits: 0,
        looked_at: 0xff,
        how: if not { BitsHow::None } else { BitsHow::Any },
    };
    for name in value.split([',', '|']) {
        match TLS_STATES.iter().position(|known| *known == name.trim()) {
            Some(bit) => is.bits |= 1 << bit,
            None => return wrong(format!("{name:?}: want one of {}", TLS_STATES.join(", "))),
        }
    }
    Ok(is)
}

fn tls_version(value: &str) -> Read<u16> {
    Ok(match value {
        "sslv2" => 0x0200,
        "sslv3" => 0x0300,
        "tls1.0" | "1.0" => 0x0301,
        "tls1.1" | "1.1" => 0x0302,
        "tls1.2" | "1.2" => 0x0303,
        "tls1.3" | "1.3" => 0x0304,
        _ => return Err(Refusal::NotUnderstood),
    })
}

#[cfg(test)]
mod tests;
