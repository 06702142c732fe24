//! Scenarios on a fitted step model: step times, host delays and the engine's limits from a profile.

use std::collections::BTreeMap;
use std::sync::Arc;

use hwmodels::catalog::Catalog;
use hwmodels::error::Error;
use hwmodels::fitted::{Extent, FittedStep, Limits, Target, laid_over};
use hwmodels::{Basis, Profile, profiles};

use super::built::{Built, Hardware, replicas_in_words, uncertain};
use super::error::ScenarioError;
use super::{FittedChoice, Scenario};
use crate::cluster::drift::{SpeedDrift, Swing};
use crate::engines::{EngineParams, Start, Started};
use crate::kernel::time::SimDuration;
use crate::record::{MeasuredError, ProfileUse};
use crate::simulation::FrontEnd;
use crate::workload::spec::MAX_TOKENS;

/// Keys of `[engine]` that have a default and that a profile may set in its place.
pub(super) const PROFILE_KEYS: [&str; 3] = [
    "block_size",
    "enable_prefix_caching",
    "enable_chunked_prefill",
];

/// How the speed of a machine drifts, as `profile` has it.
fn drift(profile: &Profile) -> Option<SpeedDrift> {
    let swing = |ratio, time| Swing {
        ratio: profile.get(ratio, 0.0),
        time: SimDuration::from_secs(profile.get(time, 0.0)),
    };
    let swings = [
        swing("noise.drift_ratio", "noise.drift_s"),
        swing("noise.burst_ratio", "noise.burst_s"),
    ];
    (swings.iter().any(|s| s.ratio > 0.0)).then_some(SpeedDrift { swings, machine: 0 })
}

/// The model that is served, as far as it is known.
struct Served {
    name: String,
    /// Longest sequence [tokens].
    tokens: u32,
    /// KV of a token, undivided [bytes]; 0: not known.
    kv_bytes_per_token: f64,
}

impl Scenario {
    /// Reads the profile that the scenario names, with the scenario's parameters laid over it.
    ///
    /// # Errors
    /// A file that cannot be read or is no fitted step model, and parameters that it cannot have.
    pub(super) fn step_profile(&self, fitted: &FittedChoice) -> Result<Profile, ScenarioError> {
        let path = self.base.join(&fitted.profile);
        let profile = profiles::load(&*self.files, &path)
            .and_then(|p| hwmodels::fitted::check(&p).map(|()| p))
            .map_err(|e| self.places.error("hardware.step_profile", e.to_string()))?;
        laid_over(&profile, &fitted.params)
            .map_err(|e| self.places.error("hardware.params", e.to_string()))
    }

    /// Makes the simulation with `profile` as its step model, whatever hardware the scenario names. Limits of the engine that
    /// the scenario leaves out are the profile's.
    ///
    /// # Errors
    /// A profile that is no fitted step model or cannot be scaled to the scenario's layout; otherwise as
    /// [`Scenario::build`].
    pub fn build_with(&self, profile: &Profile) -> Result<Built, ScenarioError> {
        let limited = self.within(profile);
        let (started, hardware) = limited.on_fitted(profile)?;
        limited.assemble(started, hardware, None)
    }

    /// The scenario with the limits of `profile` where it has none of its own.
    fn within(&self, profile: &Profile) -> Scenario {
        let limits = Limits::of(profile);
        let mut s = self.clone();
        let written = |key: &str| self.places.has(&format!("engine.{key}"));
        s.engine.common.kv_blocks = s.engine.common.kv_blocks.or(limits.kv_blocks);
        if let EngineParams::VllmV1(p) = &mut s.engine.params {
            p.max_num_seqs = p.max_num_seqs.or(limits.max_num_seqs);
            p.max_num_batched_tokens = p.max_num_batched_tokens.or(limits.max_num_batched_tokens);
            p.max_model_len = p.max_model_len.or(limits.max_model_len);
            p.max_num_queued_reqs = p.max_num_queued_reqs.or(limits.max_num_queued_reqs);
            if s.layout.pp == 1 {
                p.async_scheduling = p.async_scheduling.or(limits.async_scheduling);
            }
            if let Some(n) = limits.block_size
                && !written(PROFILE_KEYS[0])
            {
                p.block_size = n;
            }
            if let Some(on) = limits.prefix_caching
                && !written(PROFILE_KEYS[1])
            {
                p.enable_prefix_caching = on;
            }
            if let Some(on) = limits.chunked_prefill
                && !written(PROFILE_KEYS[2])
            {
                p.enable_chunked_prefill = on;
            }
        }
        s
    }

    /// What the profile is asked to predict, and the model that is served.
    fn fitted_target(
        &self,
        profile: &Profile,
        basis: &Basis,
    ) -> Result<(Target, Served), ScenarioError> {
        let mut target = Target {
            tp: self.layout.tp,
            pp: self.layout.pp,
            replicas: self.replicas,
            ..Target::of(profile)
        };
        let Some(model) = &self.model else {
            let served = Served {
                name: basis.model.clone(),
                tokens: MAX_TOKENS,
                kv_bytes_per_token: 0.0,
            };
            return Ok((target, served));
        };
        let at = |path: &'static str| move |e: Error| self.places.error(path, e.to_string());
        let mut catalog = Catalog::builtin();
        let name = self.add_model(model, &mut catalog)?;
        let arch = &catalog.model_entry(&name).map_err(at("model.name"))?.arch;
        self.layout
            .check(arch, self.engine.params.kind())
            .map_err(|e| self.places.error("layout", e.to_string()))?;
        if basis.layers > 0 && (basis.layers, basis.hidden) != (arch.layers, arch.hidden) {
            return Err(self.places.error(
                "model",
                format!(
                    "{} has {} layers of {}, but profile `{}` was fitted on a model with {} of {}: its step times \
                     hold for that model alone",
                    arch.name, arch.layers, arch.hidden, profile.name, basis.layers, basis.hidden
                ),
            ));
        }
        (target.layers, target.hidden) = (arch.layers, arch.hidden);
        let served = Served {
            name: arch.name.clone(),
            tokens: arch.max_positions,
            kv_bytes_per_token: arch.kv_bytes_per_token(model.kv_cache),
        };
        Ok((target, served))
    }

    /// Where the scenario's engine is another than the one that was fitted.
    fn differences(&self, profile: &Profile, basis: &Basis) -> Vec<String> {
        let kind = self.engine.params.kind();
        let mut warnings = Vec::new();
        if basis.engine != kind {
            warnings.push(format!(
                "profile `{}` was fitted on {}, this is {kind}: step times may differ",
                profile.name, basis.engine
            ));
        }
        if let (EngineParams::LlamaCpp(p), Some(slots)) =
            (&self.engine.params, Limits::of(profile).max_num_seqs)
            && p.n_parallel != slots
        {
            warnings.push(format!(
                "profile `{}` was fitted on a server with {slots} slots, n_parallel is {}: other passes make up a step, and \
                 what they cost is extrapolated; fit at {} slots to be sure",
                profile.name, p.n_parallel, p.n_parallel
            ));
        }
        warnings
    }

    fn on_fitted(&self, profile: &Profile) -> Result<(Started, Hardware), ScenarioError> {
        let kind = self.engine.params.kind();
        let basis = profile.basis.clone().unwrap_or_default();
        if self.layout.dp > 1 {
            return Err(self.places.error(
                "layout.dp",
                "a step profile knows one rank, not what data-parallel ranks share: set layout.dp = 1",
            ));
        }
        if self.engine.common.kv_blocks.is_none() {
            return Err(self.places.error(
                "engine",
                format!(
                    "a step profile has no memory plan: give engine.kv_blocks, or limits.kv_blocks in profile `{}`",
                    profile.name
                ),
            ));
        }
        let (target, served) = self.fitted_target(profile, &basis)?;
        let extent = Arc::new(Extent::new(profile));
        let step = FittedStep::new(profile, &target)
            .map_err(|e| self.places.error("hardware.step_profile", e.to_string()))?
            .watched(extent.clone());
        let mut warnings = step.warnings().to_vec();
        warnings.extend(self.differences(profile, &basis));
        let started = self.start(&Start {
            model_tokens: served.tokens,
            kv_bytes_per_token: served.kv_bytes_per_token,
            ..self.start_of(None)
        })?;
        let replicas = f64::from(self.replicas);
        let price = self.fitted.as_ref().and_then(|f| f.price);
        let resolved = profiles::describe(profile);
        // Another engine, layout or parameter is not what was held against measurements.
        let validated = basis.engine == kind
            && (basis.tp, basis.pp) == (self.layout.tp, self.layout.pp)
            && self.fitted.as_ref().is_none_or(|f| f.params.is_empty());
        let delay = |name: &str| SimDuration::from_secs(profile.get(name, 0.0));
        let hardware = Hardware {
            step: Arc::new(step),
            extent: Some(extent),
            drift: drift(profile),
            one_machine: basis.cores > 0,
            input_delay: delay("host.request_in_s"),
            front_end: FrontEnd {
                per_prompt_token: delay("host.prompt_token_in_s"),
                ..FrontEnd::default()
            },
            output_delay: delay("host.token_out_s"),
            devices: self.layout.devices(),
            // Replicas on shared cores share the machine.
            usd_per_hour: price
                .map(|p| p.usd_per_hour() * if basis.cores > 0 { 1.0 } else { replicas }),
            deployment: format!(
                "{}fitted profile `{}`, {kind}, {}, {}",
                if served.name.is_empty() {
                    String::new()
                } else {
                    format!("{}, ", served.name)
                },
                profile.name,
                self.layout,
                replicas_in_words(self.replicas)
            ),
            replica_name: profile.name.clone(),
            profiles: vec![ProfileUse {
                name: profile.name.clone(),
                trusted: profile.trusted(),
                note: resolved,
            }],
            like: None,
            accuracy: if validated {
                let runs = profile.validations.iter();
                runs.map(MeasuredError::from).collect()
            } else {
                Vec::new()
            },
            warnings,
            site: None,
            uncertain: match &self.fitted {
                Some(f) => uncertain(profile, &f.params),
                None => uncertain(profile, &BTreeMap::new()),
            },
        };
        Ok((started, hardware))
    }
}
