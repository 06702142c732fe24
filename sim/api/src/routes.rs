//! Paths and methods.

use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::extract::{Path, RawQuery, Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::de::DeserializeOwned;
use subtle::ConstantTimeEq as _;

use crate::answer::{Health, JobList, MOST_WAIT_S};
use crate::jobs::{JobView, Jobs};
use crate::openapi;
use crate::problem::{Code, Problem};
use crate::work::Task;

/// Longest time that a body may take to arrive.
const BODY_TIMEOUT: Duration = Duration::from_secs(30);

type Shared = State<Arc<Jobs>>;

/// All routes. With `local`, only requests that name this machine's own address are answered: a page in a browser of this machine that was made to
/// resolve its own name to it is not.
pub fn routes(jobs: Arc<Jobs>, local: bool) -> Router {
    let keyed = Router::new()
        .route("/v1/plan", post(plan))
        .route("/v1/run", post(run))
        .route("/v1/whatif", post(whatif))
        .route("/v1/capacity", post(capacity))
        .route("/v1/jobs", get(list))
        .route("/v1/jobs/{id}", get(job).delete(delete))
        .route("/v1/jobs/{id}/result", get(result))
        .layer(from_fn_with_state(jobs.clone(), check_key));
    let all = Router::new()
        .route("/health", get(health))
        .route("/openapi.json", get(document))
        .merge(keyed)
        .fallback(|request: Request| async move {
            let why = format!("{} is none; /openapi.json lists them", request.uri().path());
            Problem::new(Code::NotFound, "there is no such path", why)
        })
        .method_not_allowed_fallback(|request: Request| async move {
            let why = format!("{} does not take it", request.uri().path());
            Problem::new(
                Code::MethodNotAllowed,
                format!("no {}", request.method()),
                why,
            )
        })
        .layer(from_fn(headers))
        .with_state(jobs);
    if local {
        all.layer(from_fn(check_host))
    } else {
        all
    }
}

async fn headers(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(
        header::X_CONTENT_TYPE_OPTIONS,
        HeaderValue::from_static("nosniff"),
    );
    response
}

/// Whether a `Host` header names this machine itself.
fn is_local(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(v6) => v6.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    let address = name.parse::<std::net::IpAddr>();
    name.eq_ignore_ascii_case("localhost") || address.is_ok_and(|a| a.is_loopback())
}

async fn check_host(request: Request, next: Next) -> Response {
    let host = request.headers().get(header::HOST);
    let host = host.and_then(|h| h.to_str().ok()).unwrap_or_default();
    if is_local(host) {
        return next.run(request).await;
    }
    let why = "this service listens on the loopback address: ask localhost or 127.0.0.1";
    Problem::new(Code::WrongHost, "the request was not answered", why)
        .at("header Host")
        .into_response()
}

async fn check_key(State(jobs): Shared, request: Request, next: Next) -> Response {
    if let Some(key) = &jobs.limits().key {
        let given = (request.headers().get(header::AUTHORIZATION))
            .and_then(|v| v.to_str().ok())
            .and_then(|v| v.strip_prefix("Bearer "));
        // In a time that does not tell where the two differ.
        if !given.is_some_and(|g| bool::from(g.trim().as_bytes().ct_eq(key.as_bytes()))) {
            let why = "send the service's key as `Authorization: Bearer KEY`";
            return Problem::new(Code::Unauthorized, "no access", why)
                .at("header Authorization")
                .into_response();
        }
    }
    next.run(request).await
}

async fn health(State(jobs): Shared) -> Response {
    let stopping = jobs.is_stopping();
    let (status, word) = if stopping {
        (StatusCode::SERVICE_UNAVAILABLE, "stopping")
    } else {
        (StatusCode::OK, "ok")
    };
    let body = Health {
        status: word.into(),
        version: env!("CARGO_PKG_VERSION").into(),
        jobs: jobs.counts(),
    };
    (status, Json(body)).into_response()
}

async fn document() -> Json<serde_json::Value> {
    Json(openapi::document())
}

/// The body as JSON.
async fn body<T: DeserializeOwned>(jobs: &Jobs, request: Request) -> Result<T, Problem> {
    let what = "the body cannot be read";
    let kind = request.headers().get(header::CONTENT_TYPE);
    let kind = kind.and_then(|k| k.to_str().ok()).unwrap_or_default();
    let essence = kind.split(';').next().unwrap_or_default().trim();
    if !essence.eq_ignore_ascii_case("application/json") {
        // A form of a foreign page cannot send this type, so that no such page can start jobs.
        let why = "send JSON with the header `content-type: application/json`";
        return Err(Problem::new(Code::UnsupportedMediaType, what, why).at("header Content-Type"));
    }
    let most = jobs.limits().body_bytes;
    let too_large = || {
        let why = format!("it is larger than {most} bytes, the most that this service takes");
        Problem::new(Code::TooLarge, what, why)
    };
    let length = request.headers().get(header::CONTENT_LENGTH);
    let length = length.and_then(|l| l.to_str().ok()?.parse::<u64>().ok());
    if length.is_some_and(|l| l > most as u64) {
        return Err(too_large());
    }
    let read = tokio::time::timeout(BODY_TIMEOUT, to_bytes(request.into_body(), most)).await;
    let bytes = match read {
        Ok(Ok(bytes)) => bytes,
        // Either it is too long, or the caller is gone and reads no answer.
        Ok(Err(_)) => return Err(too_large()),
        Err(_) => {
            let why = format!("it did not arrive within {} s", BODY_TIMEOUT.as_secs());
            return Err(Problem::new(Code::RequestTimeout, what, why));
        }
    };
    serde_json::from_slice(&bytes).map_err(|e| {
        let place = format!("body line {} column {}", e.line(), e.column());
        Problem::new(Code::BadRequest, what, e.to_string()).at(place)
    })
}

/// 202 with the job and where it is.
fn taken(jobs: &Arc<Jobs>, task: Task) -> Result<Response, Problem> {
    let view = jobs.add(task)?.view();
    let location = HeaderValue::from_str(&view.url)
        .map_err(|e| Problem::new(Code::Internal, "no location", e.to_string()))?;
    let mut response = (StatusCode::ACCEPTED, Json(view)).into_response();
    response.headers_mut().insert(header::LOCATION, location);
    Ok(response)
}

async fn plan(State(jobs): Shared, request: Request) -> Result<Response, Problem> {
    let asked = body(&jobs, request).await?;
    taken(&jobs, Task::Plan(Box::new(asked)))
}

async fn run(State(jobs): Shared, request: Request) -> Result<Response, Problem> {
    let asked = body(&jobs, request).await?;
    taken(&jobs, Task::Run(Box::new(asked)))
}

async fn whatif(State(jobs): Shared, request: Request) -> Result<Response, Problem> {
    let asked = body(&jobs, request).await?;
    taken(&jobs, Task::WhatIf(Box::new(asked)))
}

async fn capacity(State(jobs): Shared, request: Request) -> Result<Response, Problem> {
    let asked = body(&jobs, request).await?;
    taken(&jobs, Task::Capacity(Box::new(asked)))
}

async fn list(State(jobs): Shared) -> Json<JobList> {
    Json(JobList { jobs: jobs.list() })
}

/// The seconds in the query `wait=10`.
fn wait(query: Option<&str>) -> Result<Option<Duration>, Problem> {
    let Some(query) = query.filter(|q| !q.is_empty()) else {
        return Ok(None);
    };
    let written = query.strip_prefix("wait=").and_then(|s| s.parse().ok());
    let within = written.filter(|s| (0.0..=MOST_WAIT_S).contains(s));
    match within {
        Some(s) => Ok(Some(Duration::from_secs_f64(s))),
        None => {
            let why = format!("write wait=SECONDS, from 0 to {MOST_WAIT_S}");
            Err(Problem::new(Code::BadRequest, "the query cannot be read", why).at("wait"))
        }
    }
}

async fn job(
    State(jobs): Shared,
    Path(id): Path<String>,
    RawQuery(query): RawQuery,
) -> Result<Json<JobView>, Problem> {
    let wait = wait(query.as_deref())?;
    let job = jobs.get(&id)?;
    if let Some(time) = wait {
        let _ = tokio::time::timeout(time, job.ended()).await;
    }
    Ok(Json(job.view()))
}

async fn result(State(jobs): Shared, Path(id): Path<String>) -> Result<Response, Problem> {
    let bytes = jobs.get(&id)?.result()?;
    let kind = [(header::CONTENT_TYPE, "application/json")];
    Ok((kind, Body::from(bytes.to_vec())).into_response())
}

async fn delete(State(jobs): Shared, Path(id): Path<String>) -> Result<Response, Problem> {
    let (job, forgotten) = jobs.delete(&id)?;
    Ok(if forgotten {
        StatusCode::NO_CONTENT.into_response()
    } else {
        Json(job.view()).into_response()
    })
}

#[cfg(test)]
mod tests {
    use super::is_local;

    #[test]
    fn this_machine_has_few_names() {
        for local in [
            "localhost",
            "LOCALHOST:80",
            "127.0.0.1",
            "127.1.2.3:8",
            "[::1]:80",
            "[::1]",
        ] {
            assert!(is_local(local), "{local}");
        }
        for other in [
            "",
            "evil.example",
            "localhost.evil.example",
            "10.0.0.1",
            "[::2]",
            "127.0.0.1.x",
        ] {
            assert!(!is_local(other), "{other}");
        }
    }
}
