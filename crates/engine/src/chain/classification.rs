//! The classifier of a chain file, which selects one of several chains on the same ports for each packet.

use super::placement::Placement;
use super::stage::{ChainError, Stage, numbered_ports};
use std::sync::Arc;
use taut_function::classifier::{Classifier, NO_CHAIN};
use taut_settings::place_in;
use taut_xdp::functions::KernelClassifier;

/// The rules that select a chain for each packet, and the names of the chains.
#[derive(Debug, Clone)]
pub struct Classification {
    /// The rules in the form of the chain file, with numbers instead of the names of ports.
    pub rules: Vec<toml::Table>,
    /// The class of packets that no rule matches: a chain, `forward` or `drop`.
    pub default: String,
    /// The names of the chains, in the order of their first functions.
    pub chains: Vec<String>,
    pub(crate) classifier: Arc<Classifier>,
}

impl PartialEq for Classification {
    fn eq(&self, other: &Self) -> bool {
        (&self.rules, &self.default, &self.chains) == (&other.rules, &other.default, &other.chains)
    }
}

/// The keys of a chain file that belong to the classifier.
pub(super) struct ClassifierKeys {
    pub(super) rules: Vec<toml::Spanned<toml::Table>>,
    pub(super) default: Option<toml::Spanned<String>>,
}

impl Classification {
    /// Makes the classification that the keys of a chain file describe; None if the file has no rules.
    pub(super) fn of_file(
        keys: ClassifierKeys,
        functions: &[toml::Spanned<Stage>],
        port_names: &[String],
        ports: usize,
        text: &str,
    ) -> Result<Option<Self>, (usize, String)> {
        let names = |stage: &toml::Spanned<Stage>| stage.get_ref().chain.is_some();
        let Some(first) = keys.rules.first() else {
            if let Some(default) = &keys.default {
                let reason = "default: for the packets that no [[classifier]] matches, of which there is none";
                return Err((default.span().start, reason.to_string()));
            }
            return match functions.iter().find(|stage| names(stage)) {
                None => Ok(None),
                Some(stage) => Err((
                    stage.span().start,
                    "chain: for chains that a [[classifier]] selects, of which there is none"
                        .to_string(),
                )),
            };
        };
        let Some(default) = keys.default else {
            let reason = "the key `default` is missing: \"drop\", \"forward\" or a chain, for all other packets";
            return Err((first.span().start, reason.to_string()));
        };
        let mut chains: Vec<String> = Vec::new();
        for stage in functions {
            let wrong = |reason: String| Err((stage.span().start, reason));
            match &stage.get_ref().chain {
                None => {
                    return wrong(
                        "the key `chain` is missing: with a [[classifier]] each function belongs to a chain"
                            .to_string(),
                    );
                }
                Some(chain) if NO_CHAIN.contains(&chain.as_str()) => {
                    return wrong(format!(
                        "chain = \"{chain}\": this name means no chain; choose another"
                    ));
                }
                Some(chain) if chains.contains(chain) => {}
                Some(chain) => chains.push(chain.clone()),
            }
        }
        let mut rules = Vec::new();
        for (number, rule) in keys.rules.into_iter().enumerate() {
            let at = rule.span().start;
            let mut rule = rule.into_inner();
            let checked = number_ports(&mut rule, port_names).and_then(|()| {
                let alone = Classifier::new(vec![rule.clone()], NO_CHAIN[0], &chains, ports);
                // The number of the rule is removed from the error, because the position in the file identifies the
                // rule.
                alone.map_err(|e| e.0.trim_start_matches("classifier 1: ").to_string())
            });
            if let Err(reason) = checked {
                let place = place_in(text, "classifier", number, &reason);
                return Err((place.unwrap_or(at), reason));
            }
            rules.push(rule);
        }
        let at = default.span().start;
        let made = Self::new(rules, default.into_inner(), chains, ports);
        made.map(Some).map_err(|reason| (at, reason))
    }

    fn new(
        rules: Vec<toml::Table>,
        default: String,
        chains: Vec<String>,
        ports: usize,
    ) -> Result<Self, String> {
        let classifier = Classifier::new(rules.clone(), &default, &chains, ports);
        Ok(Self {
            classifier: Arc::new(classifier.map_err(|e| e.0)?),
            rules,
            default,
            chains,
        })
    }

    /// Checks that the placement of the chain supports a classifier.
    pub(super) fn check(placement: Placement) -> Result<(), String> {
        match placement {
            Placement::Compact => Ok(()),
            _ => Err(
                "[[classifier]]: only with placement = \"compact\": give each chain a file and ports of its own"
                    .to_string(),
            ),
        }
    }

    /// Returns the classifier in the form of the kernel's programs, for a chain with `ports` ports.
    ///
    /// # Errors
    /// No rule can select the chain of one of the functions.
    pub(crate) fn in_kernel(
        &self,
        functions: &[Stage],
        ports: usize,
    ) -> Result<KernelClassifier, ChainError> {
        let class = |stage: &Stage| {
            let class = class_of(stage, &self.chains);
            class.map(|it| it as u8).ok_or_else(|| unknown_chain(stage))
        };
        let classes = functions.iter().map(class).collect::<Result<_, _>>()?;
        Ok(self.classifier.in_kernel(classes, ports))
    }
}

/// Returns the class of a function: the index of its chain among `chains`; none if it belongs to none of them.
pub(crate) fn class_of(stage: &Stage, chains: &[String]) -> Option<usize> {
    let chain = stage.chain.as_ref()?;
    chains.iter().position(|known| known == chain)
}

/// Returns the error about a function that belongs to no chain of the classifier.
pub(crate) fn unknown_chain(stage: &Stage) -> ChainError {
    ChainError::Function {
        function: stage.name.clone(),
        reason: "its chain is none of those that the classifier selects".to_string(),
    }
}

/// Replaces the names of ports in a rule by their numbers.
fn number_ports(rule: &mut toml::Table, names: &[String]) -> Result<(), String> {
    if let Some(given) = rule.get("port") {
        let numbered = numbered_ports("port", given, names)?;
        rule.insert("port".to_string(), numbered);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use crate::Chain;
    use taut_functions::FUNCTIONS;

    fn read(text: &str) -> Result<Chain, String> {
        Chain::parse(text, "x.toml", FUNCTIONS).map_err(|e| e.to_string())
    }

    const FUNCTION: &str = "[[function]]\nchain = \"voice\"\nname = \"forward\"\n";

    #[test]
    fn a_chain_file_has_rules_a_default_and_several_chains() {
        let chain = read(&format!(
            "ports = {{ lan = \"null:\", wan = \"null:\" }}\ndefault = \"bulk\"\n\
             [[classifier]]\nchain = \"voice\"\nport = \"wan\"\ndscp = \"ef\"\n{FUNCTION}\
             [[function]]\nchain = \"bulk\"\nname = \"xor\"\nkey = 7\n{FUNCTION}"
        ))
        .unwrap();
        let classes = chain.classification.unwrap();
        assert_eq!(classes.chains, ["voice", "bulk"]);
        assert_eq!(classes.default, "bulk");
        assert_eq!(classes.rules[0]["port"].as_integer(), Some(1));
        assert_eq!(classes.classifier.classes(), 4);
    }

    #[test]
    fn errors_of_a_classifier_name_line_and_column() {
        let head = "ports = [\"null:\", \"null:\"]\n";
        for (text, part) in [
            (
                format!("default = \"drop\"\n{head}"),
                "x.toml:1:11: default: ",
            ),
            (format!("{head}{FUNCTION}"), "x.toml:2:1: chain: "),
            (
                format!("{head}[[classifier]]\nchain = \"voice\"\n{FUNCTION}"),
                "x.toml:2:1: the key `default` is missing",
            ),
            (
                format!("{head}default = \"drop\"\n[[classifier]]\nchain = \"vioce\"\n{FUNCTION}"),
                "x.toml:4:9: chain = \"vioce\": expected voice, forward, drop; did you mean `voice`?",
            ),
            (
                format!(
                    "{head}default = \"drop\"\n[[classifier]]\nchain = \"voice\"\ndscp = 99\n{FUNCTION}"
                ),
                "x.toml:5:8: dscp = 99",
            ),
            (
                format!(
                    "{head}default = \"drop\"\n[[classifier]]\nchain = \"voice\"\nport = \"lan\"\n{FUNCTION}"
                ),
                "the ports of this chain have no names",
            ),
            (
                format!(
                    "{head}default = \"drop\"\n[[classifier]]\nchain = \"drop\"\n[[function]]\nname = \"forward\"\n"
                ),
                "x.toml:5:1: the key `chain` is missing",
            ),
            (
                format!("{head}default = \"else\"\n[[classifier]]\nchain = \"voice\"\n{FUNCTION}"),
                "x.toml:2:11: default = \"else\"",
            ),
            (
                format!(
                    "{head}default = \"drop\"\nplacement = \"threads\"\n[[classifier]]\nchain = \"voice\"\n{FUNCTION}"
                ),
                "placement = \"compact\"",
            ),
        ] {
            let message = read(&text).unwrap_err();
            assert!(message.contains(part), "{message}");
            assert!(!message.contains('\n'), "{message}");
        }
    }
}
