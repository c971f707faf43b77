//! Boot images of nodes: files for the user's network boot server (iPXE, PXELINUX), and the proof that a node has booted
//! its image.
//!
//! The image's identity is in the kernel's command line (`taut.image=`), which a run reads back.

use crate::agent::{Facts, checksum};
use crate::definition::BootDefinition;
use crate::error::ExperimentError;
use crate::experiment::Experiment;
use crate::wants;
use schemars::JsonSchema;
use serde::Serialize;
use sha2::{Digest, Sha256};
use std::fs;
use std::path::{Path, PathBuf};
use taut_results::{hex, write_whole};

/// Number of hexadecimal digits of a checksum that file names and image identities contain.
const DIGITS: usize = 16;

/// The files of a node that were written for its network boot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct BootFiles {
    /// Role of the node.
    pub node: String,
    /// The identity of the node's image in the kernel's command line, such as `taut.image=1a2b3c`.
    pub image: String,
    /// Path of the boot script for iPXE.
    pub ipxe: PathBuf,
    /// Path of the configuration file for PXELINUX.
    pub pxelinux: PathBuf,
}

impl BootDefinition {
    /// Returns a word for the kernel's command line that identifies the image: kernel, initial file systems and
    /// arguments.
    pub(crate) fn mark(&self) -> String {
        let mut digest = Sha256::new();
        for file in std::iter::once(&self.kernel).chain(&self.initrd) {
            digest.update(file.sha256.to_ascii_lowercase());
        }
        digest.update(&self.arguments);
        format!("taut.image={}", &hex(&digest.finalize())[..DIGITS])
    }

    /// Returns the reason why the definition of the image is invalid; `None` if it is valid.
    pub(crate) fn mistake(&self) -> Option<&'static str> {
        let files = || std::iter::once(&self.kernel).chain(&self.initrd);
        let is_hex = |text: &str| text.bytes().all(|digit| digit.is_ascii_hexdigit());
        let parts: Vec<&str> = self.mac.split(':').collect();
        if parts.len() != 6 || !parts.iter().all(|it| it.len() == 2 && is_hex(it)) {
            return Some("`boot.mac` is a MAC address such as 3c:ec:ef:00:00:01");
        }
        if files().any(|file| file.sha256.len() != 64 || !is_hex(&file.sha256)) {
            return Some("`sha256` of a file of `boot` has 64 hexadecimal digits");
        }
        if files().any(|file| name_of(&file.file).is_none()) {
            return Some("names of files of `boot` are made of letters, digits, dots, - and _");
        }
        let is_line = self.arguments.chars().all(|c| !c.is_control());
        (!is_line).then_some("`boot.arguments` is one line")
    }
}

/// Returns the last part of a path if it contains only letters, digits, dots, `-` and `_`, which need no quotes in
/// scripts.
fn name_of(path: &str) -> Option<&str> {
    let name = Path::new(path).file_name()?.to_str()?;
    let is_plain = name
        .chars()
        .all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
    is_plain.then_some(name)
}

/// Refuses a node that has not booted the image of the definition `boot`.
pub(crate) fn check_image(
    name: &str,
    boot: &BootDefinition,
    facts: &Facts,
) -> Result<(), ExperimentError> {
    let mark = boot.mark();
    let line = wants::fact(facts, "kernel_command_line").unwrap_or_default();
    if line.split_whitespace().any(|word| word == mark) {
        return Ok(());
    }
    Err(ExperimentError::node(
        name,
        format!(
            "it has not booted its image: {mark} is not in its /proc/cmdline; `taut experiment boot-files` writes the \
             files for the server that it boots from"
        ),
    ))
}

impl Experiment {
    /// Writes the boot files of all nodes with an image into a folder: kernels and initial file systems under names with
    /// their checksums, `MAC.ipxe` (with `-`) and `pxelinux.cfg/01-MAC`. Every reference is relative to the folder.
    ///
    /// # Errors
    /// No node has an image; a file has another checksum, or cannot be read or written.
    pub fn write_boot_files(&self, into: &Path) -> Result<Vec<BootFiles>, ExperimentError> {
        let mut written = Vec::new();
        for (name, role) in &self.nodes {
            if let Some(boot) = &role.definition.boot {
                written.push(write(name, boot, self.title(), into)?);
            }
        }
        if written.is_empty() {
            return Err(self
                .source
                .wrong_somewhere("no node has an image: [nodes.ROLE] boot"));
        }
        Ok(written)
    }
}

fn write(
    node: &str,
    boot: &BootDefinition,
    title: &str,
    into: &Path,
) -> Result<BootFiles, ExperimentError> {
    let configurations = into.join("pxelinux.cfg");
    fs::create_dir_all(&configurations).map_err(ExperimentError::io(&configurations))?;
    let mut names = Vec::new();
    for file in std::iter::once(&boot.kernel).chain(&boot.initrd) {
        names.push(copy(node, &file.file, &file.sha256, into)?);
    }
    let mark = boot.mark();
    let (kernel, initrd) = names.split_at(1);
    let kernel = kernel.concat();
    let arguments = format!("{} {mark}", boot.arguments.trim());
    let mac = boot.mac.to_lowercase().replace(':', "-");
    // A kernel that is an EFI program finds its initial file systems by name.
    let in_efi: String = initrd
        .iter()
        .map(|name| format!(" initrd={name}"))
        .collect();
    let loaded: String = initrd
        .iter()
        .map(|name| format!("initrd {name}\n"))
        .collect();
    let about = format!("# Node {node} of: {}", title.replace(char::is_control, " "));
    let script = format!("#!ipxe\n{about}\nkernel {kernel}{in_efi} {arguments}\n{loaded}boot\n");
    let append = match initrd.is_empty() {
        true => arguments.clone(),
        false => format!("initrd={} {arguments}", initrd.join(",")),
    };
    let menu = format!("{about}\nDEFAULT taut\nLABEL taut\n  KERNEL {kernel}\n  APPEND {append}\n");
    let ipxe = into.join(format!("{mac}.ipxe"));
    let pxelinux = configurations.join(format!("01-{mac}"));
    write_whole(&ipxe, script.as_bytes())?;
    write_whole(&pxelinux, menu.as_bytes())?;
    Ok(BootFiles {
        node: node.to_owned(),
        image: mark,
        ipxe,
        pxelinux,
    })
}

/// Copies a file of an image into the folder, unless the folder has it already, and returns the copy's name.
fn copy(node: &str, file: &str, sha256: &str, into: &Path) -> Result<String, ExperimentError> {
    let sum = |path: &Path| checksum(path).map_err(ExperimentError::io(path));
    let expected = sha256.to_ascii_lowercase();
    let name = format!(
        "{}-{}",
        &expected[..DIGITS],
        name_of(file).unwrap_or("file")
    );
    let target = into.join(&name);
    if target.is_file() && sum(&target)? == expected {
        return Ok(name);
    }
    let partial = into.join(format!(".{name}.{}", std::process::id()));
    fs::copy(file, &partial).map_err(ExperimentError::io(file))?;
    let found = sum(&partial)?;
    if found != expected {
        let _ = fs::remove_file(&partial);
        return Err(ExperimentError::node(
            node,
            format!("{file} has the SHA-256 {found}, not {expected}"),
        ));
    }
    fs::rename(&partial, &target).map_err(ExperimentError::io(&target))?;
    Ok(name)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::Changes;

    fn experiment(folder: &Path, initrd: &str) -> Result<Experiment, ExperimentError> {
        let text = format!(
            "title = 't'\n[nodes.dut]\nat = 'ssh://root@dut'\n[nodes.dut.boot]\nmac = '3C:EC:EF:00:00:01'\n\
             arguments = 'boot=live'\nkernel = {{ file = '{0}/vmlinuz', sha256 = '{1}' }}\n\
             initrd = [{{ file = '{0}/initrd.img', sha256 = '{initrd}' }}]\n[[step]]\nrun = 'true'\n",
            folder.display(),
            sum("kernel"),
        );
        Experiment::parse(&text, "e.toml", folder, &Changes::default())
    }

    fn sum(text: &str) -> String {
        hex(&Sha256::digest(text))
    }

    #[test]
    fn boot_files_name_the_image_that_a_run_expects() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("vmlinuz"), "kernel").unwrap();
        fs::write(folder.path().join("initrd.img"), "initrd").unwrap();
        let experiment = experiment(folder.path(), &sum("initrd")).unwrap();
        let into = folder.path().join("tftp");
        let written = experiment.write_boot_files(&into).unwrap();
        assert_eq!(experiment.write_boot_files(&into).unwrap(), written);
        let script = fs::read_to_string(into.join("3c-ec-ef-00-00-01.ipxe")).unwrap();
        let kernel = format!("{}-vmlinuz", &sum("kernel")[..16]);
        let initrd = format!("{}-initrd.img", &sum("initrd")[..16]);
        let image = &written[0].image;
        let expected = format!(
            "#!ipxe\n# Node dut of: t\nkernel {kernel} initrd={initrd} boot=live {image}\ninitrd {initrd}\nboot\n"
        );
        assert_eq!(script, expected);
        let menu = fs::read_to_string(&written[0].pxelinux).unwrap();
        assert!(menu.contains(&format!("APPEND initrd={initrd} boot=live {image}")));
        assert_eq!(fs::read_to_string(into.join(kernel)).unwrap(), "kernel");

        let boot = experiment.nodes["dut"].definition.boot.as_ref().unwrap();
        let mut facts = crate::agent::facts();
        facts.machine = serde_json::json!({ "kernel_command_line": format!("quiet {image}") });
        assert!(check_image("dut", boot, &facts).is_ok());
        facts.machine = serde_json::json!({ "kernel_command_line": "quiet taut.image=0" });
        let refused = check_image("dut", boot, &facts).unwrap_err().to_string();
        assert!(
            refused.starts_with("node dut: it has not booted its image"),
            "{refused}"
        );
    }

    #[test]
    fn a_boot_file_with_another_checksum_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("vmlinuz"), "kernel").unwrap();
        fs::write(folder.path().join("initrd.img"), "other").unwrap();
        let experiment = experiment(folder.path(), &sum("initrd")).unwrap();
        let into = folder.path().join("tftp");
        let refused = experiment.write_boot_files(&into).unwrap_err().to_string();
        assert!(refused.contains("initrd.img has the SHA-256"), "{refused}");
        assert_eq!(fs::read_dir(&into).unwrap().count(), 2);
        assert!(self::experiment(folder.path(), "12").is_err());
    }
}
