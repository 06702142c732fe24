//! Step models that were built before: a second scenario on the same hardware, model and engine takes the first one's.
//!
//! A step model fills its tables as it is asked, and what stands in them does not depend on who asked first, so sharing changes no
//! result. Only deployments of the built-in catalog are shared: a user's own files may change between two builds.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use hwmodels::deployment::{Deployment, DeploymentSpec, deploy};
use hwmodels::error::Error;

/// Most deployments that are kept; the oldest goes first. A table takes half a megabyte at most.
const KEPT: usize = 64;

static BUILT: Mutex<VecDeque<(String, Deployment)>> = Mutex::new(VecDeque::new());

/// [`deploy`], or what it gave for an equal `spec` before.
///
/// # Errors
/// As [`deploy`].
pub(super) fn deployment(spec: &DeploymentSpec<'_>) -> Result<Deployment, Error> {
    let key = key(spec);
    let built = || BUILT.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, found)) = built().iter().find(|(k, _)| *k == key) {
        return Ok(found.clone());
    }
    let new = deploy(spec)?;
    let mut built = built();
    if built.len() >= KEPT {
        built.pop_front();
    }
    built.push_back((key, new.clone()));
    Ok(new)
}

/// All that a deployment depends on beside the catalog.
fn key(spec: &DeploymentSpec<'_>) -> String {
    let DeploymentSpec {
        catalog: _,
        instance,
        model,
        layout,
        weights,
        kv_cache,
        engine,
        overlap,
        graphs,
        max_tokens,
        profile,
        params,
        routing,
        kernels,
    } = spec;
    format!(
        "{instance:?} {model:?} {layout:?} {weights:?} {kv_cache:?} {engine:?} {overlap:?} {graphs:?} {max_tokens} {profile:?} {params:?} \
         {routing:?} {kernels:?}"
    )
}
