//! Black-box calibration: an endpoint's step times, host overheads and limits from its requests alone.
//!
//! - [`load`] what is measured: send, first token, end and lengths of each request
//! - [`first`] closed-form first guesses; [`joint`] the fit proper, which simulates the same requests; [`limits`] the search for
//!   what the scheduler allows; [`fit()`] puts them together
//! - [`server`] and [`params`] what is sought; [`mod@simulate`] and [`replay`] a load through the simulator

pub mod first;
pub mod fit;
pub mod joint;
pub mod limits;
pub mod load;
pub mod params;
pub mod replay;
pub mod server;
pub mod simulate;
#[cfg(test)]
mod tests;

pub use fit::{Effort, EndpointFitError, Fitted, fit};
pub use load::{Load, Request, Role};
pub use params::{Params, UNKNOWNS};
pub use server::{Known, Server, Source};
