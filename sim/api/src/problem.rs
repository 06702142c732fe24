//! Errors as callers read them: what, where, why.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use sim::scenario::ScenarioError;

/// After how long a caller that was refused for load may try again [s].
const RETRY_AFTER_S: u64 = 5;

/// What kind of error it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Code {
    /// The request is no request of this service.
    BadRequest,
    /// The scenario or question in it is wrong.
    BadInput,
    /// No key, or a wrong one.
    Unauthorized,
    /// The address that the caller asked is not this service's.
    WrongHost,
    /// There is no such path, or no such job any more.
    NotFound,
    /// The path does not take this method.
    MethodNotAllowed,
    /// The body is larger than the service takes.
    TooLarge,
    /// The body does not say that it is JSON.
    UnsupportedMediaType,
    /// The body took too long to arrive.
    RequestTimeout,
    /// As many jobs wait as may.
    QueueFull,
    /// The service is shutting down.
    Stopping,
    /// The job has not ended.
    NotReady,
    /// The job was cancelled.
    Cancelled,
    /// The job took longer than the service allows.
    JobTimeout,
    /// A defect of the service.
    Internal,
}

impl Code {
    fn status(self) -> StatusCode {
        match self {
            Code::BadRequest => StatusCode::BAD_REQUEST,
            Code::BadInput | Code::JobTimeout => StatusCode::UNPROCESSABLE_ENTITY,
            Code::Unauthorized => StatusCode::UNAUTHORIZED,
            Code::WrongHost => StatusCode::FORBIDDEN,
            Code::NotFound => StatusCode::NOT_FOUND,
            Code::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
            Code::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Code::UnsupportedMediaType => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Code::RequestTimeout => StatusCode::REQUEST_TIMEOUT,
            Code::QueueFull => StatusCode::TOO_MANY_REQUESTS,
            Code::Stopping => StatusCode::SERVICE_UNAVAILABLE,
            Code::NotReady | Code::Cancelled => StatusCode::CONFLICT,
            Code::Internal => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }
}

/// An error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Problem {
    /// Its kind.
    pub code: Code,
    /// What failed.
    pub what: String,
    /// Where: a field of the body, or a line of the scenario; null where it is the request as a whole.
    #[serde(rename = "where")]
    pub place: Option<String>,
    /// Why, and what would be right.
    pub why: String,
    /// All that is wrong with the scenario, where there is more than one thing.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub issues: Vec<Issue>,
}

/// One thing that is wrong with a scenario.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct Issue {
    /// Line and key.
    #[serde(rename = "where")]
    pub place: String,
    /// Why, and what would be right.
    pub why: String,
}

/// The body of an answer that is an error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct ErrorBody {
    /// The error.
    pub error: Problem,
}

impl Problem {
    /// An error of the request as a whole.
    pub fn new(code: Code, what: impl Into<String>, why: impl Into<String>) -> Problem {
        Problem {
            code,
            what: what.into(),
            place: None,
            why: why.into(),
            issues: Vec::new(),
        }
    }

    /// The same at `place`.
    #[must_use]
    pub fn at(mut self, place: impl Into<String>) -> Problem {
        self.place = Some(place.into());
        self
    }

    /// A scenario or a question that is wrong.
    pub fn scenario(what: &str, e: &ScenarioError) -> Problem {
        let issues: Vec<Issue> = (e.issues().iter())
            .map(|i| Issue {
                place: match i.path.as_str() {
                    "" => i.place.clone(),
                    path => format!("{}: {path}", i.place),
                },
                why: i.message.clone(),
            })
            .collect();
        let first = issues.first().cloned();
        Problem {
            place: first.as_ref().map(|i| i.place.clone()),
            why: first.map_or_else(|| e.to_string(), |i| i.why),
            issues: if issues.len() > 1 { issues } else { Vec::new() },
            ..Problem::new(Code::BadInput, what, "")
        }
    }

    /// What the planner says, of work called `what`.
    pub fn of(what: &str, e: planner::Error) -> Problem {
        match e {
            planner::Error::Scenario(e) => Problem::scenario(what, &e),
            planner::Error::Input(why) => Problem::new(Code::BadInput, what, why),
            planner::Error::Cancelled => Problem::cancelled(),
            e => Problem::new(Code::Internal, what, e.to_string()),
        }
    }

    /// The end of a job that somebody cancelled.
    pub fn cancelled() -> Problem {
        Problem::new(Code::Cancelled, "no result", "the job was cancelled")
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let code = self.code;
        let mut response = (code.status(), Json(ErrorBody { error: self })).into_response();
        let headers = response.headers_mut();
        match code {
            Code::QueueFull | Code::Stopping => {
                headers.insert(header::RETRY_AFTER, HeaderValue::from(RETRY_AFTER_S));
            }
            Code::Unauthorized => {
                headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            _ => {}
        }
        response
    }
}
