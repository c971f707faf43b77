//! Power interfaces of machines: IPMI by ipmitool, Redfish by curl, and outlets of power distribution units by SNMP.
//!
//! Passwords and communities come from environment variables of this process; they are in no file and no command line.

use super::exchange::{exchange, read_all};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::process::Command;
use std::time::Duration;

/// Timeout for a reply of a power interface.
const ANSWER: Duration = Duration::from_secs(60);
/// Maximum number of firmware settings that are read.
const MOST_SETTINGS: usize = 4096;

/// Address of a machine's power interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Power {
    /// A management controller that speaks IPMI 2.0 over the network.
    Ipmi(Account),
    /// A management controller with a Redfish service (DMTF DSP0266).
    Redfish {
        account: Account,
        /// True to connect without TLS, to a simulator.
        is_plain: bool,
        /// True if the TLS certificate of the service is not checked.
        is_insecure: bool,
        /// Path of the Redfish resource of the computer system; `None` for the only system of the service.
        system: Option<String>,
    },
    /// An outlet that an SNMP agent (version 2c) controls.
    Outlet {
        /// Name of the environment variable that contains the SNMP community.
        community: String,
        host: String,
        /// SNMP object that switches the outlet.
        object: String,
        /// Value of the SNMP object that switches the outlet off and on again.
        value: i64,
    },
}

/// User, password and address for the login at a management controller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Account {
    user: String,
    /// Name of the environment variable that contains the password.
    variable: String,
    host: String,
    port: Option<u16>,
}

impl Power {
    /// Parses `ipmi://USER:$VARIABLE@HOST:PORT`, `redfish://USER:$VARIABLE@HOST/PATH` or `snmp://$VARIABLE@HOST/OBJECT=VALUE`;
    /// `None` if the text is a command.
    ///
    /// # Errors
    /// The address is incomplete or has a password.
    pub(crate) fn parse(text: &str) -> Result<Option<Self>, String> {
        let Some((scheme, rest)) = text.split_once("://") else {
            return Ok(None);
        };
        let (rest, is_insecure) = match rest.strip_suffix("?insecure") {
            Some(rest) => (rest, true),
            None => (rest, false),
        };
        let (place, path) = match rest.split_once('/') {
            Some((place, path)) => (place, Some(path).filter(|path| !path.is_empty())),
            None => (rest, None),
        };
        let power = match scheme {
            "ipmi" if path.is_none() && !is_insecure => Account::parse(place).map(Self::Ipmi),
            "redfish" | "redfish+http" => Account::parse(place).map(|account| Self::Redfish {
                account,
                is_plain: scheme == "redfish+http",
                is_insecure,
                system: path.map(|path| format!("/{path}")),
            }),
            "snmp" if !is_insecure => outlet(place, path.unwrap_or_default()),
            "ipmi" | "snmp" => None,
            // A command may have an address as its first word.
            _ => return Ok(None),
        };
        power.map(Some).ok_or_else(|| {
            format!(
                "`{text}` is not a power interface: ipmi://USER:$VARIABLE@HOST, redfish://USER:$VARIABLE@HOST/PATH or \
                 snmp://$VARIABLE@HOST/OBJECT=VALUE, where the environment variable holds the password or community"
            )
        })
    }

    /// Switches the machine off and on again, or on if it is off.
    ///
    /// # Errors
    /// The reason why the power interface has not switched the machine.
    pub(crate) fn cycle(&self) -> Result<(), String> {
        match self {
            Self::Ipmi(account) => {
                let said = account.ipmi(&["chassis", "power", "status"])?;
                let what = if said.trim().ends_with("off") {
                    "on"
                } else {
                    "cycle"
                };
                account.ipmi(&["chassis", "power", what]).map(drop)
            }
            Self::Redfish { .. } => self.redfish_reset(),
            Self::Outlet { object, value, .. } => self
                .snmp("snmpset", &[object, "i", &value.to_string()])
                .map(drop),
        }
    }

    /// Queries the power state of the machine from the power interface; the state does not change.
    ///
    /// # Errors
    /// The power interface does not reply.
    pub(crate) fn status(&self) -> Result<String, String> {
        match self {
            Self::Ipmi(account) => {
                let said = account.ipmi(&["chassis", "power", "status"])?;
                Ok(said.trim().to_owned())
            }
            Self::Redfish { .. } => {
                let (_, system) = self.system()?;
                let state = system["PowerState"].as_str().unwrap_or("unknown");
                Ok(format!("power is {}", state.to_lowercase()))
            }
            Self::Outlet { object, .. } => {
                let said = self.snmp("snmpget", &["-Oqv", object])?;
                Ok(format!("outlet is {}", said.trim()))
            }
        }
    }

    /// Returns the settings of the machine's firmware that the power interface states, by name; none if it states none.
    ///
    /// # Errors
    /// The power interface does not reply.
    pub(crate) fn firmware(&self) -> Result<BTreeMap<String, String>, String> {
        let Self::Redfish { .. } = self else {
            return Ok(BTreeMap::new());
        };
        let (_, system) = self.system()?;
        let mut found = BTreeMap::new();
        if let Some(version) = system["BiosVersion"].as_str() {
            found.insert("redfish.bios_version".to_owned(), version.to_owned());
        }
        if let Some(path) = system["Bios"]["@odata.id"].as_str() {
            let bios = self.redfish(path, None)?;
            let attributes = bios["Attributes"].as_object().into_iter().flatten();
            for (name, value) in attributes.take(MOST_SETTINGS) {
                let value = value
                    .as_str()
                    .map_or_else(|| value.to_string(), ToOwned::to_owned);
                found.insert(format!("bios.{name}"), value);
            }
        }
        Ok(found)
    }

    fn redfish_reset(&self) -> Result<(), String> {
        let (path, system) = self.system()?;
        let action = &system["Actions"]["#ComputerSystem.Reset"];
        let target = action["target"].as_str().map_or_else(
            || format!("{path}/Actions/ComputerSystem.Reset"),
            ToOwned::to_owned,
        );
        let allowed = action["ResetType@Redfish.AllowableValues"].as_array();
        let is_allowed =
            |kind: &&str| allowed.is_none_or(|all| all.iter().any(|it| it.as_str() == Some(*kind)));
        let wanted: &[&str] = match system["PowerState"].as_str() {
            Some("Off") => &["On", "ForceOn"],
            _ => &["PowerCycle", "ForceRestart"],
        };
        let kind = wanted
            .iter()
            .copied()
            .find(is_allowed)
            .ok_or_else(|| format!("{target} offers neither {}", wanted.join(" nor ")))?;
        self.redfish(&target, Some(&json!({ "ResetType": kind })))
            .map(drop)
    }

    /// Returns path and contents of the Redfish resource of the computer system.
    fn system(&self) -> Result<(String, Value), String> {
        let path = match self {
            Self::Redfish {
                system: Some(path), ..
            } => path.clone(),
            _ => {
                let all = self.redfish("/redfish/v1/Systems", None)?;
                match all["Members"].as_array().map(Vec::as_slice) {
                    Some([only]) => only["@odata.id"].as_str().unwrap_or_default().to_owned(),
                    _ => {
                        return Err("the Redfish service has several systems: append the path of one, such as \
                                    /redfish/v1/Systems/1"
                            .to_owned());
                    }
                }
            }
        };
        let system = self.redfish(&path, None)?;
        Ok((path, system))
    }

    /// Reads a Redfish resource, or posts `body` to it.
    fn redfish(&self, path: &str, body: Option<&Value>) -> Result<Value, String> {
        let Self::Redfish {
            account,
            is_plain,
            is_insecure,
            ..
        } = self
        else {
            return Err("not a Redfish service".to_owned());
        };
        let scheme = if *is_plain { "http" } else { "https" };
        let port = account
            .port
            .map_or_else(String::new, |port| format!(":{port}"));
        let url = format!("{scheme}://{}{port}{path}", account.host);
        let password = account.password()?;
        let mut settings = String::new();
        for (name, value) in [
            ("url", url.as_str()),
            ("user", &format!("{}:{password}", account.user)),
            ("header", "Content-Type: application/json"),
        ]
        .into_iter()
        .chain(body.map(|_| ("request", "POST")))
        {
            settings += &format!("{name} = {}\n", in_quotes(value));
        }
        if let Some(body) = body {
            settings += &format!("data = {}\n", in_quotes(&body.to_string()));
        }
        if *is_insecure {
            settings += "insecure\n";
        }
        let mut command = Command::new("curl");
        command.args([
            "--silent",
            "--show-error",
            "--fail",
            "--max-time",
            "50",
            "--config",
            "-",
        ]);
        let said = ask(command, settings, "curl", "curl")?;
        match said.trim().is_empty() || body.is_some() {
            true => Ok(Value::Null),
            false => serde_json::from_str(&said).map_err(|e| format!("{url}: not JSON: {e}")),
        }
    }

    fn snmp(&self, program: &str, words: &[&str]) -> Result<String, String> {
        let Self::Outlet {
            community, host, ..
        } = self
        else {
            return Err("not an outlet".to_owned());
        };
        // The community is in a file that only this user can read, not in the command line.
        let folder = taut_host::private::scratch().map_err(|e| e.to_string())?;
        let text = format!("defVersion 2c\ndefCommunity {}\n", value_of(community)?);
        std::fs::write(folder.path().join("snmp.conf"), text).map_err(|e| e.to_string())?;
        let mut command = Command::new(program);
        // Objects are numbers: files with their names are not read.
        command.env("SNMPCONFPATH", folder.path()).env("MIBS", "");
        let (options, words) =
            words.split_at(words.iter().take_while(|it| it.starts_with('-')).count());
        command.args(options).arg(host).args(words);
        ask(command, String::new(), program, "snmp")
    }
}

impl Account {
    fn parse(place: &str) -> Option<Self> {
        let (login, host) = place.rsplit_once('@')?;
        let (user, variable) = login.split_once(":$")?;
        let (host, port) = match host.rsplit_once(':') {
            Some((host, port)) => (host, Some(port.parse().ok()?)),
            None => (host, None),
        };
        (is_word(user) && is_variable(variable) && is_word(host)).then(|| Self {
            user: user.to_owned(),
            variable: variable.to_owned(),
            host: host.to_owned(),
            port,
        })
    }

    fn password(&self) -> Result<String, String> {
        value_of(&self.variable)
    }

    fn ipmi(&self, words: &[&str]) -> Result<String, String> {
        let mut command = Command::new("ipmitool");
        command.args(["-I", "lanplus", "-H", &self.host, "-U", &self.user, "-E"]);
        command.args(
            self.port
                .iter()
                .flat_map(|port| ["-p".to_owned(), port.to_string()]),
        );
        command.args(words).env("IPMI_PASSWORD", self.password()?);
        ask(command, String::new(), "ipmitool", "ipmitool")
    }
}

/// Parses the parts of `snmp://$VARIABLE@HOST/OBJECT=VALUE`.
fn outlet(place: &str, path: &str) -> Option<Power> {
    let (variable, host) = place.strip_prefix('$')?.split_once('@')?;
    let (object, value) = path.split_once('=')?;
    let is_object = object
        .bytes()
        .all(|it| it.is_ascii_alphanumeric() || b".:-".contains(&it));
    let is_good = is_variable(variable) && is_word(host) && is_object && is_word(object);
    is_good.then_some(Power::Outlet {
        community: variable.to_owned(),
        host: host.to_owned(),
        object: object.to_owned(),
        value: value.parse().ok()?,
    })
}

/// Returns true if a text can be the name of a host or a user, and not an option of a program.
fn is_word(text: &str) -> bool {
    !text.is_empty()
        && !text.starts_with('-')
        && text
            .chars()
            .all(|it| it.is_ascii_graphic() && !"\"'`$\\/".contains(it))
}

fn is_variable(text: &str) -> bool {
    !text.is_empty()
        && text
            .bytes()
            .all(|it| it.is_ascii_alphanumeric() || it == b'_')
}

fn value_of(variable: &str) -> Result<String, String> {
    let value = std::env::var(variable).unwrap_or_default();
    match value.is_empty() || value.contains(['\n', '\r']) {
        true => Err(format!(
            "${variable} is not set in the environment, or is no single line"
        )),
        false => Ok(value),
    }
}

/// Returns a value with the quotes and escapes of a configuration file of curl.
fn in_quotes(value: &str) -> String {
    format!("\"{}\"", value.replace('\\', "\\\\").replace('"', "\\\""))
}

/// Runs a program with the given input, and returns its output; `package` is Debian's package that contains the
/// program.
fn ask(command: Command, input: String, program: &str, package: &str) -> Result<String, String> {
    if !taut_host::is_installed(program) {
        return Err(format!("needs `{program}`: apt-get install {package}"));
    }
    let send = move |mut stdin: std::process::ChildStdin| -> io::Result<()> {
        stdin.write_all(input.as_bytes())
    };
    let said = exchange(command, send, read_all, ANSWER, None)?;
    Ok(String::from_utf8_lossy(&said).into_owned())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn power_interfaces_and_commands_are_distinguished() {
        let of = |text: &str| Power::parse(text).unwrap().unwrap();
        let account = |port| Account {
            user: "lab".into(),
            variable: "BMC".into(),
            host: "bmc2".into(),
            port,
        };
        assert_eq!(of("ipmi://lab:$BMC@bmc2"), Power::Ipmi(account(None)));
        let redfish = Power::Redfish {
            account: account(Some(8443)),
            is_plain: false,
            is_insecure: true,
            system: Some("/redfish/v1/Systems/1".into()),
        };
        let text = "redfish://lab:$BMC@bmc2:8443/redfish/v1/Systems/1?insecure";
        assert_eq!(of(text), redfish);
        let outlet = Power::Outlet {
            community: "PDU".into(),
            host: "pdu1".into(),
            object: ".1.3.6.1.4.1.318.1.1.12.3.3.1.1.4.7".into(),
            value: 3,
        };
        assert_eq!(
            of("snmp://$PDU@pdu1/.1.3.6.1.4.1.318.1.1.12.3.3.1.1.4.7=3"),
            outlet
        );
        for command in [
            "ipmitool -H bmc2 chassis power cycle",
            "true",
            "curl http://x/y",
        ] {
            assert_eq!(Power::parse(command), Ok(None));
        }
    }

    #[test]
    fn addresses_with_a_password_or_an_option_are_refused() {
        for wrong in [
            "ipmi://lab:secret@bmc2",
            "ipmi://bmc2",
            "ipmi://lab:$BMC@-x",
            "ipmi://-U:$BMC@bmc2",
            "ipmi://lab:$BMC@bmc2/x",
            "redfish://lab:$BMC@bmc2:99999",
            "snmp://private@pdu/.1=3",
            "snmp://$PDU@pdu/.1",
            "snmp://$PDU@pdu/.1;x=3",
        ] {
            let refused = Power::parse(wrong).unwrap_err();
            assert!(refused.contains("not a power interface"), "{wrong}");
        }
    }

    #[test]
    fn a_missing_password_is_named() {
        let power = Power::parse("ipmi://lab:$TAUT_NO_SUCH@bmc2")
            .unwrap()
            .unwrap();
        let refused = power.cycle().unwrap_err();
        assert!(refused.starts_with("$TAUT_NO_SUCH is not set"), "{refused}");
    }

    /// Variable that cargo sets for tests, whose value is the password of simulators.
    const PASSWORD: &str = "CARGO_PKG_NAME";

    /// Serves the resources of a Redfish service, as DSP0266 shows them, until `requests` have been answered. Returns the
    /// port, and a thread that returns the requests.
    fn redfish(requests: usize) -> (u16, std::thread::JoinHandle<Vec<String>>) {
        use std::io::{BufRead, BufReader, Read};
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let serve = move || {
            let mut asked = Vec::new();
            for stream in listener.incoming().take(requests) {
                let mut stream = stream.unwrap();
                let mut from = BufReader::new(stream.try_clone().unwrap());
                let mut head = String::new();
                while !head.ends_with("\r\n\r\n") {
                    from.read_line(&mut head).unwrap();
                }
                let head = head.to_lowercase();
                let length = head.split("content-length: ").nth(1);
                let length = length.map_or(0, |it| it.lines().next().unwrap().parse().unwrap());
                let mut body = vec![0; length];
                from.read_exact(&mut body).unwrap();
                let line = head.lines().next().unwrap().replace(" http/1.1", "");
                let login = head.contains("authorization: basic");
                let body = String::from_utf8(body).unwrap();
                let reply = match line.rsplit('/').next().unwrap() {
                    _ if !login => json!({}),
                    "systems" => json!({ "Members": [{ "@odata.id": "/redfish/v1/Systems/1" }] }),
                    "bios" => json!({ "Attributes": { "LogicalProc": "Disabled", "Cores": 8 } }),
                    _ => json!({
                        "PowerState": "On",
                        "BiosVersion": "2.1",
                        "Bios": { "@odata.id": "/redfish/v1/Systems/1/Bios" },
                        "Actions": { "#ComputerSystem.Reset": {
                            "target": "/redfish/v1/Systems/1/Actions/ComputerSystem.Reset",
                            "ResetType@Redfish.AllowableValues": ["On", "ForceRestart"],
                        } },
                    }),
                };
                asked.push(format!("{line} {body}").trim().to_owned());
                let reply = reply.to_string();
                let length = reply.len();
                write!(stream, "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{reply}").unwrap();
            }
            asked
        };
        (port, std::thread::spawn(serve))
    }

    #[test]
    fn a_redfish_service_restarts_the_machine_and_states_its_firmware() {
        if !taut_host::is_installed("curl") || std::env::var(PASSWORD).is_err() {
            println!("skipped: needs curl (package curl)");
            return;
        }
        let (port, asked) = redfish(6);
        let address = format!("redfish+http://lab:${PASSWORD}@127.0.0.1:{port}");
        let power = Power::parse(&address).unwrap().unwrap();
        power.cycle().unwrap();
        let firmware = power.firmware().unwrap();
        assert_eq!(firmware["bios.LogicalProc"], "Disabled");
        assert_eq!(firmware["bios.Cores"], "8");
        assert_eq!(firmware["redfish.bios_version"], "2.1");
        let expected = [
            "get /redfish/v1/systems",
            "get /redfish/v1/systems/1",
            "post /redfish/v1/systems/1/actions/computersystem.reset {\"ResetType\":\"ForceRestart\"}",
            "get /redfish/v1/systems",
            "get /redfish/v1/systems/1",
            "get /redfish/v1/systems/1/bios",
        ];
        assert_eq!(asked.join().unwrap(), expected);
    }

    /// A simulator of a power interface; its process is killed when the value is dropped.
    struct Simulator(std::process::Child);

    impl Simulator {
        /// Starts a simulator of a power interface, and waits until it has opened the UDP port.
        fn start(program: &str, words: &[&str], port: u16) -> Self {
            let mut command = Command::new(program);
            let quiet = || std::process::Stdio::null();
            command
                .args(words)
                .stdin(quiet())
                .stdout(quiet())
                .stderr(quiet());
            let simulator = Self(command.spawn().unwrap());
            let deadline = std::time::Instant::now() + ANSWER;
            while std::net::UdpSocket::bind(("127.0.0.1", port)).is_ok() {
                assert!(
                    std::time::Instant::now() < deadline,
                    "{program} does not start"
                );
                std::thread::sleep(Duration::from_millis(10));
            }
            simulator
        }
    }

    impl Drop for Simulator {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    /// Returns a free UDP port.
    fn free_port() -> u16 {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.local_addr().unwrap().port()
    }

    /// Returns the password of the simulators if the given programs are installed; `None` otherwise.
    fn password(programs: &[&str], packages: &str) -> Option<String> {
        let are_there = programs
            .iter()
            .all(|program| taut_host::is_installed(program));
        let password = std::env::var(PASSWORD).ok().filter(|_| are_there);
        if password.is_none() {
            println!(
                "skipped: needs {} (packages {packages})",
                programs.join(" and ")
            );
        }
        password
    }

    #[test]
    fn a_management_controller_cycles_power_by_ipmi() {
        let programs = ["ipmi_sim", "ipmitool"];
        let Some(password) = password(&programs, "openipmi and ipmitool") else {
            return;
        };
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name).display().to_string();
        let port = free_port();
        let auth = "none md2 md5 straight";
        let chassis = format!(
            "#!/bin/sh\ncase $1 in\nget) echo power:$(cat {0});;\nset) echo $3 >{0}; echo $3 >>{0}.log;;\nesac\n",
            path("power")
        );
        let lan = format!(
            "name \"bmc\"\nset_working_mc 0x20\nstartlan 1\naddr 127.0.0.1 {port}\npriv_limit admin\n\
             allowed_auths_admin {auth}\nallowed_auths_user {auth}\nallowed_auths_operator {auth}\n\
             allowed_auths_callback {auth}\nguid a123456789abcdefa123456789abcdef\nendlan\n\
             chassis_control \"sh {}\"\nuser 2 true \"lab\" \"{password}\" admin 10 {auth}\n",
            path("chassis")
        );
        let machine = "mc_setbmc 0x20\nmc_add 0x20 0 no-device-sdrs 0x23 9 8 0x9f 0x1291 0xf02 persist_sdr\n\
                       mc_enable 0x20\n";
        let files: [(&str, &str); 4] = [
            ("chassis", &chassis),
            ("lan", &lan),
            ("machine", machine),
            ("power", "1\n"),
        ];
        for (name, text) in files {
            std::fs::write(path(name), text).unwrap();
        }
        let words = [
            "-c",
            &path("lan"),
            "-f",
            &path("machine"),
            "-s",
            &path(""),
            "-n",
        ];
        let _simulator = Simulator::start("ipmi_sim", &words, port);
        let address = format!("ipmi://lab:${PASSWORD}@127.0.0.1:{port}");
        let power = Power::parse(&address).unwrap().unwrap();
        // ipmitool first asks for ciphers, which this simulator does not answer: 10 s for each request.
        power.cycle().unwrap();
        let log = std::fs::read_to_string(path("power.log")).unwrap();
        assert!(log.starts_with("0\n"), "{log:?}");
    }

    #[test]
    fn an_outlet_is_set_by_snmp() {
        let Some(password) = password(&["snmpd", "snmpset"], "snmpd and snmp") else {
            return;
        };
        let folder = tempfile::tempdir().unwrap();
        let (port, object) = (free_port(), ".1.3.6.1.4.1.318.1.1.12.3.3.1.1.4.7");
        let file = folder.path().join("snmpd.conf").display().to_string();
        let text = format!("rwcommunity {password} 127.0.0.1\noverride -rw {object} integer 1\n");
        std::fs::write(&file, text).unwrap();
        let listen = format!("udp:127.0.0.1:{port}");
        let _agent = Simulator::start("snmpd", &["-f", "-Lo", "-C", "-c", &file, &listen], port);
        let address = format!("snmp://${PASSWORD}@127.0.0.1:{port}/{object}=3");
        let power = Power::parse(&address).unwrap().unwrap();
        assert_eq!(power.status().unwrap(), "outlet is 1");
        power.cycle().unwrap();
        assert_eq!(power.status().unwrap(), "outlet is 3");
    }
}
