//! CPU lists and masks as the kernel writes them: `0-3,8` and `00000000,00000003`.

use std::collections::BTreeSet;

/// The CPUs named by a list such as `0-3,8`; `None` when the text is no such list.
/// An empty list is an empty set.
pub(crate) fn parse_cpu_list(text: &str) -> Option<BTreeSet<usize>> {
    // Far above any kernel's limit; keeps a damaged range from filling the memory.
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

/// The mask with only `cpu` set, in the kernel's form: words of 32 bits in hexadecimal, highest first.
pub(crate) fn mask_of_cpu(cpu: usize) -> String {
    let mut words = vec![format!("{:08x}", 1_u32 << (cpu % 32))];
    words.extend(std::iter::repeat_n("00000000".to_owned(), cpu / 32));
    words.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn reads_ranges_and_single_cpus() {
        assert_eq!(
            parse_cpu_list("0-2,8\n"),
            Some(BTreeSet::from([0, 1, 2, 8]))
        );
        assert_eq!(parse_cpu_list("\n"), Some(BTreeSet::new()));
    }

    #[test]
    fn refuses_what_is_no_list() {
        for text in ["a", "3-1", "1-", "0-99999999999", "-"] {
            assert_eq!(parse_cpu_list(text), None, "{text}");
        }
    }

    #[test]
    fn mask_has_one_word_per_32_cpus() {
        assert_eq!(mask_of_cpu(1), "00000002");
        assert_eq!(mask_of_cpu(33), "00000002,00000000");
    }

    proptest! {
        #[test]
        fn a_list_of_single_cpus_reads_back(cpus in proptest::collection::btree_set(0_usize..1024, 0..20)) {
            let text = cpus.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
            prop_assert_eq!(parse_cpu_list(&text), Some(cpus));
        }

        #[test]
        fn any_text_is_read_without_panic(text in ".*") {
            let _ = parse_cpu_list(&text);
        }
    }
}
