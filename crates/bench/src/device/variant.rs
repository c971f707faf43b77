//! Options of `taut forward` after the name of a device, for studies: `memif,flush=full(32, 100us),burst=64`.
//!
//! ```text
//! devices = device *("," device)
//! device  = name *("," option)
//! name    = an id of `taut demo --list-devices` | memif | af_packet | af_xdp | xdp
//! option  = flush=POLICY | wait=POLICY | burst=N | function=NAME(KEY=VALUE, ...) | chain=FILE
//! ```

use super::{Device, DeviceKind};
use std::path::Path;
use taut_engine::{Chain, DEFAULT_BURST, Flush, MOST_BURST, NOT_IN_KERNEL, Stage, Wait};
use taut_functions::FUNCTIONS;

/// Names of devices that are `taut forward`, one for each transport, with its default flush policy; `xdp` runs in the
/// kernel.
const BASES: [&str; 4] = ["memif", "af_packet", "af_xdp", "xdp"];

/// Splits a list into the words of each device: its name, then its options. Commas in parentheses do not separate.
pub(super) fn split(text: &str) -> Result<Vec<Vec<String>>, String> {
    let mut depth = 0_i32;
    let words = text.split(|c: char| {
        depth += i32::from(c == '(') - i32::from(c == ')');
        c == ',' && depth == 0
    });
    let mut devices: Vec<Vec<String>> = Vec::new();
    for word in words.map(str::trim).filter(|word| !word.is_empty()) {
        let is_option = word.contains('=');
        match devices.last_mut() {
            Some(device) if is_option => device.push(word.to_string()),
            None if is_option => {
                return Err(format!(
                    "{word}: expected a device before its options, such as memif,{word}"
                ));
            }
            _ => devices.push(vec![word.to_string()]),
        }
    }
    Ok(devices)
}

/// Returns the device with the given name, without options.
fn named(name: &str, list: &[Device]) -> Result<Device, String> {
    Ok(match name {
        "memif" => Device::new(
            name,
            DeviceKind::Memif {
                flush: Flush::default(),
            },
        ),
        "af_packet" => Device::new(
            name,
            DeviceKind::AfPacket {
                flush: Flush::default(),
            },
        ),
        "af_xdp" => Device::new(
            name,
            DeviceKind::AfXdp {
                flush: Flush::default(),
            },
        ),
        "xdp" => Device::new(name, DeviceKind::Kernel),
        id => match list.iter().find(|device| device.id == id) {
            Some(device) => device.clone(),
            None => return Err(unknown(id, list)),
        },
    })
}

/// Returns the device that `words` describe: the name of a device, then options. `list` contains all devices with an
/// id. The error is a message for the user.
pub(super) fn parse(words: &[String], list: &[Device]) -> Result<Device, String> {
    let Some((name, options)) = words.split_first() else {
        return Err("no device named".to_string());
    };
    let base = named(name, list)?;
    if options.is_empty() {
        return Ok(base);
    }
    let id = id_of(words);
    let wrong = |reason: String| format!("device {}: {reason}", words.join(","));
    let mut given = Given::default();
    for option in options {
        given.take(option).map_err(&wrong)?;
    }
    if base.routes && (given.chain.is_some() || !given.functions.is_empty()) {
        return Err(wrong(format!(
            "{name} has a chain of its own: put functions and chains after {}",
            BASES.join(", ")
        )));
    }
    let chain_flush = given.chain.as_ref().map(|(_, chain)| chain.flush);
    let flush = |usual: Flush| given.flush.or(chain_flush).unwrap_or(usual);
    let kind = match base.kind {
        DeviceKind::Memif { flush: usual } => DeviceKind::Memif {
            flush: flush(usual),
        },
        DeviceKind::AfPacket { flush: usual } => DeviceKind::AfPacket {
            flush: flush(usual),
        },
        DeviceKind::AfXdp { flush: usual } => DeviceKind::AfXdp {
            flush: flush(usual),
        },
        DeviceKind::Kernel if given.is_for_kernel() => DeviceKind::Kernel,
        DeviceKind::Kernel => return Err(wrong(NOT_IN_KERNEL.to_string())),
        _ => {
            return Err(wrong(format!(
                "options apply to taut forward, which {name} is not: put them after {}",
                BASES.join(", ")
            )));
        }
    };
    let device = Device::new(&id, kind);
    let device = if base.routes { device.router() } else { device };
    Ok(device.with_more(spec_of(words), given.words()))
}

/// Returns a folder name: the words as written, without spaces and slashes.
fn id_of(words: &[String]) -> String {
    let written = words.join(",");
    let plain = written.chars().filter(|c| !c.is_whitespace());
    plain.map(|c| if c == '/' { '_' } else { c }).collect()
}

/// Joins the words with commas. The path of a chain file becomes absolute, so that the result is valid in every working
/// directory.
fn spec_of(words: &[String]) -> String {
    let anywhere = |word: &String| {
        let file = word.strip_prefix("chain=").map(str::trim);
        let path = file.and_then(|file| std::path::absolute(file).ok());
        path.map_or(word.clone(), |path| format!("chain={}", path.display()))
    };
    words.iter().map(anywhere).collect::<Vec<_>>().join(",")
}

fn unknown(id: &str, list: &[Device]) -> String {
    let names = list.iter().map(|device| device.id.as_str()).chain(BASES);
    let alike = names
        .map(|name| (strsim::jaro_winkler(id, name), name))
        .filter(|(likeness, _)| *likeness > 0.8)
        .max_by(|a, b| a.0.total_cmp(&b.0));
    let hint = alike.map_or(String::new(), |(_, name)| format!(", did you mean {name}?"));
    format!("unknown device `{id}`{hint}; taut demo --list-devices lists the devices")
}

/// The parsed options of `taut forward` after a device's name.
#[derive(Default)]
struct Given {
    flush: Option<Flush>,
    wait: Option<Wait>,
    burst: Option<usize>,
    functions: Vec<String>,
    chain: Option<(String, Chain)>,
}

impl Given {
    fn take(&mut self, option: &str) -> Result<(), String> {
        let (key, value) = option.split_once('=').unwrap_or((option, ""));
        let (key, value) = (key.trim(), value.trim());
        let twice = match key {
            "flush" => self
                .flush
                .replace(value.parse().map_err(|e| format!("{e}"))?)
                .is_some(),
            "wait" => {
                let wait: Wait = value.parse().map_err(|e| format!("{e}"))?;
                self.wait.replace(wait).is_some()
            }
            "burst" => {
                let burst = value.parse().ok().filter(|n| (1..=MOST_BURST).contains(n));
                let burst = burst
                    .ok_or_else(|| format!("burst={value}: expected 1 to {MOST_BURST} packets"))?;
                self.burst.replace(burst).is_some()
            }
            "function" => {
                let stage = Stage::parse(value, FUNCTIONS).map_err(|e| format!("{e}"))?;
                stage.check().map_err(|e| e.to_string())?;
                self.functions.push(value.to_string());
                false
            }
            "chain" => {
                let chain = Chain::load(Path::new(value), FUNCTIONS).map_err(|e| e.to_string())?;
                if chain.place == taut_engine::Place::Kernel {
                    return Err(format!(
                        "chain={value}: the device says where the chain runs: leave out place = \"kernel\", and name \
                         the device xdp"
                    ));
                }
                self.chain.replace((value.to_string(), chain)).is_some()
            }
            other => {
                return Err(format!(
                    "no option `{other}`: expected flush=POLICY, wait=POLICY, burst=N, function=NAME(KEY=VALUE, \
                    ...) or chain=FILE"
                ));
            }
        };
        if twice {
            return Err(format!("{key} is given twice"));
        }
        if self.chain.is_some() && !self.functions.is_empty() {
            return Err(
                "give chain or function, not both: the file has functions of its own".to_string(),
            );
        }
        Ok(())
    }

    /// Returns true if the given options are possible for forwarding in the kernel, because none of them needs a
    /// worker.
    fn is_for_kernel(&self) -> bool {
        let chain = self.chain.as_ref().is_none_or(|(_, chain)| {
            let usual = chain.flush == Flush::default() && chain.wait == Wait::default();
            usual && chain.burst == DEFAULT_BURST && chain.core.is_none()
        });
        self.flush.is_none() && self.wait.is_none() && self.burst.is_none() && chain
    }

    /// Returns the options of `taut forward` other than ports, flush policy and core.
    fn words(self) -> Vec<String> {
        let mut words: Vec<String> = self.chain.into_iter().map(|(file, _)| file).collect();
        for function in self.functions {
            words.extend(["--function".to_string(), function]);
        }
        if let Some(wait) = self.wait {
            words.extend(["--wait".to_string(), wait.to_string()]);
        }
        if let Some(burst) = self.burst {
            words.extend(["--burst".to_string(), burst.to_string()]);
        }
        words
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::Choice;
    use super::*;

    fn one(text: &str) -> Device {
        match Choice::parse(text).unwrap() {
            Choice::Named(devices) if devices.len() == 1 => devices[0].clone(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn variant_options_become_arguments_of_taut_forward() {
        let device = one(
            "memif, flush=full(32, 50us), burst=64, function=burn(cycles=100), function=mac-swap",
        );
        let arguments = device
            .arguments(["a", "b"], Some(1), Path::new("f"))
            .unwrap()
            .join(" ");
        assert_eq!(
            arguments,
            "forward --function burn(cycles=100) --function mac-swap --burst 64 --port memif:a,role=client \
             --port memif:b,role=client --flush full(32, 50us) --core 1"
        );
        let info = device.info();
        assert_eq!(info.flush.as_deref(), Some("full(32, 50us)"));
        assert_eq!(info.flush_wait_ns, Some(50_000));
        assert!(info.label.contains("burst 64"), "{}", info.label);
        assert_ne!(info.io, one("memif").info().io);
        assert!(!info.id.contains([' ', '/']), "{}", info.id);
        let device = one("af_packet,wait=sleep(50us)");
        let arguments = device
            .arguments(["a", "b"], None, Path::new("f"))
            .unwrap()
            .join(" ");
        assert!(
            arguments.starts_with("forward --wait sleep(50us) --port"),
            "{arguments}"
        );
        assert!(device.info().label.contains("wait sleep(50us)"));
        let each = one("veth-af-xdp-idle,flush=each");
        assert_eq!(each.flush(), Some(Flush::Each));
        assert_eq!(one("af_packet").flush(), Some(Flush::default()));
    }

    #[test]
    fn a_chain_file_supplies_the_functions_and_flush_policy() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("c.toml");
        let text = "ports = [\"null:\"]\nflush = \"each\"\n[[function]]\nname = \"mac-swap\"\n";
        std::fs::write(&file, text).unwrap();
        let file = file.display();
        let device = one(&format!("memif,chain={file}"));
        assert_eq!(device.flush(), Some(Flush::Each));
        let arguments = device.arguments(["a", "b"], None, Path::new("f")).unwrap();
        assert_eq!(arguments[1], file.to_string());
        let device = one(&format!("memif,chain={file},flush=idle(4)"));
        assert_eq!(device.flush(), Some(Flush::Idle { n: 4 }));
        let flushed = Choice::parse(&format!("xdp,chain={file}")).unwrap_err();
        assert!(flushed.contains("neither flush policy"), "{flushed}");
        let text = "ports = [\"null:\"]\n[[function]]\nname = \"mac-swap\"\n";
        std::fs::write(file.to_string(), text).unwrap();
        let device = one(&format!("xdp,chain={file}"));
        assert_eq!(device.flush(), None);
        let arguments = device
            .arguments(["a", "b"], Some(1), Path::new("f"))
            .unwrap()
            .join(" ");
        assert!(arguments.ends_with("af_xdp:b --in-kernel"), "{arguments}");
        let both = Choice::parse(&format!("memif,chain={file},function=mac-swap"));
        assert!(both.unwrap_err().contains("not both"));
    }

    #[test]
    fn an_invalid_variant_is_rejected_with_a_suggestion() {
        for (text, part) in [
            ("memif-idl", "did you mean memif-idle?"),
            ("afxdp,flush=each", "did you mean af_xdp?"),
            ("memif,flsh=each", "expected flush=POLICY"),
            ("memif,flush=eech", "expected full(N, TIME)"),
            ("memif,flush=full(32, 100us", "expected full(N, TIME)"),
            ("memif,flush=each,flush=each", "given twice"),
            ("memif,wait=nap", "expected poll, yield"),
            ("memif,wait=poll,wait=yield", "given twice"),
            ("memif,burst=0", "expected 1 to 256"),
            ("memif,function=nonsense", "nonsense"),
            ("memif,function=burn(cycle=1)", "cycle"),
            ("memif-route,function=mac-swap", "has a chain of its own"),
            ("memif,chain=/no/such/file.toml", "/no/such/file.toml"),
            (
                "veth-bridge,flush=each",
                "after memif, af_packet, af_xdp, xdp",
            ),
            ("flush=each", "memif,flush=each"),
        ] {
            let error = Choice::parse(text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
