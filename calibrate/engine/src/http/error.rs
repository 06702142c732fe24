//! Errors as OpenAI's clients read them.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::json;
use sim::request::RejectReason;

use crate::engine::Refusal;
use crate::request::Failure;

/// After how long a client refused for load may try again [s].
const RETRY_AFTER_S: u64 = 1;

/// An answer other than 200.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiError {
    /// Status.
    pub status: StatusCode,
    /// What is wrong, and what would be right.
    pub message: String,
    /// The field that is wrong.
    pub param: Option<String>,
}

impl ApiError {
    /// 400: the request cannot be served as it is.
    pub fn bad(param: &str, message: impl Into<String>) -> ApiError {
        ApiError {
            status: StatusCode::BAD_REQUEST,
            message: message.into(),
            param: (!param.is_empty()).then(|| param.to_string()),
        }
    }

    /// Any other status.
    pub fn new(status: StatusCode, message: impl Into<String>) -> ApiError {
        ApiError {
            status,
            message: message.into(),
            param: None,
        }
    }

    /// The object that goes into a body or, once a stream has begun, into an event.
    pub fn body(&self) -> serde_json::Value {
        let kind = match self.status {
            StatusCode::BAD_REQUEST | StatusCode::PAYLOAD_TOO_LARGE => "BadRequestError",
            StatusCode::UNAUTHORIZED => "AuthenticationError",
            StatusCode::NOT_FOUND => "NotFoundError",
            StatusCode::TOO_MANY_REQUESTS => "RateLimitError",
            StatusCode::SERVICE_UNAVAILABLE => "ServiceUnavailableError",
            _ => "InternalServerError",
        };
        json!({"error": {
            "message": self.message,
            "type": kind,
            "param": self.param,
            "code": self.status.as_u16(),
        }})
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.body())).into_response();
        let headers = response.headers_mut();
        match self.status {
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
                headers.insert(header::RETRY_AFTER, HeaderValue::from(RETRY_AFTER_S));
            }
            StatusCode::UNAUTHORIZED => {
                headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            _ => {}
        }
        response
    }
}

impl From<Refusal> for ApiError {
    fn from(refusal: Refusal) -> ApiError {
        match refusal {
            Refusal::QueueFull => ApiError::new(
                StatusCode::TOO_MANY_REQUESTS,
                "the queue is full; try again later",
            ),
            Refusal::Draining => ApiError::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "the server is shutting down",
            ),
            Refusal::Broken => ApiError::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "a worker of the engine has stopped; restart the server",
            ),
        }
    }
}

impl From<Failure> for ApiError {
    fn from(failure: Failure) -> ApiError {
        match failure {
            Failure::Rejected(RejectReason::Overloaded) => ApiError::new(
                StatusCode::TOO_MANY_REQUESTS,
                "as many requests as the policy allows are under way; try again later",
            ),
            Failure::Rejected(RejectReason::QueueFull) => ApiError::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "as many requests as the policy allows are waiting; try again later",
            ),
            Failure::Rejected(RejectReason::TooLong) => ApiError::bad(
                "max_tokens",
                "prompt and max_tokens exceed what the policy allows for one request; shorten one of them",
            ),
            Failure::Rejected(RejectReason::NeverFits) => ApiError::bad(
                "max_tokens",
                "the request needs more KV blocks than the engine has; shorten the prompt or lower max_tokens",
            ),
            Failure::Rejected(RejectReason::NoEndpoint) => ApiError::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "no replica is ready; try again later",
            ),
            Failure::NeverRuns => ApiError::new(
                StatusCode::UNPROCESSABLE_ENTITY,
                "the policy can never run this request in the KV cache it has",
            ),
            Failure::Executor(message) => ApiError::new(
                StatusCode::INTERNAL_SERVER_ERROR,
                format!("the forward pass failed: {message}"),
            ),
            Failure::NoToken => ApiError::bad(
                "allowed_token_ids",
                "`allowed_token_ids` and `bad_words` leave no token to choose",
            ),
            Failure::ShuttingDown => Refusal::Draining.into(),
        }
    }
}
