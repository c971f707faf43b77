//! The service of a laboratory over HTTP: paths, replies, and their description as OpenAPI. `service.rs` is the only
//! place where a path is written down: the description is made from the same table that finds the handler.

use crate::api::{
    Experiment, ExtendRequest, Node, Problem, Reservation, ReserveRequest, SlurmJob, SubmitRequest,
};
use crate::error::LabError;
use crate::lab::{Asking, Lab, number};
use crate::time::now;
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;
use taut_experiment::publish::write_results;
use taut_live::http::{Answer, EndpointError, Limits, Reply, Request, Server};

/// Maximum length of a request's body, bytes.
pub const MOST_BODY_BYTES: usize = 16 << 20;
/// Number of clients that are served at a time.
const CLIENTS: usize = 16;
/// Time limit for each MiB of a request or reply.
const PATIENCE: Duration = Duration::from_secs(10);

const PAGE: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");
/// The security policy of the service's web page: only its own files and requests to this service.
const POLICY: &str = "Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; \
    connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\n";
const FIELDS: &str = "Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\n";

/// The parts of a request that a handler needs.
struct Call<'a> {
    lab: &'a Arc<Lab>,
    asking: Asking<'a>,
    /// The part of the requested path that corresponds to `{id}` in the route's path.
    id: &'a str,
    body: &'a [u8],
}

type Handler = fn(&Call<'_>) -> Result<Answer, LabError>;
/// A function that adds a type to the definitions of a schema generator, and returns a reference to the type.
type Make = fn(&mut SchemaGenerator) -> Schema;

/// A request that the service supports.
struct Route {
    method: &'static str,
    /// The path of the route, with `{id}` for the part that is different in each request.
    path: &'static str,
    summary: &'static str,
    /// Name of the operation in generated clients.
    operation: &'static str,
    body: Option<Make>,
    /// HTTP status code of a successful reply.
    status: u16,
    reply: Content,
    /// HTTP status codes of the errors that only this route returns.
    errors: &'static [u16],
    handler: Handler,
}

/// The type of the body of a successful reply.
enum Content {
    Json(Make),
    Other(&'static str),
}

fn of<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    generator.subschema_for::<T>()
}

/// All requests that need a token.
static ROUTES: [Route; 13] = [
    Route {
        method: "GET",
        path: "/v1/nodes",
        summary: "The nodes, and who has them now",
        operation: "nodes",
        body: None,
        status: 200,
        reply: Content::Json(of::<Vec<Node>>),
        errors: &[],
        handler: |call| json_of(200, &call.lab.nodes()?),
    },
    Route {
        method: "GET",
        path: "/v1/reservations",
        summary: "The reservations that have not ended",
        operation: "reservations",
        body: None,
        status: 200,
        reply: Content::Json(of::<Vec<Reservation>>),
        errors: &[],
        handler: |call| json_of(200, &call.lab.reservations()?),
    },
    Route {
        method: "POST",
        path: "/v1/reservations",
        summary: "Reserves nodes; refused if somebody has one of them at that time",
        operation: "reserve",
        body: Some(of::<ReserveRequest>),
        status: 201,
        reply: Content::Json(of::<Reservation>),
        errors: &[400, 404, 409, 429],
        handler: |call| json_of(201, &call.lab.reserve(call.asking, &call.json()?)?),
    },
    Route {
        method: "PATCH",
        path: "/v1/reservations/{id}",
        summary: "Changes the end of a reservation",
        operation: "extend",
        body: Some(of::<ExtendRequest>),
        status: 200,
        reply: Content::Json(of::<Reservation>),
        errors: &[400, 403, 404, 409],
        handler: |call| json_of(200, &call.lab.extend(call.asking, call.id, &call.json()?)?),
    },
    Route {
        method: "DELETE",
        path: "/v1/reservations/{id}",
        summary: "Ends a reservation now",
        operation: "release",
        body: None,
        status: 200,
        reply: Content::Json(of::<Reservation>),
        errors: &[403, 404, 409],
        handler: |call| json_of(200, &call.lab.release(call.asking, call.id)?),
    },
    Route {
        method: "GET",
        path: "/v1/experiments",
        summary: "The experiments that wait or run, and the last ones that have ended, in the order of submission",
        operation: "experiments",
        body: None,
        status: 200,
        reply: Content::Json(of::<Vec<Experiment>>),
        errors: &[],
        handler: |call| json_of(200, &call.lab.experiments()?),
    },
    Route {
        method: "POST",
        path: "/v1/experiments",
        summary: "Puts an experiment into the queue",
        operation: "submit",
        body: Some(of::<SubmitRequest>),
        status: 201,
        reply: Content::Json(of::<Experiment>),
        errors: &[400, 403, 404, 413, 429],
        handler: |call| json_of(201, &call.lab.submit(call.asking, &call.json()?)?),
    },
    Route {
        method: "GET",
        path: "/v1/experiments/{id}",
        summary: "An experiment and its progress",
        operation: "experiment",
        body: None,
        status: 200,
        reply: Content::Json(of::<Experiment>),
        errors: &[404],
        handler: |call| json_of(200, &call.lab.experiment(call.number()?)?),
    },
    Route {
        method: "POST",
        path: "/v1/experiments/{id}/cancel",
        summary: "Takes an experiment out of the queue, or ends it; complete runs are kept",
        operation: "cancel",
        body: None,
        status: 200,
        reply: Content::Json(of::<Experiment>),
        errors: &[403, 404, 409],
        handler: |call| json_of(200, &call.lab.cancel(call.asking, call.number()?)?),
    },
    Route {
        method: "POST",
        path: "/v1/experiments/{id}/retry",
        summary: "Puts an experiment that has failed or was cancelled into the queue again, for the missing runs",
        operation: "retry",
        body: None,
        status: 200,
        reply: Content::Json(of::<Experiment>),
        errors: &[403, 404, 409],
        handler: |call| json_of(200, &call.lab.retry(call.asking, call.number()?)?),
    },
    Route {
        method: "GET",
        path: "/v1/experiments/{id}/log",
        summary: "The end of the output of an experiment, up to 64 KiB",
        operation: "log",
        body: None,
        status: 200,
        reply: Content::Other("text/plain; charset=utf-8"),
        errors: &[404],
        handler: log,
    },
    Route {
        method: "GET",
        path: "/v1/experiments/{id}/results.tar.gz",
        summary: "The results folder of an experiment, without runs in progress",
        operation: "results",
        body: None,
        status: 200,
        reply: Content::Other("application/gzip"),
        errors: &[404],
        handler: results,
    },
    Route {
        method: "GET",
        path: "/v1/jobs",
        summary: "All jobs of the cluster that wait or run; empty where Slurm does not have the queue",
        operation: "jobs",
        body: None,
        status: 200,
        reply: Content::Json(of::<Vec<SlurmJob>>),
        errors: &[502],
        handler: |call| json_of(200, &call.lab.jobs()?),
    },
];

impl Call<'_> {
    /// Returns the request's body, parsed as JSON.
    fn json<T: DeserializeOwned>(&self) -> Result<T, LabError> {
        serde_json::from_slice(self.body).map_err(|e| {
            LabError::Request(format!("the body is not the JSON that is expected: {e}"))
        })
    }

    /// Returns the part of the path that corresponds to `{id}` as a number.
    fn number(&self) -> Result<u64, LabError> {
        number(self.id)
    }
}

fn log(call: &Call<'_>) -> Result<Answer, LabError> {
    let id = call.number()?;
    call.lab.experiment(id)?;
    Ok(reply(
        200,
        "text/plain; charset=utf-8",
        call.lab.processes.log(id)?.into_bytes(),
    )
    .into())
}

fn results(call: &Call<'_>) -> Result<Answer, LabError> {
    let id = call.number()?;
    let experiment = call.lab.experiment(id)?;
    let folder = call.lab.processes.results(id);
    if experiment.progress.is_none() {
        return Err(LabError::Missing(format!(
            "experiment {id} has no results yet"
        )));
    }
    let name = format!("{}-{id}", experiment.name);
    let write = move |out: &mut dyn std::io::Write| write_results(out, &folder, &name, now());
    let head = reply(200, "application/gzip", Vec::new());
    Ok(Answer::Stream(head, Box::new(write)))
}

fn json_of(status: u16, value: &impl Serialize) -> Result<Answer, LabError> {
    let text = serde_json::to_vec(value).unwrap_or_default();
    Ok(reply(status, "application/json", text).into())
}

fn reply(status: u16, kind: &'static str, body: Vec<u8>) -> Reply {
    Reply {
        status: line_of(status),
        kind,
        fields: Cow::Borrowed(FIELDS),
        body,
    }
}

/// Returns the status code with its words (RFC 9110, section 15; RFC 6585; RFC 4918).
fn line_of(status: u16) -> &'static str {
    match status {
        200 => "200 OK",
        201 => "201 Created",
        400 => "400 Bad Request",
        401 => "401 Unauthorized",
        403 => "403 Forbidden",
        404 => "404 Not Found",
        405 => "405 Method Not Allowed",
        409 => "409 Conflict",
        411 => "411 Length Required",
        413 => "413 Content Too Large",
        429 => "429 Too Many Requests",
        502 => "502 Bad Gateway",
        507 => "507 Insufficient Storage",
        _ => "500 Internal Server Error",
    }
}

fn status_of(error: &LabError) -> u16 {
    match error {
        LabError::Token => 401,
        LabError::Request(_) => 400,
        LabError::Forbidden(_) => 403,
        LabError::Missing(_) => 404,
        LabError::Conflict(_) => 409,
        LabError::TooMany(_) => 429,
        LabError::Full { .. } => 507,
        LabError::Slurm(_) => 502,
        LabError::Database { .. } | LabError::Unreadable { .. } | LabError::Io { .. } => 500,
    }
}

fn refusal(status: u16, reason: &str, fields: &str) -> Reply {
    let error: String = reason
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
    let body = serde_json::to_vec(&Problem { error }).unwrap_or_default();
    Reply {
        fields: Cow::Owned(format!("{FIELDS}{fields}")),
        ..reply(status, "application/json", body)
    }
}

/// Returns the reply to a request.
pub(crate) fn answer(lab: &Arc<Lab>, request: &Request<'_>) -> Answer {
    let authorization = request.field("Authorization");
    let has_length = request.field("Transfer-Encoding").is_none();
    match has_length {
        true => answer_to(
            lab,
            request.method,
            request.path,
            authorization,
            request.body,
        ),
        false => refusal(411, "the body needs a Content-Length", "").into(),
    }
}

/// Returns the reply to the request with this method, path, header fields and body.
#[doc(hidden)]
pub fn answer_to(
    lab: &Arc<Lab>,
    method: &str,
    path: &str,
    authorization: Option<&str>,
    body: &[u8],
) -> Answer {
    if matches!(method, "GET" | "HEAD")
        && let Some(reply) = public(path)
    {
        return reply.into();
    }
    let mut routes = ROUTES
        .iter()
        .filter_map(|it| Some((it, open_part(it.path, path)?)));
    let method_of = |method| if method == "HEAD" { "GET" } else { method };
    let found = routes
        .clone()
        .find(|(it, _)| it.method == method_of(method));
    let Some((route, id)) = found else {
        return match routes.next() {
            None => refusal(404, "no such path: see /openapi.json", "").into(),
            Some(_) => {
                let methods: Vec<&str> = routes_of(path).collect();
                let allow = format!("Allow: {}\r\n", methods.join(", "));
                let reason = format!("expected {}", methods.join(" or "));
                refusal(405, &reason, &allow).into()
            }
        };
    };
    let token = authorization.and_then(|it| it.strip_prefix("Bearer "));
    let asking = token
        .ok_or(LabError::Token)
        .and_then(|token| lab.user_of(token.trim()));
    let answered = asking.and_then(|asking| {
        let call = Call {
            lab,
            asking,
            id,
            body,
        };
        (route.handler)(&call)
    });
    answered.unwrap_or_else(|e| {
        let fields = match e {
            LabError::Token => "WWW-Authenticate: Bearer\r\n",
            _ => "",
        };
        refusal(status_of(&e), &e.to_string(), fields).into()
    })
}

fn routes_of(path: &str) -> impl Iterator<Item = &'static str> {
    let fit = ROUTES
        .iter()
        .filter(move |it| open_part(it.path, path).is_some());
    fit.map(|it| it.method)
}

/// Returns the part of `path` that corresponds to `{id}` in the pattern; empty if the pattern has no `{id}`. `None` if
/// the path does not match the pattern.
fn open_part<'a>(pattern: &str, path: &'a str) -> Option<&'a str> {
    let Some((before, after)) = pattern.split_once("{id}") else {
        return (pattern == path).then_some("");
    };
    let id = path.strip_prefix(before)?.strip_suffix(after)?;
    (!id.is_empty() && !id.contains('/')).then_some(id)
}

/// Returns the files that need no token: the web page, which contains no data, and the OpenAPI description.
fn public(path: &str) -> Option<Reply> {
    let (kind, text) = match path {
        "/" => ("text/html; charset=utf-8", Cow::Borrowed(PAGE)),
        "/page.css" => ("text/css; charset=utf-8", Cow::Borrowed(STYLE)),
        "/page.js" => ("text/javascript; charset=utf-8", Cow::Borrowed(SCRIPT)),
        "/openapi.json" => ("application/json", Cow::Owned(openapi().to_string())),
        _ => return None,
    };
    Some(Reply {
        fields: Cow::Owned(format!("{FIELDS}{POLICY}")),
        ..reply(200, kind, text.into_owned().into_bytes())
    })
}

/// Starts the service at the address that the laboratory's file states.
///
/// # Errors
/// The address is invalid or in use.
pub fn serve(lab: &Arc<Lab>) -> Result<Server, EndpointError> {
    let limits = Limits {
        clients: CLIENTS,
        body_bytes: MOST_BODY_BYTES,
        patience: PATIENCE,
        explains: true,
    };
    let own = Arc::clone(lab);
    Server::start_with("lab", &lab.file.listen, limits, move |request| {
        answer(&own, request)
    })
}

/// Returns the OpenAPI 3.1 description of the service.
pub fn openapi() -> Value {
    let settings = SchemaSettings::draft2020_12();
    let settings = settings.with(|it| it.definitions_path = "/components/schemas".into());
    let mut generator = settings.into_generator();
    let problem = of::<Problem>(&mut generator).to_value();
    let problem = json!({
        "description": "Refused; the error says why",
        "content": {"application/json": {"schema": problem}},
    });
    let refused = json!({"$ref": "#/components/responses/Problem"});
    let mut paths = serde_json::Map::new();
    for route in &ROUTES {
        let content = match &route.reply {
            Content::Json(make) => {
                json!({"application/json": {"schema": make(&mut generator).to_value()}})
            }
            Content::Other(kind) => json!({*kind: {}}),
        };
        let words = line_of(route.status).get(4..).unwrap_or_default();
        let mut responses =
            json!({route.status.to_string(): {"description": words, "content": content}});
        for status in route.errors.iter().chain(&[401, 500, 507]) {
            responses[status.to_string()] = refused.clone();
        }
        let mut operation = json!({
            "operationId": route.operation, "summary": route.summary, "responses": responses,
        });
        if let Some(make) = route.body {
            let schema = make(&mut generator).to_value();
            operation["requestBody"] =
                json!({"required": true, "content": {"application/json": {"schema": schema}}});
        }
        if route.path.contains("{id}") {
            operation["parameters"] = json!([{"name": "id", "in": "path", "required": true, "schema": {"type": "string"}}]);
        }
        let methods = paths.entry(route.path).or_insert_with(|| json!({}));
        methods[route.method.to_ascii_lowercase()] = operation;
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "taut lab",
            "version": "1",
            "description": "Calendar, queue and experiments of a laboratory. Times are RFC 3339, UTC.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "responses": {"Problem": problem},
            "schemas": generator.take_definitions(true),
        },
    })
}
