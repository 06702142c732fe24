//! What a black-box calibration leaves behind: a profile, and a scenario that reproduces the endpoint.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use hwmodels::fitted::{Extent, param};
use hwmodels::profile::{Param, Provenance, Validation};
use hwmodels::{Basis, BatchStats, EngineKind, Evidence, Profile};

use super::fit::Fitted;
use super::load::{Load, Pacing, Role};
use super::params::UNKNOWNS;
use super::report::{EndpointReport, FIGURES};
use super::server::{Server, Source};
use super::simulate::{Look, simulate};

/// Largest median error on held-out loads with which a profile counts as trusted [%].
pub const TOLERANCE: f64 = 10.0;

/// Width of a 90 % interval of a normal distribution in standard errors.
const INTERVAL_ERRORS: f64 = 2.0 * 1.645;

/// What a profile says of where it comes from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// Name of the profile.
    pub name: String,
    /// The command that made it.
    pub command: String,
    /// The model that the endpoint serves.
    pub model: String,
    /// The server.
    pub software: String,
    /// Whatever a user must know.
    pub notes: Vec<String>,
}

/// Adds the limits of the server that were read or inferred.
fn limits(s: &Server, params: &mut BTreeMap<String, Param>) -> Result<(), hwmodels::Error> {
    let mut limit = |name: &str, value: f64, source: Source| -> Result<(), hwmodels::Error> {
        let evidence = match source {
            Source::Read => Evidence::Measured,
            Source::Inferred => Evidence::Fitted,
            Source::AtLeast | Source::Default => return Ok(()),
        };
        params.insert(name.to_owned(), param(name, value, None, evidence)?);
        Ok(())
    };
    let switch = |on: bool| f64::from(u8::from(on));
    limit(
        "limits.max_num_seqs",
        s.max_num_seqs.value.into(),
        s.max_num_seqs.source,
    )?;
    limit(
        "limits.max_num_batched_tokens",
        s.max_num_batched_tokens.value.into(),
        s.max_num_batched_tokens.source,
    )?;
    limit(
        "limits.chunked_prefill",
        switch(s.chunked_prefill.value),
        s.chunked_prefill.source,
    )?;
    limit(
        "limits.prefix_caching",
        switch(s.prefix_caching.value),
        s.prefix_caching.source,
    )?;
    limit(
        "limits.block_size",
        s.block_size.value.into(),
        s.block_size.source,
    )?;
    limit("limits.kv_blocks", s.kv_blocks() as f64, s.kv_tokens.source)?;
    limit(
        "limits.max_model_len",
        s.max_model_len.value.into(),
        s.max_model_len.source,
    )?;
    // What these rules leave out the fit has in its step times.
    if s.kind.value == EngineKind::VllmV1 {
        params.insert(
            "limits.async_scheduling".into(),
            param("limits.async_scheduling", 0.0, None, Evidence::Fitted)?,
        );
    }
    Ok(())
}

/// How far the held-out loads were predicted.
fn validations(loads: &[Load], report: &EndpointReport) -> Vec<Validation> {
    let held: Vec<&str> = loads
        .iter()
        .filter(|l| l.role == Role::HoldOut)
        .map(|l| l.name.as_str())
        .collect();
    report.held_out_percent.map_or(Vec::new(), |errors| {
        FIGURES
            .iter()
            .zip(errors)
            .map(|((metric, _), e)| Validation {
                set: format!("held-out loads: {}", held.join("; ")),
                metric: (*metric).into(),
                n: held.len() as u64,
                median_ape: (e * 100.0).round() / 100.0,
                tolerance: TOLERANCE,
            })
            .collect()
    })
}

/// The profile of `fitted`, with its validity ranges from the steps of the fitted loads and a validation per figure from the loads held
/// out. The same loads give the same profile.
///
/// # Errors
/// A fitted value outside the bounds of its parameter.
pub fn profile(
    loads: &[Load],
    fitted: &Fitted,
    report: &EndpointReport,
    origin: &Origin,
) -> Result<Profile, hwmodels::Error> {
    let mut params = BTreeMap::new();
    for (i, u) in UNKNOWNS.iter().enumerate() {
        if fitted.params.vanishes(i) {
            continue;
        }
        let error = fitted.intervals[i].map(|[a, b]| (b - a) / INTERVAL_ERRORS);
        let entry = param(u.name, fitted.params.0[i], error, Evidence::Fitted)?;
        params.insert(u.name.to_owned(), entry);
    }
    let s = &fitted.server;
    limits(s, &mut params)?;
    let mut batches: Vec<BatchStats> = Vec::new();
    let mut rows = 0;
    for load in loads.iter().filter(|l| l.role == Role::Fit) {
        rows += load.requests.len() as u64;
        let look = Look {
            steps: true,
            ..Look::default()
        };
        if let Some(p) = simulate(load, s, &fitted.params, look) {
            batches.extend(p.steps.iter().map(|r| r.stats));
        }
    }
    let mut profile = Profile {
        name: origin.name.clone(),
        accelerator: "*".into(),
        description: format!(
            "{} as its clients see it, fitted on requests alone",
            if origin.model.is_empty() {
                "an endpoint"
            } else {
                &origin.model
            }
        ),
        provenance: Provenance {
            command: origin.command.clone(),
            fitted_on: loads
                .iter()
                .filter(|l| l.role == Role::Fit)
                .map(|l| format!("{} ({} requests)", l.name, l.requests.len()))
                .collect(),
            software: vec![origin.software.clone()],
            rows,
            notes: origin.notes.clone(),
        },
        validity: Extent::ranges_of(&batches),
        validations: validations(loads, report),
        measured_on: BTreeMap::new(),
        basis: Some(Basis {
            engine: s.kind.value,
            model: origin.model.clone(),
            ..Basis::default()
        }),
        params,
    };
    if let Some(drift) = &fitted.drift {
        drift.put_into(&mut profile)?;
    }
    Ok(profile)
}

/// A scenario that runs on `profile_file`: the endpoint with one of the measured loads.
pub fn scenario(loads: &[Load], fitted: &Fitted, origin: &Origin, profile_file: &str) -> String {
    let mut t = String::new();
    let quoted = |s: &str| toml::Value::String(s.to_owned()).to_string();
    let _ = writeln!(
        t,
        "# {}: the endpoint as it was calibrated, with one of the loads it was measured with.",
        origin.name
    );
    let _ = writeln!(t, "# Made by: {}", origin.command);
    for (what, source) in [
        ("max_num_seqs", fitted.server.max_num_seqs.source),
        ("KV capacity", fitted.server.kv_tokens.source),
        ("token budget", fitted.server.max_num_batched_tokens.source),
    ] {
        if matches!(source, Source::AtLeast | Source::Default) {
            let _ = writeln!(
                t,
                "# The loads did not reach the endpoint's {what}: set it if you know it."
            );
        }
    }
    let _ = writeln!(
        t,
        "description = {}",
        quoted(&format!("{} as calibrated", origin.name))
    );
    let _ = writeln!(t, "\n[hardware]\nstep_profile = {}", quoted(profile_file));
    let _ = writeln!(t, "\n[engine]");
    for (key, value) in fitted.server.scenario_keys() {
        let _ = writeln!(t, "{key} = {value}");
    }
    let Some(load) = loads
        .iter()
        .find(|l| l.role == Role::HoldOut)
        .or(loads.first())
    else {
        return t;
    };
    let range = |f: &dyn Fn(&super::load::Request) -> u32| {
        let values = || load.requests.iter().map(f);
        let (low, high) = (values().min().unwrap_or(1), values().max().unwrap_or(1));
        if low == high {
            low.to_string()
        } else {
            format!("{{ kind = \"uniform\", min = {low}, max = {high} }}")
        }
    };
    let arrival = match load.pacing {
        Pacing::Users => format!(
            "{{ kind = \"closed\", concurrency = {} }}",
            load.most_in_flight()
        ),
        Pacing::Schedule => {
            let sends = load.requests.last().map_or(0.0, |r| r.sent) - load.requests[0].sent;
            let rate = (load.requests.len() - 1).max(1) as f64 / sends.max(1e-3);
            format!("{{ kind = \"poisson\", rate = \"{rate:.4} req/s\" }}")
        }
    };
    let _ = writeln!(t, "\n# {}\n[[workload]]", load.name);
    let _ = writeln!(t, "arrival = {arrival}");
    let _ = writeln!(t, "prompt = {}", range(&|r| r.prompt));
    let _ = writeln!(t, "output = {}", range(&|r| r.output));
    let _ = writeln!(t, "\n[run]\nrequests = {}", load.requests.len().max(200));
    t
}
