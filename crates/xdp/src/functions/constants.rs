//! Constants of a program, which are set before it is loaded (`settings` in ebpf/xdp_functions.bpf.c), and the entries
//! of its maps.

use super::nat;
use super::{
    KernelClassRule, KernelClassifier, KernelFields, KernelFunction, KernelRule, KernelStage,
    MOST_STAGES,
};
use crate::forward::HeaderChange;

/// Size of `struct stage` in ebpf/xdp_functions.bpf.c.
const STAGE_BYTES: usize = 40;
/// Size of `struct rule` in ebpf/xdp_functions.bpf.c.
pub(super) const RULE_BYTES: usize = 76;
/// Size of `struct class_rule` in ebpf/function/classifier.h.
pub(super) const CLASS_RULE_BYTES: usize = 80;
/// Size of `struct hop` in ebpf/xdp_functions.bpf.c.
pub(super) const HOP_BYTES: usize = 8;
const ANY_PROTOCOL: u16 = 256;
/// The identifier of a frame without a VLAN tag.
const NO_TAG: u16 = 0xffff;

/// The kinds of functions: `enum stage_kind` in ebpf/xdp_functions.bpf.c.
#[derive(Debug, Clone, Copy)]
enum Kind {
    Headers,
    Xor,
    Ats,
    Filter,
    Balance,
    Passes,
    Nat,
}

/// The constants of one direction's program, and the contents of the XDP program's maps.
pub(super) struct Program {
    pub constants: Vec<u8>,
    /// Entries for the rules of all filters, one after the other.
    pub rules: Vec<u8>,
    /// Entries for the next hops of all buckets, in the order of the functions.
    pub buckets: Vec<u8>,
    /// Entries for the rules of the classifier.
    pub class_rules: Vec<u8>,
}

impl Program {
    /// Returns the program for the frames that leave through the port with index `to`.
    pub fn of(stages: &[KernelStage], classifier: Option<&KernelClassifier>, to: usize) -> Self {
        let reads_clock = stages.iter().any(|stage| {
            matches!(
                stage.function,
                KernelFunction::Ats { .. } | KernelFunction::Nat { .. }
            )
        });
        let mut program = Self {
            constants: Vec::new(),
            rules: Vec::new(),
            buckets: Vec::new(),
            class_rules: Vec::new(),
        };
        let front = [stages.len() as u32, u32::from(reads_clock)];
        program
            .constants
            .extend(front.iter().flat_map(|n| n.to_ne_bytes()));
        for stage in stages {
            let classes = classifier.map(|it| &it.of_function);
            let class = classes.and_then(|it| it.get(stage.number)).copied();
            program.add(stage, class.unwrap_or_default());
        }
        program.constants.resize(8 + MOST_STAGES * STAGE_BYTES, 0);
        let translators = stages.iter().filter_map(KernelStage::nat);
        program
            .constants
            .extend(translators.take(1).flat_map(nat::constants));
        program
            .constants
            .resize(8 + MOST_STAGES * STAGE_BYTES + nat::SETTINGS_BYTES, 0);
        program.add_classifier(classifier, to);
        program
    }

    fn add_classifier(&mut self, classifier: Option<&KernelClassifier>, to: usize) {
        let numbers = classifier.map_or([0; 4], |it| {
            let rules = it.rules.get(to).map_or(&[][..], Vec::as_slice);
            self.class_rules.extend(rules.iter().flat_map(class_rule));
            let dropped = it.chains as u32 + 1;
            [1, rules.len() as u32, u32::from(it.default), dropped]
        });
        self.constants
            .extend(numbers.iter().flat_map(|n| n.to_ne_bytes()));
    }

    fn add(&mut self, stage: &KernelStage, class: u8) {
        let mut change = HeaderChange::NONE;
        let (mut first, mut count) = (0, 0);
        let (kind, value) = match &stage.function {
            KernelFunction::Headers(it) => {
                change = *it;
                (Kind::Headers, 0)
            }
            KernelFunction::Xor { key } => (Kind::Xor, u64::from(*key)),
            KernelFunction::Ats { mtu } => (Kind::Ats, *mtu as u64),
            KernelFunction::Filter {
                rules,
                default_drops,
            } => {
                first = self.rules.len() / RULE_BYTES;
                count = rules.len();
                self.rules.extend(rules.iter().flat_map(rule));
                (Kind::Filter, u64::from(*default_drops))
            }
            KernelFunction::Balance { buckets, seed } => {
                first = self.buckets.len() / HOP_BYTES;
                let hop = |&[a, b, c, d, e, f]: &[u8; 6]| [a, b, c, d, e, f, 0, 0];
                self.buckets.extend(buckets.iter().flat_map(hop));
                (Kind::Balance, *seed)
            }
            KernelFunction::Passes { outcome } => (Kind::Passes, *outcome as u64),
            KernelFunction::Nat { is_outwards, .. } => (Kind::Nat, u64::from(*is_outwards)),
        };
        let numbers = [kind as u32, stage.number as u32, first as u32, count as u32];
        self.constants
            .extend(numbers.iter().flat_map(|n| n.to_ne_bytes()));
        self.constants.extend(value.to_ne_bytes());
        self.constants.extend(change.constants());
        self.constants.extend(u16::from(class).to_ne_bytes());
    }
}

/// Returns the prefixes with their masks, and the ranges of ports, in the form of the maps' entries.
fn addresses_and_ports(fields: &KernelFields, bytes: &mut Vec<u8>) {
    for (bits, mask) in [fields.source, fields.destination] {
        bytes.extend(bits.to_be_bytes());
        bytes.extend(mask.to_be_bytes());
    }
    for ports in [fields.source_ports, fields.destination_ports] {
        let (first, last) = ports.unwrap_or((0, u16::MAX));
        bytes.extend(first.to_ne_bytes());
        bytes.extend(last.to_ne_bytes());
    }
}

fn asks_ports(fields: &KernelFields) -> bool {
    fields.source_ports.is_some() || fields.destination_ports.is_some()
}

fn rule(rule: &KernelRule) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(RULE_BYTES);
    addresses_and_ports(&rule.fields, &mut bytes);
    let protocol = rule.fields.protocol.map_or(ANY_PROTOCOL, u16::from);
    bytes.extend(protocol.to_ne_bytes());
    bytes.extend([u8::from(asks_ports(&rule.fields)), u8::from(rule.drops)]);
    bytes
}

fn class_rule(rule: &KernelClassRule) -> Vec<u8> {
    let any = KernelFields::default();
    let fields = rule.ip.as_ref().unwrap_or(&any);
    let mut bytes = Vec::with_capacity(CLASS_RULE_BYTES);
    addresses_and_ports(fields, &mut bytes);
    bytes.extend(rule.ethertype.unwrap_or_default().to_ne_bytes());
    let tag = rule.vlan.flatten().unwrap_or(NO_TAG);
    bytes.extend(tag.to_ne_bytes());
    // The bits are in the order of `enum class_field`.
    let compared = [
        rule.ethertype.is_some(),
        rule.vlan.is_some(),
        rule.ip.is_some(),
        fields.protocol.is_some(),
        asks_ports(fields),
        rule.dscp.is_some(),
    ];
    let bits = compared.iter().enumerate();
    let compared = bits.fold(0, |sum, (bit, is)| sum | u8::from(*is) << bit);
    bytes.extend([
        fields.protocol.unwrap_or_default(),
        rule.dscp.unwrap_or_default(),
        compared,
        rule.class,
    ]);
    bytes
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn function_kinds_have_the_same_numbers_in_rust_and_ebpf() {
        let header = include_str!("../../ebpf/function/settings.h");
        let (_, rest) = header.split_once("enum stage_kind {").unwrap();
        let (names, _) = rest.split_once('}').unwrap();
        let there: Vec<_> = names.split(',').map(str::trim).zip(0..).collect();
        let here = [
            Kind::Headers,
            Kind::Xor,
            Kind::Ats,
            Kind::Filter,
            Kind::Balance,
            Kind::Passes,
            Kind::Nat,
        ];
        let here = here.map(|kind| (format!("{kind:?}").to_uppercase(), kind as u32));
        assert!(
            here.iter()
                .map(|(name, number)| (name.as_str(), *number))
                .eq(there)
        );
    }
}
