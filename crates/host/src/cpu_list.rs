//! CPU lists and masks as the kernel writes them: `0-3,8` and `00000000,00000003`.

use std::collections::BTreeSet;

/// Returns the CPUs of a list such as `0-3,8`; `None` if the text is not a list. An empty list is an empty set.
pub(crate) fn parse_cpu_list(text: &str) -> Option<BTreeSet<usize>> {
    // The limit is far above that of any kernel. It keeps an invalid range from filling the memory.
    const HIGHEST_CPU: usize = 65_535;
    let mut cpus = BTreeSet::new();
    for part in text
        .trim()
        .split(',')
        .map(str::trim)
        .filter(|part| !part.is_empty())
    {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.parse::<usize>().ok()?, last.parse::<usize>().ok()?);
        if first > last || last > HIGHEST_CPU {
            return None;
        }
        cpus.extend(first..=last);
    }
    Some(cpus)
}

/// Returns `cpus` as the kernel writes a list: `0-3,8`.
pub(crate) fn format_cpu_list(cpus: &BTreeSet<usize>) -> String {
    let mut ranges: Vec<(usize, usize)> = Vec::new();
    for &cpu in cpus {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == cpu => *last = cpu,
            _ => ranges.push((cpu, cpu)),
        }
    }
    let parts: Vec<String> = ranges
        .iter()
        .map(|(first, last)| {
            if first == last {
                first.to_string()
            } else {
                format!("{first}-{last}")
            }
        })
        .collect();
    parts.join(",")
}

/// Returns `cpus` as the kernel writes a mask: 32-bit words in hexadecimal, highest first.
pub(crate) fn mask_of_cpus(cpus: &BTreeSet<usize>) -> String {
    let mut words = vec![0_u32; cpus.last().map_or(1, |highest| highest / 32 + 1)];
    for cpu in cpus {
        words[cpu / 32] |= 1 << (cpu % 32);
    }
    let words: Vec<String> = words.iter().rev().map(|w| format!("{w:08x}")).collect();
    words.join(",")
}

/// Returns the CPUs in a mask of the kernel; `None` if the text is not a mask.
pub(crate) fn mask_cpus(text: &str) -> Option<BTreeSet<usize>> {
    let mut cpus = BTreeSet::new();
    for (at, word) in text.trim().split(',').rev().enumerate() {
        let bits = u32::from_str_radix(word, 16).ok()?;
        cpus.extend(
            (0..32)
                .filter(|bit| bits & (1 << bit) != 0)
                .map(|bit| at * 32 + bit),
        );
    }
    Some(cpus)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ranges_and_single_cpus_are_parsed() {
        assert_eq!(
            parse_cpu_list("0-2,8\n"),
            Some(BTreeSet::from([0, 1, 2, 8]))
        );
        assert_eq!(parse_cpu_list("\n"), Some(BTreeSet::new()));
    }

    #[test]
    fn invalid_cpu_lists_are_refused() {
        for text in ["a", "3-1", "1-", "0-99999999999", "-"] {
            assert_eq!(parse_cpu_list(text), None, "{text}");
        }
    }

    #[test]
    fn a_cpu_mask_has_one_hexadecimal_word_per_32_cpus() {
        assert_eq!(mask_of_cpus(&BTreeSet::from([1])), "00000002");
        assert_eq!(mask_of_cpus(&BTreeSet::from([0, 33])), "00000002,00000001");
        assert_eq!(mask_cpus("x"), None);
        assert_eq!(mask_cpus("3\n"), Some(BTreeSet::from([0, 1])));
    }

    proptest! {
        #[test]
        fn printed_cpu_lists_and_masks_parse_to_the_same_cpus(cpus in proptest::collection::btree_set(0_usize..1024, 0..20)) {
            let text = cpus.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
            prop_assert_eq!(parse_cpu_list(&text), Some(cpus.clone()));
            prop_assert_eq!(parse_cpu_list(&format_cpu_list(&cpus)), Some(cpus.clone()));
            prop_assert_eq!(mask_cpus(&mask_of_cpus(&cpus)), Some(cpus));
        }

        #[test]
        fn arbitrary_cpu_lists_and_masks_are_parsed_without_a_panic(text in ".*") {
            let _ = (parse_cpu_list(&text), mask_cpus(&text));
        }
    }
}
