//! The servetwin viewer: what happened in a run, why, and what would happen otherwise.
//!
//! ```text
//!  record file --+                                  +--> views: data --> items (pure) --> paint
//!  scenario -----+--> jobs (background) --> RunData-+
//!  sliders ------+                                  +--> files: SVG, CSV, PNG, records
//! ```
//!
//! The whole application is here, without a window, so that tests drive it; the program adds the window. Views read records and ask for
//! [`state::Action`]s; none reaches into the simulator.
//!
//! Where to begin: [`app`] (what becomes of an action), [`run_data`] (a record, indexed), [`lanes`] and [`chart`] (from rows to what is
//! painted), [`views`].

pub mod app;
pub mod candidates;
pub mod chart;
pub mod cluster_lanes;
pub mod commands;
pub mod export;
pub mod format;
pub mod gallery;
pub mod home;
pub mod inbox;
pub mod jobs;
pub mod knobs;
pub mod lanes;
pub mod life;
pub mod live;
pub mod measured;
pub mod overlay;
#[cfg(target_arch = "wasm32")]
pub mod page;
pub mod picture;
pub mod recent;
pub mod run_data;
#[cfg(not(target_arch = "wasm32"))]
pub mod site;
pub mod source;
pub mod spread;
pub mod state;
pub mod theme;
pub mod thumb;
pub mod time_view;
pub mod views;

pub use app::App;
