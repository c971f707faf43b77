//! The roles of an experiment with their nodes, and the links between the nodes, as the file defines them.

use crate::clock::{ClockMethod, ClockOrder};
use crate::definition::{ClockDefinition, Definition, Link, NodeDefinition, ResetBefore};
use crate::duration::time;
use crate::error::{ExperimentError, Source};
use crate::node::Power;
use crate::node::address::NodeAddress;
use crate::variables::{Templates, Values, scalar};
use indexmap::IndexMap;
use std::time::Duration;
use taut_settings::suggestion;
use toml::Spanned;

/// A role of the experiment: the address and the settings of the node in this role.
#[derive(Debug, Clone)]
pub(crate) struct Role {
    pub(crate) address: NodeAddress,
    pub(crate) definition: NodeDefinition,
    pub(crate) variables: Values,
    pub(crate) boot_limit: Duration,
    /// Request to the node to synchronise its clock; `None` to leave the clock as it is.
    pub(crate) clock: Option<ClockOrder>,
    /// Network cards of a virtual machine, one for each end of a link, in the order of the file.
    pub(crate) cables: Vec<VmCable>,
}

/// The end of a link at a virtual machine: one of its network cards.
#[derive(Debug, Clone)]
pub(crate) struct VmCable {
    pub(crate) interface: String,
    /// Index of the link in the experiment file, and of the end in the link.
    pub(crate) link: usize,
    pub(crate) end: usize,
}

pub(crate) fn roles(
    definition: &Definition,
    source: &Source,
) -> Result<IndexMap<String, Role>, ExperimentError> {
    let mut roles = IndexMap::new();
    let alone = IndexMap::from([("local".to_owned(), NodeDefinition::default())]);
    let nodes = if definition.nodes.is_empty() {
        &alone
    } else {
        &definition.nodes
    };
    for (role, node) in nodes {
        roles.insert(role.clone(), role_of(source, role, node)?);
    }
    for (role, node) in nodes {
        if let Some(clock) = &node.clock {
            let order = clock_of(source, role, clock, &roles)?;
            if let Some(role) = roles.get_mut(role) {
                role.clock = Some(order);
            }
        }
    }
    let of_slurm = |role: &Role| role.address == NodeAddress::Slurm;
    if roles.values().any(of_slurm) && !roles.values().all(of_slurm) {
        return Err(source.wrong_somewhere(
            "nodes: either all of them are at `slurm` or none, since runs are made where Slurm starts them",
        ));
    }
    for link in &definition.link {
        for end in &link.between {
            check_end(source, end, &roles)?;
        }
    }
    check_cables(definition, source, &roles)?;
    connect_machines(definition, source, &mut roles)?;
    Ok(roles)
}

/// Returns the request to a node to synchronise its clock; `None` if the file defines none.
fn clock_of(
    source: &Source,
    name: &str,
    clock: &ClockDefinition,
    roles: &IndexMap<String, Role>,
) -> Result<ClockOrder, ExperimentError> {
    let wrong =
        |reason: &str| Err(source.wrong_somewhere(format!("clock of node `{name}`: {reason}")));
    let text = |it: &Option<Spanned<String>>| it.as_ref().map(|it| it.get_ref().clone());
    let is_word = |it: &String| {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "._-:%".contains(c);
        !it.is_empty() && !it.starts_with('-') && it.len() <= 255 && it.chars().all(is_plain)
    };
    let (mut address, interface) = (text(&clock.address), text(&clock.interface));
    if !address.iter().chain(&interface).all(is_word) {
        return wrong("`address` is that of a host, and `interface` the name of an interface");
    }
    if let Some(reference) = &clock.reference {
        let Some(role) = roles.get(reference.get_ref()) else {
            return Err(source.wrong(reference.span(), "unknown node"));
        };
        let other = role.definition.clock.as_ref();
        if other.is_none_or(|it| it.reference.is_some() || it.by != clock.by) {
            return Err(source.wrong(
                reference.span(),
                "the reference node needs a `clock` with the same `by`, and no `reference`",
            ));
        }
        let here = roles.get(name).map(|it| &it.address);
        if role.address == NodeAddress::Local && here == Some(&NodeAddress::Local) && clock.adjust {
            return wrong("it is on the same machine as its reference, so set `adjust = false`");
        }
        if let (None, NodeAddress::Ssh(at)) = (&address, &role.address) {
            let host = at.destination.rsplit('@').next();
            address = host.map(ToOwned::to_owned).filter(is_word);
        }
    }
    let is_reference = clock.reference.is_none();
    match clock.by {
        ClockMethod::Chrony if interface.is_some() || clock.hardware => {
            return wrong("`interface` and `hardware` are for `ptp`");
        }
        ClockMethod::Chrony if !is_reference && address.is_none() => {
            return wrong("name the `address` at which it reaches its reference");
        }
        ClockMethod::Chrony if is_reference && address.is_some() => {
            return wrong("`address` is for nodes with a `reference`");
        }
        ClockMethod::Ptp if interface.as_ref().is_none_or(|it| it.len() > 15) => {
            return wrong("name the `interface` to the other nodes, of at most 15 letters");
        }
        _ => {}
    }
    Ok(ClockOrder {
        method: clock.by,
        address: address.filter(|_| clock.by == ClockMethod::Chrony),
        interface,
        is_reference,
        adjust: clock.adjust,
        hardware: clock.hardware,
        bound_s: time(source, "clock.bound", &clock.bound)?.as_secs_f64(),
        within_s: time(source, "clock.within", &clock.within)?.as_secs_f64(),
    })
}

/// Adds the ends of links to the roles of the virtual machines that they belong to.
fn connect_machines(
    definition: &Definition,
    source: &Source,
    roles: &mut IndexMap<String, Role>,
) -> Result<(), ExperimentError> {
    let is_vm = |roles: &IndexMap<String, Role>, name: &str| {
        roles
            .get(name)
            .is_some_and(|it| it.address == NodeAddress::Vm)
    };
    for (number, link) in definition.link.iter().enumerate() {
        for (end, text) in link.between.iter().enumerate() {
            let (name, interface) = end_of(source, text)?;
            let (other, _) = end_of(source, &link.between[1 - end])?;
            if !is_vm(roles, name) {
                continue;
            }
            if !is_vm(roles, other) || link.cable {
                return Err(source.wrong(
                    text.span(),
                    "a link of a virtual machine is made by the experiment and leads to another one",
                ));
            }
            let Some(role) = roles.get_mut(name) else {
                continue;
            };
            if role.cables.iter().any(|it| it.interface == interface) {
                return Err(source.wrong(
                    text.span(),
                    format!("interface {interface} of node `{name}` has another link"),
                ));
            }
            role.cables.push(VmCable {
                interface: interface.to_owned(),
                link: number,
                end,
            });
        }
    }
    Ok(())
}

/// Returns the role that a node's definition describes.
fn role_of(source: &Source, role: &str, node: &NodeDefinition) -> Result<Role, ExperimentError> {
    let address = match &node.at {
        None => NodeAddress::Local,
        Some(at) => {
            NodeAddress::parse(at.get_ref()).map_err(|reason| source.wrong(at.span(), reason))?
        }
    };
    check_address(source, role, &address, node)?;
    let mut variables = Values::new();
    for (name, value) in &node.variables {
        variables.insert(name.clone(), scalar(source, value)?);
    }
    let spans = node
        .variables
        .iter()
        .map(|(name, value)| (name.clone(), value.span()))
        .collect();
    let variables = Templates::new().resolve(source, &variables, &spans)?;
    let boot_limit = time(
        source,
        "boot_limit",
        node.boot_limit.as_deref().unwrap_or("300s"),
    )?;
    Ok(Role {
        address,
        definition: node.clone(),
        variables,
        boot_limit,
        clock: None,
        cables: Vec::new(),
    })
}

/// Checks that one end of a link is an interface of a node that is known before the run.
fn check_end(
    source: &Source,
    end: &Spanned<String>,
    roles: &IndexMap<String, Role>,
) -> Result<(), ExperimentError> {
    let (role, _) = end_of(source, end)?;
    match roles.get(role) {
        Some(role) if role.address == NodeAddress::Slurm => Err(source.wrong(
            end.span(),
            "the links of machines that Slurm allocates are not known in advance",
        )),
        Some(_) => Ok(()),
        None => Err(source.wrong(
            end.span(),
            format!(
                "unknown node `{role}`{}",
                suggestion(role, roles.keys().map(String::as_str))
            ),
        )),
    }
}

/// Refuses a local node that has both a cable and a link that taut makes: such a node is a namespace, which has no real
/// interface.
fn check_cables(
    definition: &Definition,
    source: &Source,
    roles: &IndexMap<String, Role>,
) -> Result<(), ExperimentError> {
    let (cables, made): (Vec<&Link>, Vec<&Link>) = definition
        .link
        .iter()
        .partition(|link| is_cable(link, roles));
    for end in cables.iter().flat_map(|link| &link.between) {
        let (role, _) = end_of(source, end)?;
        if roles
            .get(role)
            .is_some_and(|it| it.address == NodeAddress::Local)
            && !made.is_empty()
        {
            return Err(source.wrong(
                end.span(),
                "a local node with a made link is a namespace without real interfaces: all links of this machine are cables, or none",
            ));
        }
    }
    Ok(())
}

/// Returns true if a link is a real cable, which is tested and not made.
pub(crate) fn is_cable(link: &Link, roles: &IndexMap<String, Role>) -> bool {
    let is_elsewhere = |end: &Spanned<String>| {
        let role = end
            .get_ref()
            .split_once(':')
            .and_then(|(role, _)| roles.get(role));
        role.is_some_and(|role| role.address != NodeAddress::Local)
    };
    link.cable || link.between.iter().any(is_elsewhere)
}

/// Checks that the settings of a node are valid for the kind of its address.
fn check_address(
    source: &Source,
    role: &str,
    address: &NodeAddress,
    node: &NodeDefinition,
) -> Result<(), ExperimentError> {
    let wrong = |reason: &str| Err(source.wrong_somewhere(format!("node `{role}`: {reason}")));
    match node.reset.as_deref() {
        Some("boot") if *address != NodeAddress::Vm => {
            return wrong("`reset = \"boot\"` is for nodes at `vm`");
        }
        Some(reset) => match Power::parse(reset) {
            Err(reason) => return wrong(&reason),
            Ok(Some(_)) if *address == NodeAddress::Local => {
                return wrong("`reset` by a power interface is for nodes at `ssh://`");
            }
            Ok(_) => {}
        },
        None if node.reset_before != ResetBefore::EachRun => {
            return wrong("`reset_before` is for nodes with `reset`");
        }
        None => {}
    }
    if let Some(boot) = &node.boot {
        if !matches!(address, NodeAddress::Ssh(_)) {
            return wrong("`boot` is for nodes at `ssh://`");
        }
        if let Some(mistake) = boot.mistake() {
            return wrong(mistake);
        }
    }
    if let Some(vm) = &node.vm {
        match (&vm.image, &vm.sha256) {
            _ if *address != NodeAddress::Vm => return wrong("`vm` is for nodes at `vm`"),
            (Some(_), None) => {
                return wrong("`vm.image` needs `vm.sha256`, which sha256sum prints");
            }
            (None, Some(_)) => return wrong("`vm.sha256` is for `vm.image`"),
            (Some(_), Some(sum)) if !is_sha256(sum) => {
                return wrong("`vm.sha256` has 64 hexadecimal digits");
            }
            _ => {}
        }
    }
    let reason = match address {
        NodeAddress::Vm if node.reset.as_deref().is_some_and(|reset| reset != "boot") => {
            "`reset` of a node at `vm` is `boot`: a new machine"
        }
        NodeAddress::Slurm if node.reset.is_some() => {
            "`reset` is not for nodes at `slurm`: let its features choose what Slurm boots"
        }
        NodeAddress::Slurm if node.boot_limit.is_some() => {
            "`boot_limit` is not for nodes at `slurm`: its ResumeTimeout says it"
        }
        NodeAddress::Slurm => return Ok(()),
        _ if node.features.is_some() => "`features` are for nodes at `slurm`",
        NodeAddress::Local if node.boot_limit.is_some() => {
            "`boot_limit` is for nodes at `ssh://` or `vm`"
        }
        _ => return Ok(()),
    };
    wrong(reason)
}

/// Returns true if a text is a SHA-256 in hexadecimal digits.
fn is_sha256(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|digit| digit.is_ascii_hexdigit())
}

/// Returns the role and the interface in the text of one end of a link, `node:interface`.
pub(crate) fn end_of<'a>(
    source: &Source,
    end: &'a Spanned<String>,
) -> Result<(&'a str, &'a str), ExperimentError> {
    end.get_ref()
        .split_once(':')
        .filter(|(role, interface)| {
            !role.is_empty() && !interface.is_empty() && interface.len() <= 15
        })
        .ok_or_else(|| {
            source.wrong(
                end.span(),
                "the end of a link is node:interface, the interface of at most 15 letters",
            )
        })
}
