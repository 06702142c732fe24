//! The serving engines: what is said of one stands in its own file.
//!
//! An engine here is its keys in a scenario, what it tells the memory plan, how it starts up (defaults that depend on each other, what it
//! refuses, which scheduler runs), and how requests are taken in. How it schedules is its file in [`crate::policy`]. A new engine adds
//! a file in each of the two folders and a line to the list in [`params`].

mod llama_cpp;
pub mod params;
mod sglang;
pub mod start;
mod static_batch;
mod tgi;
mod tgi_neuron;
mod trt_llm;
mod vllm_v1;

pub use params::{
    CudagraphMode, EngineCommon, EngineParams, MoeBackend, VllmFrontEnd, VllmRelease, VllmV1Keys,
    memory_key,
};
pub use start::{Engine, Start, Started, Storage};
