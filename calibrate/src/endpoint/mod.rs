//! Black-box calibration: an endpoint's step times, host overheads and limits from its requests alone.
//!
//! - [`load`] what is measured: send, first token, end and lengths of each request
//! - [`first`] closed-form first guesses; [`joint`] the fit proper, which simulates the same requests; [`limits`] the search for
//!   what the scheduler allows; [`fit()`] puts them together
//! - `alone` what requests that met no other show: how the machine's speed drifts
//! - [`server`] and [`params`] what is sought; [`mod@simulate`] and [`replay`] a load through the simulator
//! - `survey` how fast the endpoint is; [`mod@measure`] which loads to put on a live endpoint; [`names`] what they are called; [`plan`] which of them fit into the budget; [`drive`] sends them; [`budget`]
//!   what that may cost; [`facts`] what the endpoint says of itself
//! - [`report`] errors of predictions; [`output`] profile and scenario; [`store`] loads as files

mod alone;
pub mod budget;
pub mod drive;
pub mod facts;
pub mod first;
pub mod fit;
pub mod joint;
pub mod limits;
#[cfg(test)]
mod live_tests;
pub mod load;
pub mod measure;
pub mod names;
pub mod output;
pub mod params;
pub mod plan;
pub mod replay;
pub mod report;
pub mod server;
pub mod simulate;
pub mod store;
mod survey;
#[cfg(test)]
mod tests;

pub use budget::Budget;
pub use fit::{Effort, EndpointFitError, Fitted, fit};
pub use load::{Load, Request, Role};
pub use measure::{Before, Measured, Options, Progress, Unwatched, Watch, measure};
pub use params::{Params, UNKNOWNS};
pub use report::EndpointReport;
pub use server::{Known, Server, Source};
