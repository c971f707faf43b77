//! `taut chain manifest`: text files with which Kubernetes or OpenStack runs a chain on other machines.

use crate::exit::Failure;
use crate::terminal::print;
use clap::Subcommand;
use std::io::Write;
use std::path::{Path, PathBuf};
use taut_deploy::manifest::{self, Document, KubernetesOptions};
use taut_engine::Chain;
use taut_functions::FUNCTIONS;

#[derive(clap::Args)]
#[command(after_help = "Examples:
  taut chain manifest kubernetes chain.toml --image registry.example/taut:1 | kubectl apply -f -
  taut chain manifest openstack chain.toml --out heat
  openstack stack create -t heat/chain.yaml --parameter image=taut chain

Each function becomes a pod, or a server, with two interfaces, west and east; the `ports` of the file are not used.")]
pub struct Arguments {
    #[command(subcommand)]
    system: System,
}

#[derive(Subcommand)]
enum System {
    /// A deployment of one pod for each function, networks by Multus
    Kubernetes {
        #[command(flatten)]
        what: What,
        /// Kubernetes: container image with taut on its search path
        #[arg(long, default_value = "taut:latest", value_parser = image)]
        image: String,
        /// Kubernetes: whole CPUs of each pod, one for its worker, the others for all other threads
        #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..))]
        cpus: u32,
        /// Kubernetes: memory of each pod, MiB, at least 64
        #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u32).range(64..))]
        memory: u32,
        /// Kubernetes: huge pages of 2 MiB of each pod, MiB; 0 for none
        #[arg(long, default_value_t = 64)]
        huge_pages: u32,
    },
    /// A Heat template with one server for each function
    Openstack {
        #[command(flatten)]
        what: What,
    },
}

#[derive(clap::Args)]
struct What {
    /// Chain file (TOML)
    chain: PathBuf,
    /// Write a file for each object into this folder (default: all objects to standard output)
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
}

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    match &arguments.system {
        System::Kubernetes {
            what,
            image,
            cpus,
            memory,
            huge_pages,
        } => {
            if huge_pages % 2 == 1 {
                return Err(Failure::Input(format!(
                    "--huge-pages {huge_pages}: expected an even number, because a page has 2 MiB"
                )));
            }
            let options = KubernetesOptions {
                image: image.clone(),
                cpus: *cpus,
                memory_mib: *memory,
                huge_pages_mib: *huge_pages,
            };
            let (chain, name) = load(&what.chain)?;
            write(&manifest::kubernetes(&chain, &name, &options)?, what)
        }
        System::Openstack { what } => {
            let (chain, name) = load(&what.chain)?;
            write(&[manifest::openstack(&chain, &name)?], what)
        }
    }
}

fn image(text: &str) -> Result<String, String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-/:@".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        Ok(text.to_owned())
    } else {
        Err("expected the name of an image, such as registry.example/taut:latest".to_owned())
    }
}

/// Loads a chain file; returns the chain with its name, which is by default the file's name without the extension.
fn load(path: &Path) -> Result<(Chain, String), Failure> {
    let chain = Chain::load(path, FUNCTIONS)?;
    let of_file = || {
        path.file_stem()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned()
    };
    let name = chain.name.clone().unwrap_or_else(of_file);
    Ok((chain, name))
}

fn write(documents: &[Document], what: &What) -> Result<(), Failure> {
    let texts: Vec<String> = documents
        .iter()
        .map(Document::text)
        .collect::<Result<_, _>>()?;
    let Some(folder) = &what.out else {
        print::line(texts.join("---\n").trim_end());
        return Ok(());
    };
    let cannot = |path: &Path, e: std::io::Error| {
        Failure::Input(format!("--out: cannot write {}: {e}", path.display()))
    };
    std::fs::create_dir_all(folder).map_err(|e| cannot(folder, e))?;
    for (document, text) in documents.iter().zip(texts) {
        let path = folder.join(&document.name);
        std::fs::File::create_new(&path)
            .and_then(|mut file| file.write_all(text.as_bytes()))
            .map_err(|e| match e.kind() {
                std::io::ErrorKind::AlreadyExists => Failure::Input(format!(
                    "--out: {} already exists: name another folder",
                    path.display()
                )),
                _ => cannot(&path, e),
            })?;
        print::note(path.display());
    }
    Ok(())
}
