//! The receiver of attacks: kernel sockets and HTTP servers, and the bytes that they received, by the sender's port.

use super::attacks::{FORBIDDEN, Target};
use crate::support::hosts::{Namespace, in_namespace};
use crate::support::is_installed;
use crate::support::program::Program;
use rustix::net::sockopt::{set_socket_linger, set_socket_oobinline};
use rustix::net::{self, AddressFamily, SocketFlags, SocketType, socket_with};
use std::collections::HashMap;
use std::fs;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Beginnings of log lines about broken or incomplete requests, which no server has acted on.
const NEVER_WHOLE: [&str; 3] = ["400 ", "408 ", "499 "];

/// A socket that accepts connections and stores the bytes that `read` returns.
struct Collector {
    listener: TcpListener,
    is_urgent_inline: bool,
    open: Vec<(u16, TcpStream)>,
}

impl Collector {
    /// Opens the socket in the namespace that the thread is in.
    fn new(target: Target) -> Self {
        let listener = TcpListener::bind(("::", target.port())).unwrap();
        listener.set_nonblocking(true).unwrap();
        Self {
            listener,
            is_urgent_inline: target == Target::UrgentInline,
            open: Vec::new(),
        }
    }

    /// Reads all available bytes.
    fn poll(&mut self, got: &mut HashMap<u16, Vec<u8>>) {
        while let Ok((stream, peer)) = self.listener.accept() {
            stream.set_nonblocking(true).unwrap();
            set_socket_oobinline(&stream, self.is_urgent_inline).unwrap();
            // A separator divides the bytes of connections between the same ports.
            got.entry(peer.port()).or_default().push(0);
            self.open.push((peer.port(), stream));
        }
        read_all(&mut self.open, got);
    }
}

/// Reads the available bytes of each connection and removes those that have ended.
fn read_all(open: &mut Vec<(u16, TcpStream)>, got: &mut HashMap<u16, Vec<u8>>) {
    open.retain_mut(|(port, stream)| {
        let mut bytes = [0; 4096];
        loop {
            match stream.read(&mut bytes) {
                Ok(0) => return false,
                Ok(length) => got.entry(*port).or_default().extend(&bytes[..length]),
                Err(error) => return is_to_come(error),
            }
        }
    });
}

/// Reports whether the error means that there is no data yet, or no connection.
fn is_to_come(error: io::Error) -> bool {
    use io::ErrorKind::{NotConnected, WouldBlock};
    matches!(error.kind(), NotConnected | WouldBlock)
}

/// Closes all connections immediately by resets, so that the kernel stores no state about them.
fn close(open: &mut Vec<(u16, TcpStream)>) {
    for (_, stream) in open.drain(..) {
        let _ = set_socket_linger(&stream, Some(Duration::ZERO));
    }
}

/// Starts to open a connection of the receiver's client to `to`.
fn connect(to: SocketAddr) -> TcpStream {
    let family = if to.is_ipv6() {
        AddressFamily::INET6
    } else {
        AddressFamily::INET
    };
    let socket = socket_with(
        family,
        SocketType::STREAM,
        SocketFlags::NONBLOCK | SocketFlags::CLOEXEC,
        None,
    )
    .unwrap();
    // The connection is in progress.
    let _ = net::connect(&socket, &to);
    TcpStream::from(socket)
}

/// An HTTP server, which logs a line about each request.
struct Server {
    program: Program,
    /// The log file; `None` for standard output.
    log: Option<PathBuf>,
    /// Number of bytes of the log that were already read.
    read: usize,
}

/// All programs that are attacked.
pub struct Receiver {
    collectors: [Collector; 2],
    /// Connections of clients, by the port they connect to.
    clients: Vec<(u16, TcpStream)>,
    /// The client connections on which a request still has to be sent.
    asking: Vec<TcpStream>,
    servers: Vec<Server>,
    missing: Vec<Target>,
    /// The sender's ports in use.
    ports: Range<u16>,
    got: HashMap<u16, Vec<u8>>,
    late: Vec<String>,
}

impl Receiver {
    /// Starts servers in `namespace`, which the calling thread is in as well, with their files in `folder`. Prints and
    /// skips servers that are not installed.
    pub fn start(namespace: &Namespace, folder: &Path) -> Self {
        let mut servers = Vec::new();
        let mut missing = Vec::new();
        let all = [
            (Target::Nginx, "nginx", "nginx-light"),
            (Target::Apache, "apache2", "apache2-bin"),
            (Target::Python, "python3", "python3"),
            (Target::Node, "node", "nodejs"),
        ];
        for (target, program, package) in all {
            if is_installed(program) {
                servers.push(start(target, namespace, folder));
            } else {
                println!("skipped: attacks on {target:?}: needs {program} (package {package})");
                missing.push(target);
            }
        }
        let collectors = [Target::Socket, Target::UrgentInline].map(Collector::new);
        Self {
            collectors,
            clients: Vec::new(),
            asking: Vec::new(),
            servers,
            missing,
            ports: 0..0,
            got: HashMap::new(),
            late: Vec::new(),
        }
    }

    /// Reports whether the target is available.
    pub fn has(&self, target: Target) -> bool {
        !self.missing.contains(&target)
    }

    /// Reads the bytes of sockets.
    pub fn poll_sockets(&mut self) {
        for collector in &mut self.collectors {
            collector.poll(&mut self.got);
        }
        const REQUEST: &[u8] = b"GET /page HTTP/1.1\r\nHost: sender\r\n\r\n";
        self.asking
            .retain_mut(|client| client.write(REQUEST).is_err_and(is_to_come));
        read_all(&mut self.clients, &mut self.got);
    }

    /// Connects clients to the given addresses, from the namespace that the thread is in; some request a page.
    pub fn connect(&mut self, servers: impl Iterator<Item = (SocketAddr, bool)>) {
        for (server, asks) in servers {
            // The separator is the same as for accepted connections.
            self.got.insert(server.port(), vec![0]);
            let client = connect(server);
            if asks {
                self.asking.push(client.try_clone().unwrap());
            }
            self.clients.push((server.port(), client));
        }
    }

    /// Reads the logs of servers.
    pub fn poll_servers(&mut self) {
        for server in &mut self.servers {
            assert!(
                server.program.is_running(),
                "a server has ended, so that attacks on it tell nothing: {}",
                server.program.stderr()
            );
            let text = match &server.log {
                Some(log) => fs::read_to_string(log).unwrap_or_default(),
                None => server.program.stdout(),
            };
            // The last line may be incomplete.
            let whole = text.rfind('\n').map_or(0, |at| at + 1);
            for line in text[server.read.min(whole)..whole].lines() {
                let (port, said) = line.split_once(' ').unwrap_or_default();
                if NEVER_WHOLE.iter().any(|status| said.starts_with(status)) {
                    continue;
                }
                match port.parse() {
                    Ok(port) if self.ports.contains(&port) => {
                        self.got.entry(port).or_default().extend(said.as_bytes());
                    }
                    Ok(_) if FORBIDDEN.iter().any(|it| said.contains(it)) => {
                        self.late.push(line.to_string());
                    }
                    _ => {}
                }
            }
            server.read = whole;
        }
    }

    /// Returns the bytes received by the connection from the given port.
    pub fn got(&self, port: u16) -> &[u8] {
        self.got.get(&port).map_or(&[], Vec::as_slice)
    }

    /// Returns the forbidden bytes that servers logged after the time limit for them.
    pub fn late(&self) -> &[String] {
        &self.late
    }

    /// Closes all connections and discards their bytes, before connections from the given ports of the sender begin.
    pub fn begin(&mut self, ports: Range<u16>) {
        for collector in &mut self.collectors {
            close(&mut collector.open);
        }
        self.asking.clear();
        close(&mut self.clients);
        self.poll_servers();
        self.got.clear();
        self.ports = ports;
    }
}

fn start(target: Target, namespace: &Namespace, folder: &Path) -> Server {
    let port = target.port().to_string();
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/evasion");
    let own = folder.display();
    let (file, log) = (
        folder.join(format!("{target:?}.conf")),
        folder.join(format!("{target:?}.log")),
    );
    let mut command;
    match target {
        Target::Nginx => {
            fs::write(&file, nginx(&port, &own.to_string())).unwrap();
            command = in_namespace(&namespace.0, "nginx");
            command
                .arg("-p")
                .arg(folder)
                .arg("-e")
                .arg(folder.join("nginx.errors"))
                .arg("-c")
                .arg(&file);
        }
        Target::Apache => {
            fs::write(&file, apache(&port, &own.to_string())).unwrap();
            command = in_namespace(&namespace.0, "apache2");
            command.args(["-X", "-f"]).arg(&file);
        }
        Target::Python => {
            command = in_namespace(&namespace.0, "python3");
            command.arg("-u").arg(data.join("server.py")).arg(&port);
        }
        _ => {
            command = in_namespace(&namespace.0, "node");
            command.arg(data.join("server.js")).arg(&port);
        }
    }
    let mut program = Program::start(&mut command);
    let has_log = matches!(target, Target::Nginx | Target::Apache);
    program.wait_for_listener(target.port());
    Server {
        program,
        log: has_log.then_some(log),
        read: 0,
    }
}

/// Returns the configuration of an nginx that passes requests to another server. Only then does nginx read request
/// bodies.
fn nginx(port: &str, folder: &str) -> String {
    let paths: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|it| format!("{it}_temp_path {folder}/{it};\n"))
        .concat();
    format!(
        "daemon off;\nmaster_process off;\npid {folder}/nginx.pid;\n\
         events {{ worker_connections 4096; }}\nhttp {{\n{paths}\
         log_format handed '$remote_port $status $uri $request_body';\naccess_log {folder}/Nginx.log handed;\n\
         client_header_timeout 1s;\nclient_body_timeout 1s;\nkeepalive_timeout 1s;\nlingering_close off;\n\
         server {{\nlisten [::]:{port} ipv6only=off backlog=1024 fastopen=64;\n\
         location / {{ proxy_pass http://unix:{folder}/behind.sock:; }}\n}}\n\
         server {{\nlisten unix:{folder}/behind.sock;\naccess_log off;\nreturn 200 ok;\n}}\n}}\n"
    )
}

fn apache(port: &str, folder: &str) -> String {
    let modules: String = [
        ("mpm_event", "mpm_event"),
        ("authz_core", "authz_core"),
        ("reqtimeout", "reqtimeout"),
    ]
    .map(|(name, file)| {
        format!("LoadModule {name}_module /usr/lib/apache2/modules/mod_{file}.so\n")
    })
    .concat();
    format!(
        "{modules}ServerRoot {folder}\nDocumentRoot {folder}\nPidFile {folder}/apache.pid\nDefaultRuntimeDir {folder}\n\
         ServerName receiver\nUser nobody\nGroup nogroup\nListen {port}\nListenBacklog 1024\nTimeout 1\nKeepAliveTimeout 1\n\
         ThreadsPerChild 200\nThreadLimit 200\nMaxRequestWorkers 200\nStartServers 1\nServerLimit 1\nMaxSpareThreads 200\n\
         ErrorLog {folder}/apache.errors\nLogFormat \"%{{remote}}p %>s %U\" handed\nCustomLog {folder}/Apache.log handed\n"
    )
}
