//! The cluster around the replicas: nodes, pods, autoscalers, faults, as one agenda of events that a run plays.
//!
//! ```text
//!  exporters --scrape--> metric path --> HPA / KEDA --replicas wanted--> pods --no room--> Cluster Autoscaler --> nodes
//!      ^                                                                  |                                        |
//!      |                                                                  +-------------- placement <-------------+
//!   engines <------------------- start, drain, kill -----------------------+
//! ```
//!
//! A run asks [`Cluster::next`] when something happens here next, advances its replicas to there, and calls [`Cluster::act`] once for each
//! event of the instant; what becomes of engines comes back as an [`Order`]. Events of one instant come in the order of their class
//! (`event::Event::class`), then in that in which they were set up. Every draw has a name of its own (`boot/3`), so that two settings of an
//! autoscaler see the same boots and the same failures.

mod actuation;
mod cluster;
mod controllers;
pub mod delay;
mod deployment;
mod endpoint;
mod event;
mod faults;
mod flows;
mod karpenter;
mod links;
mod loads;
mod node;
mod nodes;
mod on_demand;
mod placing;
mod planner;
mod pod;
mod pods;
mod provisioner;
pub mod record;
mod rollout;
mod saturation;
mod scale;
mod scalers;
mod seen;
mod shared_models;
mod sight;
mod sleepers;
pub mod slow;
pub mod spec;
mod unit;

pub use cluster::Cluster;
pub use provisioner::FIRST_CLAIM;
pub use sight::{LinkShares, Order, Sight, Totals, Traffic, Vitals};
