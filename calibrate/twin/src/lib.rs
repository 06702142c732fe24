//! The digital twin: runs beside a live deployment, replays what it was asked through the simulator, and says how far
//! prediction and measurement are apart.
//!
//! The way of a request: [`proxy`] passes it through ([`passing`], [`door`]) and sends copies over [`tap`] to [`observe`], which reads them
//! ([`api`], [`prefix`]) into rows of a [`window`]. The way of a window: [`replay`] sends its requests again in the
//! simulator, [`compare`] holds both against each other, [`drift`] judges the errors ([`chart`]), [`refit`] answers them, [`ask`] changes load
//! or deployment. [`live`] does all of it again and again; [`report`] and [`export`] say what came out; [`scrape`] reads
//! the server's own metrics; [`cost`] measures what the proxy adds.

pub mod api;
pub mod ask;
pub mod chart;
pub mod compare;
pub mod cost;
pub mod door;
pub mod drift;
pub mod export;
pub mod live;
pub mod observe;
pub mod passing;
pub mod prefix;
pub mod proxy;
pub mod refit;
pub mod replay;
pub mod report;
pub mod scrape;
pub mod tap;
pub mod tokens;
pub mod window;
