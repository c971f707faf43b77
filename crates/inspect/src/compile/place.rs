//! Decides when a rule is evaluated: by which pattern, with the messages of which buffer, and at which position among
//! the other rules.

use crate::buffer::Buffer;
use crate::rule::*;
use crate::transform::Transform;

/// Returns the evaluation order of a rule by its use of flow and host bits: rules that only change bits are first,
/// rules that only test bits are last.
pub(super) fn bits_order(rule: &Rule) -> u8 {
    let asks = |bit: &FlowBit| matches!(bit, FlowBit::IsSet { .. } | FlowBit::IsNotSet(_));
    let of_hosts = &rule.host_bits;
    let (has_asked, has_changed) = (
        rule.bits.iter().any(asks) || of_hosts.iter().any(HostBit::asks),
        rule.bits.iter().any(|bit| !asks(bit)) || of_hosts.iter().any(|bit| !bit.asks()),
    );
    match (has_changed, has_asked) {
        (true, false) => 0,
        (true, true) => 1,
        (false, true) => 2,
        (false, false) => 3,
    }
}

/// Returns true if a pass rule applies to the whole flow, as in Suricata. Such a rule tests messages, the stream, or
/// only the protocol and the two endpoints. Other pass rules apply to one packet.
pub(super) fn passes_flow(rule: &Rule) -> bool {
    let is_of_flow = |step: &Step| match step.buffer {
        Buffer::Payload | Buffer::Base64 => rule.protocol == Protocol::Tcp && !rule.is_positional,
        other => other.application().is_some(),
    };
    let is_about_flow = match rule.steps.is_empty() {
        true => asks_flow(rule),
        false => rule.steps.iter().any(is_of_flow),
    };
    rule.action == Action::Pass && is_about_flow
}

/// Returns true if a rule without contents applies to whole flows. Such a rule may test the protocol, the two
/// endpoints, and with a protocol also the direction. It may set flow bits but not test them, because they change
/// between packets.
fn asks_flow(rule: &Rule) -> bool {
    let is_version = |test: &HeaderTest| matches!(test, HeaderTest::IpVersion(_));
    let sets = |bit: &FlowBit| matches!(bit, FlowBit::Set(_));
    let is_of_protocol = !rule.applications.is_empty() || !rule.not_applications.is_empty();
    rule.headers.iter().all(is_version)
        && !rule.flow.is_of_packets
        && (is_of_protocol || rule.flow.to_server.is_none())
        && rule.bits.iter().all(sets)
        && !rule.host_bits.iter().any(HostBit::asks)
}

/// Returns true if a rule may fail when its pattern occurs, and match when later bytes have arrived.
pub(super) fn goes_on(rule: &Rule) -> bool {
    let grows = |step: &&Step| step.buffer == Buffer::Payload || step.buffer.is_body();
    !rule.is_positional && rule.steps.iter().filter(grows).count() > 1
}

/// Returns true if a rule has a test of a body with a result that is known only at the end of the body. Examples are
/// tests for the absence of a content, and tests of the body's length.
pub(super) fn wants_whole_body(rule: &Rule) -> bool {
    rule.steps.iter().any(|step| {
        let of_whole = match &step.test {
            Test::Content(content) => content.not || content.at_end,
            Test::Regex { not, .. } | Test::DataAt { not, .. } => *not,
            Test::Len(_) | Test::Entropy { .. } | Test::Absent { .. } => true,
            _ => false,
        };
        step.buffer.is_body() && of_whole
    })
}

/// Returns the buffer whose messages cause the rule to be evaluated; none if packets do.
pub(super) fn place_of(rule: &Rule) -> Option<Buffer> {
    let pattern = pattern(rule).map(|(buffer, _)| buffer);
    let last = stage(rule);
    let is_last = |step: &&Step| step.buffer.stage() == last;
    let of_last = || Some(rule.needed_steps().find(is_last)?.buffer);
    // Inspectors report an absent body, but not an absent header. A rule about an absent header is evaluated with the
    // version instead, which every head has.
    let lacking = || match rule.steps.iter().find(is_last)?.buffer {
        body if body.is_body() => Some(body),
        _ => Some(Buffer::HttpProtocol),
    };
    let place = pattern.or_else(of_last).or_else(lacking);
    place.filter(|buffer| buffer.application().is_some())
}

/// Returns the first stage ([`Buffer::stage`]) at which all buffers that a rule tests are present.
fn stage(rule: &Rule) -> u8 {
    let stages = rule.steps.iter().map(|step| step.buffer.stage());
    stages.max().unwrap_or(0)
}

/// Returns the pattern of a rule, with the buffer that contains it: the content that the rule marks with
/// `fast_pattern`, or else the most selective one. The pattern of a rule about messages is one of the contents whose
/// buffers arrive last.
pub(super) fn pattern(rule: &Rule) -> Option<(Buffer, &[u8])> {
    let last = stage(rule);
    let contents = rule.needed_steps().filter_map(|step| match &step.test {
        Test::Content(content)
            if !content.not
                && (step.buffer == Buffer::Payload || step.buffer.application().is_some())
                && step.transforms.iter().all(Transform::keeps_letters)
                && step.buffer.stage() == last =>
        {
            // The `Dot` transform adds a leading dot that the original buffer may lack.
            let bytes = match step.transforms.contains(&Transform::Dot) {
                true => content.bytes.strip_prefix(b"."),
                false => None,
            };
            Some((
                step.buffer,
                bytes.unwrap_or(&content.bytes),
                content.is_fast,
            ))
        }
        _ => None,
    });
    let best = contents.max_by_key(|(_, bytes, is_fast)| {
        let rarity: u32 = bytes.iter().map(|&byte| rarity(byte)).sum();
        (*is_fast && !bytes.is_empty(), rarity)
    });
    best.map(|(buffer, bytes, _)| (buffer, bytes))
        .filter(|(_, bytes)| !bytes.is_empty())
}

/// Returns the selectivity of a byte: low for padding, medium for letters, high for all others.
fn rarity(byte: u8) -> u32 {
    match byte {
        0 | 0xff => 1,
        1 | b' ' | b'\r' | b'\n' | b'.' | b'/' => 3,
        byte if byte.is_ascii_alphanumeric() => 4,
        _ => 6,
    }
}
