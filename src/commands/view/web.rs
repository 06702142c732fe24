//! The viewer as a page: its files, served on loopback.
//!
//! They lie in a folder that is named, in one beside the program, or are in the viewer's program, which is asked to write them:
//!
//! ```text
//! --files DIR, else servetwin-web beside servetwin, else servetwin-viewer --write-page TEMPORARY
//! ```

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use anyhow::Context as _;
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::response::{IntoResponse as _, Response};

use super::{Args, PROGRAM};
use crate::bad_input::BadInput;
use crate::exit_code;
use crate::output::print;

/// Name of the folder beside the program.
const FOLDER: &str = "servetwin-web";

/// Where the file lies that is to be shown.
const OPENED: &str = "open/";

/// Files that make the page; the first is what a browser asks for.
const NEEDED: [&str; 4] = ["index.html", "viewer.js", "viewer_bg.wasm", "worker.js"];

/// A file of the page, and its gzip form where there is one.
struct Served {
    kind: &'static str,
    plain: Bytes,
    gzip: Option<Bytes>,
}

/// What is said where the page is missing.
const BUILD: &str = "build both in the repository with `viewer/web/build.sh --program`, or name a folder with the page with --files DIR \
    (docs/viewer.md), or show the file in a window: servetwin view FILE";

struct Site {
    files: BTreeMap<String, Served>,
    /// The file to be shown, and its name in addresses.
    shown: Option<(String, PathBuf)>,
}

/// Serves the page until Ctrl-C. `program` is the viewer's, where there is one.
pub fn run(args: &Args, beside: Option<&Path>, program: Option<&Path>) -> anyhow::Result<u8> {
    let folder = beside.unwrap_or(Path::new("")).join(FOLDER);
    let site = Site {
        files: match (&args.files, program) {
            (Some(named), _) => load(named)?,
            (None, _) if folder.is_dir() => load(&folder)?,
            (None, Some(program)) => built_in(program)?,
            (None, None) => {
                return Err(BadInput(format!(
                    "the viewer's page is not there: neither a folder {} nor a program {PROGRAM} beside servetwin or on PATH that has it built \
                     in; {BUILD}",
                    folder.display()
                ))
                .into());
            }
        },
        shown: args.file.first().map(|file| {
            let name = file.file_name().unwrap_or(file.as_os_str());
            (
                format!("{OPENED}{}", encoded(&name.to_string_lossy())),
                file.clone(),
            )
        }),
    };
    let mut parameters: Vec<String> = Vec::new();
    parameters.extend(
        site.shown
            .iter()
            .map(|(name, _)| format!("file={}", encoded(name))),
    );
    parameters.extend(args.light.then(|| "light".to_owned()));
    let query = match parameters.join("&") {
        none if none.is_empty() => none,
        some => format!("?{some}"),
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the server")?;
    runtime.block_on(async {
        let at = SocketAddr::from((Ipv4Addr::LOCALHOST, args.port));
        let listener = tokio::net::TcpListener::bind(at)
            .await
            .with_context(|| format!("cannot listen on {at}; --port 0 takes any that is free"))?;
        let at = listener.local_addr().context("cannot listen")?;
        print(&format!("http://{at}/{query}\n"))?;
        note!("note: the viewer is there for browsers on this machine until Ctrl-C");
        let app = Router::new().fallback(answer).with_state(Arc::new(site));
        let stop = async {
            // Without a handler Ctrl-C ends the program by itself.
            let _ = tokio::signal::ctrl_c().await;
        };
        axum::serve(listener, app)
            .with_graceful_shutdown(stop)
            .await
            .context("the server broke off")
    })?;
    Ok(exit_code::OK)
}

/// The files that were built into the viewer's `program`, which writes them into a folder for as long as they are read.
fn built_in(program: &Path) -> anyhow::Result<BTreeMap<String, Served>> {
    let folder = tempfile::tempdir().context("cannot make a temporary folder for the page")?;
    let mut command = Command::new(program);
    command.arg("--write-page").arg(folder.path());
    let out = command
        .output()
        .with_context(|| format!("cannot start {}", program.display()))?;
    if !out.status.success() {
        // A program that does not know the option writes all of its help.
        let said = String::from_utf8_lossy(&out.stderr);
        let first = said.lines().next().unwrap_or("it does not say why");
        return Err(BadInput(format!(
            "{} has no page to serve ({}); {BUILD}",
            program.display(),
            first.trim_start_matches("error: ")
        ))
        .into());
    }
    load(folder.path())
}

/// Reads the files of the page.
fn load(folder: &Path) -> anyhow::Result<BTreeMap<String, Served>> {
    if let Some(missing) = NEEDED.iter().find(|name| !folder.join(name).is_file()) {
        return Err(BadInput(format!(
            "the viewer's page is not in {}: there is no {missing}; {BUILD}",
            folder.display()
        ))
        .into());
    }
    let read = |name: &str| {
        let path = folder.join(name);
        std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))
    };
    NEEDED
        .iter()
        .map(|name| {
            let kind = match name.rsplit('.').next() {
                Some("html") => "text/html; charset=utf-8",
                Some("js") => "text/javascript; charset=utf-8",
                _ => "application/wasm",
            };
            let served = Served {
                kind,
                plain: read(name)?.into(),
                gzip: read(&format!("{name}.gz")).ok().map(Bytes::from),
            };
            Ok(((*name).to_owned(), served))
        })
        .collect()
}

async fn answer(State(site): State<Arc<Site>>, uri: Uri, headers: HeaderMap) -> Response {
    let name = match uri.path().trim_start_matches('/') {
        "" => NEEDED[0],
        name => name,
    };
    if let Some((_, path)) = site.shown.as_ref().filter(|(shown, _)| shown == name) {
        // One user, one file: nobody else waits meanwhile.
        return match std::fs::read(path) {
            Ok(bytes) => whole("application/octet-stream", None, bytes.into()),
            Err(e) => (
                StatusCode::NOT_FOUND,
                format!("cannot read {}: {e}\n", path.display()),
            )
                .into_response(),
        };
    }
    let Some(served) = site.files.get(name) else {
        return (StatusCode::NOT_FOUND, "there is no such file\n").into_response();
    };
    let accepts = headers
        .get(header::ACCEPT_ENCODING)
        .and_then(|v| v.to_str().ok());
    match served
        .gzip
        .as_ref()
        .filter(|_| accepts.is_some_and(|a| a.contains("gzip")))
    {
        Some(gzip) => whole(served.kind, Some("gzip"), gzip.clone()),
        None => whole(served.kind, None, served.plain.clone()),
    }
}

fn whole(kind: &'static str, encoding: Option<&'static str>, bytes: Bytes) -> Response {
    let mut response = Response::new(Body::from(bytes));
    let headers = response.headers_mut();
    let text = header::HeaderValue::from_static;
    headers.insert(header::CONTENT_TYPE, text(kind));
    // Another build may lie there the next time.
    headers.insert(header::CACHE_CONTROL, text("no-cache"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, text("nosniff"));
    if let Some(encoding) = encoding {
        headers.insert(header::CONTENT_ENCODING, text(encoding));
    }
    response
}

/// A text as part of an address (RFC 3986 2.1).
fn encoded(text: &str) -> String {
    text.bytes()
        .map(|b| match b {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => {
                char::from(b).to_string()
            }
            b => format!("%{b:02X}"),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_parts_of_an_address() {
        assert_eq!(encoded("a b/ä.servetwin"), "a%20b/%C3%A4.servetwin");
    }
}
