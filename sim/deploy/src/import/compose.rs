//! Docker Compose, and nginx in front of its services.
//!
//! Keys: the Compose specification (docs.docker.com/reference/compose-file); nginx.org `ngx_http_upstream_module`.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use super::draft::{Draft, Origin};
use super::program::{self, Process};
use super::tree::{Tree, sweep};
use crate::keys::Read::{Text, Whole};
use crate::keys::{Table, not_modelled, says};
use crate::place::{Fault, Place, shown};
use crate::report::Fate;
use crate::text::nginx::Directive;
use crate::text::shell::{self, Word};
use crate::text::yaml::Node;

/// Compose files. A service's name stands in place of `*`.
pub const TABLE: Table = Table {
    kind: "compose",
    title: "docker compose: services that run an engine or a load generator",
    keys: &[
        says("image", "the engine, and its release by the tag", Text),
        says("command", "its arguments, as text or list", Text),
        says("command[]", "its arguments", Text),
        says("entrypoint", "the program in place of the image's", Text),
        says("entrypoint[]", "the program in place of the image's", Text),
        says("environment.*", "variables", Text),
        says("environment[]", "variables", Text),
        says("env_file", "a `.env` file among the files", Text),
        says("env_file[]", "a `.env` file among the files", Text),
        says("deploy.replicas", "a factor of `layout.replicas`", Whole),
        says("scale", "a factor of `layout.replicas`", Whole),
        says(
            "deploy.resources.reservations.devices[].count",
            "devices: `layout.tp` of TGI, a check for others",
            Text,
        ),
        says(
            "deploy.resources.reservations.devices[].device_ids[]",
            "devices",
            Text,
        ),
        not_modelled("cpus", "the host's processors are not limited"),
        not_modelled(
            "deploy.resources.limits.cpus",
            "the host's processors are not limited",
        ),
    ],
    idle: &[
        "container_name",
        "ports*",
        "expose*",
        "volumes*",
        "shm_size",
        "restart",
        "depends_on*",
        "networks*",
        "healthcheck*",
        "ipc",
        "runtime",
        "labels*",
        "logging*",
        "hostname",
        "user",
        "working_dir",
        "tty",
        "stdin_open",
        "ulimits*",
        "cap_add*",
        "security_opt*",
        "privileged",
        "profiles*",
        "pull_policy",
        "platform",
        "init",
        "stop_grace_period",
        "extra_hosts*",
        "build*",
        "devices*",
        "secrets*",
        "configs*",
        "deploy.resources.reservations.devices[].driver",
        "deploy.resources.reservations.devices[].capabilities*",
        "deploy.resources.*",
        "deploy.restart_policy*",
        "deploy.mode",
        "deploy.placement*",
        "deploy.update_config*",
        "mem_limit",
        "network_mode",
        "pid",
        "environment",
        "gpus",
    ],
    idle_flags: &[],
};

/// Most services of a file, and most variables of a service's own.
const MAX_SERVICES: usize = 1_100;
const MAX_VARIABLES: usize = 1_000;

/// Files of variables among the inputs: name to variables.
pub type EnvFiles = BTreeMap<String, Vec<(String, Origin)>>;

/// Imports a compose file. `used` gets the names of the env files that services name.
pub fn import(
    doc: &Rc<Node>,
    file: &Arc<str>,
    env_files: &EnvFiles,
    used: &mut Vec<String>,
    draft: &mut Draft,
) {
    let Some(services) = doc.get("services") else {
        return;
    };
    // What `.env` beside a compose file says is for `${NAME}` in it.
    let known: BTreeMap<String, String> = env_files
        .iter()
        .filter(|(name, _)| base(name) == ".env")
        .flat_map(|(_, variables)| variables.iter().map(|(n, o)| (n.clone(), o.raw.clone())))
        .collect();
    let mut engines: Vec<(i64, Origin)> = Vec::new();
    if services.entries().len() > MAX_SERVICES {
        let place = Place::new(file, services.line);
        draft.fault(Fault::new(
            place,
            "services",
            format!("more than {MAX_SERVICES} services"),
        ));
        return;
    }
    for entry in services.entries() {
        let service = Tree {
            node: &entry.value,
            file,
        };
        let prefix = format!("services.{}", entry.key);
        let origin = Origin::new(Place::new(file, entry.line), prefix.clone(), "");
        let streams = draft.streams().len();
        let (process, names) = process_of(service, &prefix, env_files, &known, draft);
        if !program::run(&process, file, draft, 0) {
            let image = process.image.as_ref().map_or("", |(i, _)| i.as_str());
            let proxy = [
                "nginx",
                "traefik",
                "haproxy",
                "caddy",
                "envoy",
                "prometheus",
                "grafana",
                "redis",
                "postgres",
            ]
            .iter()
            .any(|p| image.contains(p));
            let fate = if proxy {
                Fate::NoEffect
            } else {
                Fate::NotUnderstood
            };
            let origin = Origin {
                raw: image.to_owned(),
                ..origin
            };
            draft.fate(
                &origin,
                fate,
                "a service without an engine or load generator that is known",
            );
            continue;
        }
        used.extend(names);
        if draft.streams().len() == streams {
            let scale = service
                .whole(&prefix, &["deploy", "replicas"], draft)
                .or_else(|| service.whole(&prefix, &["scale"], draft));
            engines.push(scale.unwrap_or((1, origin)));
            devices(service, &prefix, draft);
        }
        sweep_service(service, &prefix, draft);
    }
    // Services of one engine are replicas of each other.
    let total: i64 = engines.iter().fold(0, |all, (n, _)| all.saturating_add(*n));
    if let Some((_, origin)) = engines.last() {
        let key = match engines.len() {
            1 => origin.key.clone(),
            n => format!("{n} services"),
        };
        draft.facts.replicas.push((
            total,
            Origin {
                key,
                ..origin.clone()
            },
        ));
    }
}

fn base(name: &str) -> &str {
    name.rsplit('/').next().unwrap_or(name)
}

fn sweep_service(service: Tree<'_>, prefix: &str, draft: &mut Draft) {
    // Keys below a service are reported with its name before them.
    let wrapped = Node::clone(service.node);
    let renamed = super::tree::under(&wrapped, prefix);
    sweep(
        Tree {
            node: &renamed,
            file: service.file,
        },
        &[(format!("{prefix}."), &TABLE)],
        draft,
    );
}

/// A service's image, words and variables, and the env files it names.
fn process_of(
    service: Tree<'_>,
    prefix: &str,
    env_files: &EnvFiles,
    known: &BTreeMap<String, String>,
    draft: &mut Draft,
) -> (Process, Vec<String>) {
    let file = service.file;
    let (mut variables, names) = of_env_files(service, prefix, env_files, draft);
    variables.extend(environment(service, prefix, known, draft));
    let program = words(service, prefix, "entrypoint", known, draft);
    let arguments = words(service, prefix, "command", known, draft);
    let entrypoint = !program.is_empty();
    let words = program.into_iter().chain(arguments).collect();
    let image = service.node.entry("image").and_then(|e| {
        let text = resolved(e.value.text()?, e.line, file, known, draft);
        Some((text, Place::new(file, e.line)))
    });
    (
        Process {
            image,
            words,
            entrypoint,
            variables,
        },
        names,
    )
}

/// The variables of the env files that a service names, and their names.
fn of_env_files(
    service: Tree<'_>,
    prefix: &str,
    env_files: &EnvFiles,
    draft: &mut Draft,
) -> (Vec<(String, Origin)>, Vec<String>) {
    let file = service.file;
    let mut variables: Vec<(String, Origin)> = Vec::new();
    let mut names = Vec::new();
    let listed = service.node.get("env_file");
    let single = listed.filter(|n| n.text().is_some());
    for node in listed.map_or(&[][..], |n| n.items()).iter().chain(single) {
        let Some(name) = node
            .text()
            .or_else(|| node.get("path").and_then(|p| p.text()))
        else {
            continue;
        };
        match env_files.iter().find(|(n, _)| base(n) == base(name)) {
            Some((n, all)) => {
                names.push(n.clone());
                variables.extend(all.iter().cloned());
            }
            None => draft.warn(format!(
                "{file}:{}: {prefix}: the variables of {} are missing: import that file too",
                node.line,
                shown(name)
            )),
        }
    }
    (variables, names)
}

/// A service's own variables.
fn environment(
    service: Tree<'_>,
    prefix: &str,
    known: &BTreeMap<String, String>,
    draft: &mut Draft,
) -> Vec<(String, Origin)> {
    let file = service.file;
    let mut variables: Vec<(String, Origin)> = Vec::new();
    let environment = service.node.get("environment");
    let size = environment.map_or(0, |e| e.entries().len().max(e.items().len()));
    if size > MAX_VARIABLES {
        let place = Place::new(file, environment.map_or(1, |e| e.line));
        let message = format!("more than {MAX_VARIABLES} variables");
        draft.fault(Fault::new(place, format!("{prefix}.environment"), message));
    }
    for entry in environment
        .map_or(&[][..], |e| e.entries())
        .iter()
        .take(MAX_VARIABLES)
    {
        let value = resolved(
            entry.value.text().unwrap_or(""),
            entry.line,
            file,
            known,
            draft,
        );
        variables.push((
            entry.key.clone(),
            Origin::new(Place::new(file, entry.line), entry.key.clone(), value),
        ));
    }
    for item in environment
        .map_or(&[][..], |e| e.items())
        .iter()
        .take(MAX_VARIABLES)
    {
        let (name, value) = item
            .text()
            .unwrap_or("")
            .split_once('=')
            .unwrap_or((item.text().unwrap_or(""), ""));
        let value = resolved(value, item.line, file, known, draft);
        variables.push((
            name.to_owned(),
            Origin::new(Place::new(file, item.line), name, value),
        ));
    }
    variables
}

/// The words at `key`: a list, or text that compose splits.
fn words(
    service: Tree<'_>,
    prefix: &str,
    key: &str,
    known: &BTreeMap<String, String>,
    draft: &mut Draft,
) -> Vec<Word> {
    let file = service.file;
    let Some(node) = service.node.get(key) else {
        return Vec::new();
    };
    if let Some(text) = node.text() {
        // Compose splits text into words as a shell does, and runs none of it.
        let line = node.line;
        return match shell::commands(text, line, known) {
            Ok(all) => all.into_iter().flat_map(|c| c.words).collect(),
            Err(wrong) => {
                draft.fault(Fault::new(
                    Place::new(file, wrong.line),
                    format!("{prefix}.{key}"),
                    wrong.message,
                ));
                Vec::new()
            }
        };
    }
    let items = node
        .items()
        .iter()
        .filter_map(|w| Some((w.text()?, w.line)));
    items
        .map(|(text, line)| Word {
            text: resolved(text, line, file, known, draft),
            line,
        })
        .collect()
}

/// `${NAME}` and `${NAME:-default}` in a value.
fn resolved(
    text: &str,
    line: u32,
    file: &Arc<str>,
    known: &BTreeMap<String, String>,
    draft: &mut Draft,
) -> String {
    if !text.contains('$') {
        return text.to_owned();
    }
    // Within double quotes a shell expands variables and nothing else.
    let script = format!(
        "\"{}\"",
        text.replace('\\', "\\\\")
            .replace('"', "\\\"")
            .replace('`', "\\`")
    );
    match shell::commands(&script, line, known) {
        Ok(all) => all
            .into_iter()
            .flat_map(|c| c.words)
            .map(|w| w.text)
            .next()
            .unwrap_or_default(),
        Err(wrong) => {
            draft.fault(Fault::new(
                Place::new(file, line),
                shown(text),
                wrong.message,
            ));
            String::new()
        }
    }
}

/// Devices that a service reserves.
fn devices(service: Tree<'_>, prefix: &str, draft: &mut Draft) {
    let path = ["deploy", "resources", "reservations", "devices"];
    for device in service.node.at(&path).map_or(&[][..], Node::items) {
        let (n, line) = match (device.get("device_ids"), device.get("count")) {
            (Some(ids), _) => (i64::try_from(ids.items().len()).ok(), ids.line),
            (None, Some(count)) => (count.text().and_then(|c| c.parse().ok()), count.line),
            (None, None) => (None, device.line),
        };
        // `count: all` says nothing of how many there are.
        if let Some(n) = n {
            let origin = Origin::new(
                Place::new(service.file, line),
                format!("{prefix}.deploy.resources.reservations.devices"),
                n.to_string(),
            );
            match draft.facts.pod_devices.clone() {
                Some((other, from)) if other != n => {
                    let message = format!(
                        "reserves {n} devices, but {} {other}: replicas are alike",
                        from.place
                    );
                    draft.fault(origin.fault(message));
                }
                Some(_) => {}
                None => draft.facts.pod_devices = Some((n, origin)),
            }
        }
    }
}

/// nginx as a proxy.
pub const NGINX: Table = Table {
    kind: "nginx",
    title: "nginx: the servers of an upstream and how one is chosen",
    keys: &[
        says(
            "upstream.server",
            "`layout.replicas`, where no other file says it, and a check where one does",
            Text,
        ),
        says(
            "upstream.least_conn",
            "`router.policy` = least_outstanding",
            Text,
        ),
        says(
            "upstream.random",
            "`router.policy` = random, or power_of_two with `two least_conn`",
            Text,
        ),
        says("upstream.ip_hash", "`router.policy` = session", Text),
        says("upstream.hash", "`router.policy` = session", Text),
        not_modelled(
            "upstream.least_time",
            "the proxy's own measure of time is not known",
        ),
        not_modelled(
            "proxy_read_timeout",
            "it bounds the wait between two reads, not the whole answer; set router.timeout for that",
        ),
        not_modelled("proxy_next_upstream", "set workload.retries"),
        not_modelled("limit_req", "requests beyond it would be refused"),
        not_modelled("limit_conn", "requests beyond it would be refused"),
    ],
    idle: &[],
    idle_flags: &[],
};

/// Imports an nginx configuration.
pub fn nginx(all: &[Directive], file: &Arc<str>, draft: &mut Draft) {
    let mut upstreams: Vec<&Directive> = Vec::new();
    let mut others: Vec<&Directive> = Vec::new();
    collect(all, &mut upstreams, &mut others);
    // The engine's upstream is the one with most servers.
    let servers = |u: &Directive| u.block.iter().filter(|d| d.name() == "server").count();
    let Some(upstream) = upstreams.iter().max_by_key(|u| servers(u)) else {
        return;
    };
    let of =
        |d: &Directive| Origin::new(Place::new(file, d.line), d.name(), d.words[1..].join(" "));
    let mut policy = ("round_robin", of(upstream));
    let mut count = 0;
    for d in &upstream.block {
        match d.name() {
            "server" if d.words.iter().any(|w| w == "down" || w == "backup") => {
                draft.fate(&of(d), Fate::NoEffect, "not in use")
            }
            "server" => {
                count += 1;
                draft.used(&of(d), "a replica");
                if d.words
                    .iter()
                    .any(|w| w.starts_with("weight=") && w != "weight=1")
                {
                    draft.fate(
                        &of(d),
                        Fate::NotModelled,
                        "weights: replicas are alike here",
                    );
                }
                if d.words.iter().any(|w| w.starts_with("max_conns=")) {
                    draft.fate(
                        &of(d),
                        Fate::NotModelled,
                        "max_conns: requests beyond it would wait in the proxy",
                    );
                }
            }
            "least_conn" => policy = ("least_outstanding", of(d)),
            "random" if d.words.len() >= 3 && d.words[1] == "two" => {
                policy = ("power_of_two", of(d))
            }
            "random" => policy = ("random", of(d)),
            "ip_hash" | "hash" => policy = ("session", of(d)),
            "keepalive" | "zone" | "keepalive_timeout" | "keepalive_requests" | "resolver" => {
                draft.fate(&of(d), Fate::NoEffect, "")
            }
            _ => draft.fate(
                &of(d),
                Fate::NotModelled,
                "how the server of a request is chosen",
            ),
        }
    }
    draft.set("router.policy", policy.0, &policy.1);
    if count > 0 {
        let origin = Origin::new(
            Place::new(file, upstream.line),
            upstream.words.join(" "),
            format!("{count} servers"),
        );
        draft.facts.servers = Some((count, origin));
    }
    for d in others {
        if let Some(crate::keys::Meaning::NotModelled(why)) =
            NGINX.find(d.name()).map(|k| k.meaning)
        {
            draft.fate(&of(d), Fate::NotModelled, why);
        }
    }
}

fn collect<'a>(
    all: &'a [Directive],
    upstreams: &mut Vec<&'a Directive>,
    others: &mut Vec<&'a Directive>,
) {
    for d in all {
        if d.name() == "upstream" {
            upstreams.push(d);
        } else {
            others.push(d);
            collect(&d.block, upstreams, others);
        }
    }
}
