//! The cluster: a gateway with a router in front of replicas, and the order in which things happen.
//!
//! Things that happen at the same instant happen in this order, each class until nothing of it is left; a class that brings
//! up an earlier one (a response that makes a closed-loop client send again) goes back to it:
//!
//! | class | what | why there |
//! |---|---|---|
//! | 0 | steps complete, lowest replica first, requests of a step in the order of the step | KV and seats are free for whatever comes now |
//! | 0a | KV transfers end, in the order in which they began | what they freed and brought is there for whatever comes now |
//! | 1 | responses reach their clients | an answer at the deadline is in time |
//! | 2 | clients give up | they make no room for a step that starts now only if this came later |
//! | 2a | planned changes of the fleet: replicas come, are ready, drain, die | the router sees the fleet as it then is |
//! | 2b | what happens in the cluster around the replicas ([`crate::kube`]), in the order below | controllers see the fleet and the counters as they then are |
//! | 3 | ejected replicas come back; what is prefilled is sent on, what has failed is sent again, clients send; the router decides | it sees everything above |
//! | 4 | requests reach their engines | they can be in a step that starts now |
//! | 5 | steps start, lowest replica first | each sees all that happened by now |
//! | 6 | KV transfers begin for which blocks were set aside | a step that is chosen sets them aside |
//!
//! Within class 2b: operators' changes; faults; nodes (refused, Ready, usable, evicted, gone); pods (container started, weights loaded,
//! engine up, ready, loss noticed); grace periods that end; draining replicas looked at; exporters and scrapes; KEDA polls; HPA reconciles;
//! Cluster Autoscaler scans. After each of them the Deployment or LeaderWorkerSet creates or removes replicas, the scheduler places pods,
//! and engines are started, drained or killed before the next.
//!
//! Within classes 1, 2 and 4 the replicas come in the order of their index, and what happens at one replica in that in which it was set
//! up; within 2a it is the order of planning, within 3 the workload's.

pub mod drift;
pub mod engine;
pub mod events;
pub mod gateway;
pub mod link;
pub mod pools;
pub mod replica;
pub mod requests;
pub mod router;
pub mod stepped;
pub mod surroundings;
