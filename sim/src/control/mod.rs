//! Autoscaling controllers as state machines: HPA, KEDA, the metric path before them, the Cluster Autoscaler.
//!
//! A controller is told the time, metrics and the state of pods or nodes, and answers with a decision and its reason in words
//! ("kept 3: ratio 1.07 within tolerance"). Plain data in, plain data out: no controller reaches into the simulator, reads a clock, does
//! I/O or draws a random number. So each can be tested alone, driven from a file of test vectors, and compared with the real one line by
//! line. Every knob has its real name. `docs/autoscaling.md` says what is modelled; numbers such as 4.3 below are its sections.
//!
//! - [`hpa`] the Horizontal Pod Autoscaler, autoscaling/v2 (4)
//! - [`vectors`] files of test vectors for it: `servetwin hpa check`
//! - [`keda`] KEDA's ScaledObject around it: to zero and back (5.4)
//! - [`pipeline`] the path of a metric: exporter, scrape, recording rule, adapter (4.9)
//! - [`cluster_autoscaler`] the Cluster Autoscaler: nodes for pods that wait, and nodes that are not needed (5.1)
//! - [`karpenter`] a provisioner after Karpenter: nodes by price, consolidation (5.2)
//! - [`sagemaker`] target tracking and step scaling with their CloudWatch alarms (5.5)
//! - [`scheduled`] scheduled actions: cron, rate, at
//! - [`predictive`] predictive scaling: capacity for the load of the same hour of other days
//! - [`dynamo`] the planner of NVIDIA Dynamo: its load and throughput loops
//! - [`wva`] llm-d's workload-variant autoscaler
//! - [`epp`] KEDA triggers on the endpoint picker's signals
//! - [`actuation`] llm-d's fast model actuation: which pod gets which instance, awake or asleep
//! - [`on_demand`] models that share accelerators and are loaded when they are asked for
//! - [`quantity`] Kubernetes quantities in milli-units

pub mod actuation;
pub mod cluster_autoscaler;
pub mod dynamo;
pub mod epp;
pub mod hpa;
pub mod karpenter;
pub mod keda;
pub mod on_demand;
pub mod pipeline;
pub mod predictive;
pub mod quantity;
pub mod sagemaker;
pub mod scheduled;
pub mod vectors;
pub mod wva;
