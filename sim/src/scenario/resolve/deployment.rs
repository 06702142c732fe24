//! Model, hardware, step times and layout.

use std::collections::BTreeMap;

use hwmodels::{EngineKind, Layout};

use super::super::document::join;
use super::super::file::{HardwareFile, LayoutFile, ModelFile, StepFile};
use super::super::{
    ConstantStep, FittedChoice, HardwareChoice, Machine, ModelChoice, ModelSource, OWN_MACHINE,
};
use super::{Checker, Result};

/// Most devices along one axis of a layout.
const MAX_RANKS: u32 = 4096;

impl Checker<'_, '_> {
    pub(super) fn step(&self, s: &StepFile) -> Result<ConstantStep> {
        let step = ConstantStep {
            base: self.secs_or(s.base, 0.0, "step.base")?,
            per_token: self.secs_or(s.per_token, 0.0, "step.per_token")?,
            per_context_token: self.secs_or(s.per_context_token, 0.0, "step.per_context_token")?,
            per_pair: self.secs_or(s.per_pair, 0.0, "step.per_pair")?,
        };
        // A step that takes no time would let a run go on for ever at one instant.
        if step.base.secs() < 1e-9 && step.per_token.secs() < 1e-9 {
            return self.fail(
                "step",
                "a step must take time: give base or per_token of at least 1 ns",
            );
        }
        Ok(step)
    }

    pub(super) fn model(&self, m: &ModelFile) -> Result<ModelChoice> {
        let source = match (&m.name, &m.config) {
            (Some(name), None) => ModelSource::Catalog(self.text(name.clone(), "model.name")?),
            (None, Some(config)) => ModelSource::Config(self.path(config, "model.config")?),
            (Some(_), Some(_)) => {
                return self.fail("model", "give `name` or `config`, not both");
            }
            (None, None) => {
                return self.fail(
                    "model",
                    "`name` is missing; write e.g. name = \"llama-2-7b\"",
                );
            }
        };
        let kv_cache = m.kv_cache.unwrap_or(hwmodels::Dtype::Bf16);
        if matches!(kv_cache, hwmodels::Dtype::Int4 | hwmodels::Dtype::Mxfp4) {
            return self.fail(
                "model.kv_cache",
                "4-bit formats hold weights only; use bf16, fp8 or int8",
            );
        }
        let expert_skew = m.expert_skew.unwrap_or(0.0);
        Ok(ModelChoice {
            expert_skew: self.number(expert_skew, 0.0, 3.0, "model.expert_skew")?,
            source,
            weights: m.weights,
            kv_cache,
        })
    }

    pub(super) fn hardware(&self, h: &HardwareFile) -> Result<HardwareChoice> {
        if let Some(date) = &h.price_date {
            let digits = |r: std::ops::Range<usize>| {
                date.get(r)
                    .is_some_and(|s| s.bytes().all(|b| b.is_ascii_digit()))
            };
            let shaped = date.len() == 10
                && digits(0..4)
                && digits(5..7)
                && digits(8..10)
                && date.as_bytes()[4] == b'-'
                && date.as_bytes()[7] == b'-';
            if !shaped {
                return self.fail(
                    "hardware.price_date",
                    format!("must be a date like \"2026-07-20\", got \"{date}\""),
                );
            }
        }
        let machine = self.machine(h)?;
        let instance = match &machine {
            Some(_) => OWN_MACHINE.to_owned(),
            None => self.text(
                self.need(&h.instance, "hardware", "instance", "\"g5.2xlarge\"")?,
                "hardware.instance",
            )?,
        };
        Ok(HardwareChoice {
            instance,
            machine,
            mig: (h.mig.clone())
                .map(|p| self.text(p, "hardware.mig"))
                .transpose()?,
            price_date: h.price_date.clone(),
            price: h.price,
            profile: self.text(
                h.profile.clone().unwrap_or("auto".into()),
                "hardware.profile",
            )?,
            params: self.profile_params(h)?,
            catalog: h
                .catalog
                .as_ref()
                .map(|c| self.path(c, "hardware.catalog"))
                .transpose()?,
        })
    }

    /// The machine of one's own, where `accelerator` gives one.
    fn machine(&self, h: &HardwareFile) -> Result<Option<Machine>> {
        let Some(accelerator) = &h.accelerator else {
            if h.count.is_some() {
                return self.fail(
                    "hardware.count",
                    "counts the devices of `accelerator`, which is missing; an instance type has its own number",
                );
            }
            if h.host_path.is_some() {
                return self.fail(
                    "hardware.host_path",
                    "is of a machine that `accelerator` describes, which is missing; an instance type has its own",
                );
            }
            return Ok(None);
        };
        for (key, given) in [
            ("instance", h.instance.is_some()),
            ("price_date", h.price_date.is_some()),
        ] {
            if given {
                return self.fail(
                    &join("hardware", key),
                    "does not go together with accelerator, which describes a machine that is in no catalog",
                );
            }
        }
        Ok(Some(Machine {
            accelerator: self.text(accelerator.clone(), "hardware.accelerator")?,
            count: self.whole(h.count.unwrap_or(1), 1, 1024, "hardware.count")?,
            host_path: h.host_path,
        }))
    }

    pub(super) fn fitted(&self, h: &HardwareFile) -> Result<Option<FittedChoice>> {
        let Some(profile) = &h.step_profile else {
            return Ok(None);
        };
        for (key, given) in [
            ("instance", h.instance.is_some()),
            ("accelerator", h.accelerator.is_some()),
            ("count", h.count.is_some()),
            ("host_path", h.host_path.is_some()),
            ("price_date", h.price_date.is_some()),
            ("profile", h.profile.is_some()),
            ("catalog", h.catalog.is_some()),
        ] {
            if given {
                return self.fail(
                    &join("hardware", key),
                    "does not go together with step_profile, which needs no hardware from the catalog",
                );
            }
        }
        Ok(Some(FittedChoice {
            profile: self.path(profile, "hardware.step_profile")?,
            params: self.profile_params(h)?,
            price: h.price,
        }))
    }

    fn profile_params(&self, h: &HardwareFile) -> Result<BTreeMap<String, f64>> {
        let params = h.params.clone().unwrap_or_default();
        for (name, value) in &params {
            if !value.is_finite() {
                return self.fail(
                    "hardware.params",
                    format!("{name}: must be a finite number, got {value}"),
                );
            }
        }
        Ok(params)
    }

    pub(super) fn layout(&self, l: &LayoutFile, engine: EngineKind) -> Result<Layout> {
        let layout = Layout {
            tp: self.whole(l.tp.unwrap_or(1), 1, MAX_RANKS, "layout.tp")?,
            pp: self.whole(l.pp.unwrap_or(1), 1, MAX_RANKS, "layout.pp")?,
            dp: self.whole(l.dp.unwrap_or(1), 1, MAX_RANKS, "layout.dp")?,
            ep: self.whole(l.ep.unwrap_or(1), 1, MAX_RANKS, "layout.ep")?,
        };
        if let Err(message) = layout.check_attention_ranks(engine) {
            return self.fail("layout.dp", message);
        }
        if let Err(message) = layout.check_stages(engine) {
            return self.fail("layout.pp", message);
        }
        let ranks = layout.stage_ranks();
        let whose = if layout.dp > 1 { "dp x tp" } else { "tp" };
        // TensorRT-LLM splits experts both ways (`moe_tensor_parallel_size` x `moe_expert_parallel_size`); vLLM has one switch.
        let wrong = match engine {
            EngineKind::TrtLlm if !ranks.is_multiple_of(layout.ep) => "must divide",
            EngineKind::TrtLlm => "",
            _ if layout.ep != 1 && layout.ep != ranks => "must be 1 or equal to",
            _ => "",
        };
        if !wrong.is_empty() {
            return self.fail(
                "layout.ep",
                format!("{wrong} {whose} ({ranks}), got {}", layout.ep),
            );
        }
        Ok(layout)
    }
}
