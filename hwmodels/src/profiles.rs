//! The profiles that ship with the crate, and which of them apply to a deployment.
//!
//! A profile file names the accelerators it holds for (separated by commas), or `*` for one about software. Everything that matches is
//! laid over the priors in the order of the file names, so that a later, more specific file wins. Where an accelerator is the same chip as another
//! (H200 and H100), that one's kernel profiles hold too, beneath its own and as extrapolated: their parameters are shares of peaks and times of the chip.

use std::path::Path;
use std::sync::OnceLock;

use crate::engine::EngineKind;
use crate::error::{Error, nearest};
use crate::evidence::Evidence;
use crate::files::{self, Files};
use crate::packed::{self, Packed};
use crate::profile::Profile;
use crate::recurrence::Rule;
use crate::units::plain;

/// Embedded profile files, in the order in which they are laid over each other.
const FILES: [&str; 23] = [
    "profiles/a100-sxm.operators.toml",
    "profiles/h100-sxm.operators.toml",
    "profiles/a100-sxm.sglang.kernels.toml",
    "profiles/a100-sxm.trtllm.kernels.toml",
    "profiles/a100-sxm.vllm.kernels.toml",
    "profiles/b200-sxm.sglang.kernels.toml",
    "profiles/b200-sxm.trtllm.kernels.toml",
    "profiles/b200-sxm.vllm.kernels.toml",
    "profiles/h100-sxm.sglang.kernels.toml",
    "profiles/h100-sxm.trtllm.kernels.toml",
    "profiles/h100-sxm.vllm.kernels.toml",
    "profiles/h200-sxm.sglang.kernels.toml",
    "profiles/h200-sxm.trtllm.kernels.toml",
    "profiles/h200-sxm.vllm.kernels.toml",
    "profiles/l40s.sglang.kernels.toml",
    "profiles/l40s.trtllm.kernels.toml",
    "profiles/l40s.vllm.kernels.toml",
    "profiles/a10g.toml",
    "profiles/inferentia2.toml",
    "profiles/rtx4090.toml",
    "profiles/tgi.toml",
    "profiles/tgi-neuron.toml",
    "profiles/vllm.toml",
];

/// Embedded profiles of the kernels of layers that keep a state: they hold for models that have such layers.
const STATE_FILES: [&str; 13] = [
    "profiles/a100-sxm.sglang.states.toml",
    "profiles/b200-sxm.sglang.states.toml",
    "profiles/b200-sxm.trtllm.states.toml",
    "profiles/b200-sxm.vllm.states.toml",
    "profiles/h100-sxm.sglang.states.toml",
    "profiles/h100-sxm.trtllm.states.toml",
    "profiles/h100-sxm.vllm.states.toml",
    "profiles/h200-sxm.sglang.states.toml",
    "profiles/h200-sxm.trtllm.states.toml",
    "profiles/h200-sxm.vllm.states.toml",
    "profiles/l40s.sglang.states.toml",
    "profiles/l40s.trtllm.states.toml",
    "profiles/l40s.vllm.states.toml",
];

/// Largest profile that is read [bytes].
const MAX_FILE_BYTES: u64 = 64 << 20;

/// Which profile a scenario asks for.
#[derive(Clone, Debug, PartialEq)]
pub enum Choice {
    /// Every built-in profile that matches the accelerator.
    Auto,
    /// None: datasheets and priors only.
    Analytic,
    /// The built-in matches, then this built-in profile.
    Named(String),
    /// The built-in matches, then this one of a file.
    Own(Box<Profile>),
}

impl Choice {
    /// As scenario files write it: `auto`, `analytic`, or a built-in name.
    pub fn parse(text: &str) -> Choice {
        match text {
            "auto" => Choice::Auto,
            "analytic" => Choice::Analytic,
            other => Choice::Named(other.to_owned()),
        }
    }
}

/// One profile in use.
#[derive(Clone, Debug, PartialEq)]
pub struct Used {
    /// Its name.
    pub name: String,
    /// Whether a validation on data that was not fitted has passed.
    pub trusted: bool,
    /// Whether it was measured on the accelerator itself, not on a relative and not on software alone.
    pub of_chip: bool,
    /// What it is, with its errors on rows that were not fitted.
    pub description: String,
}

/// The profiles of a deployment, merged.
#[derive(Clone, Debug, PartialEq)]
pub struct Resolved {
    /// All parameters, later profiles over earlier ones.
    pub profile: Profile,
    /// What they come from.
    pub used: Vec<Used>,
}

impl Resolved {
    /// True if there is at least one profile and every one of them is trusted.
    pub fn trusted(&self) -> bool {
        !self.used.is_empty() && self.used.iter().all(|u| u.trusted)
    }

    /// Lays `p`, which was fitted on `relative`, beneath what is known of this accelerator itself.
    /// Where `own` surfaces of this accelerator lie over it, it is their basis and no guess.
    fn carry_over(&mut self, p: &Profile, relative: &str, own: bool) {
        let mut carried = p.clone();
        for param in carried.params.values_mut() {
            param.evidence = Evidence::Extrapolated;
        }
        self.lay_over(&carried);
        if let Some(used) = self.used.last_mut() {
            used.trusted &= own;
            used.of_chip = own;
            used.description = format!(
                "carried over from {relative}, the same chip: {}",
                used.description
            );
        }
    }

    /// The same with what is known of the kernels of layers that keep a state by `rule`, on the accelerator itself or on `relative` with the same chip. Where
    /// nothing is used, nothing is added; what a profile of the user's says of such kernels stands.
    pub fn with_states(
        mut self,
        rule: Rule,
        relative: Option<&str>,
        engine: EngineKind,
    ) -> Resolved {
        if self.used.is_empty() {
            return self;
        }
        let own = self.profile.accelerator.clone();
        for chip in [Some(own.as_str()), relative].into_iter().flatten() {
            let found = (shipped_states().iter()).find(|s| s.packed.applies(chip, engine));
            let Some(p) = found.and_then(|s| of_rule(s.profile(), rule)) else {
                continue;
            };
            let given = self.profile.surfaces.clone();
            if chip == own {
                self.lay_over(&p);
            } else {
                self.carry_over(&p, chip, false);
            }
            self.profile.surfaces.extend(given);
            break;
        }
        self
    }

    fn lay_over(&mut self, p: &Profile) {
        self.used.push(Used {
            name: p.name.clone(),
            trusted: p.trusted(),
            of_chip: !matches!(p.accelerator.as_str(), "" | "*" | "any"),
            description: describe(p),
        });
        self.profile
            .params
            .extend(p.params.iter().map(|(k, v)| (k.clone(), v.clone())));
        self.profile
            .validity
            .extend(p.validity.iter().map(|(k, v)| (k.clone(), *v)));
        self.profile
            .surfaces
            .extend(p.surfaces.iter().map(|(k, v)| (k.clone(), v.clone())));
        self.profile
            .shapes
            .extend(p.shapes.iter().map(|(k, v)| (k.clone(), v.clone())));
        for v in &p.validations {
            // Profiles fitted together carry the same validations.
            if !self.profile.validations.contains(v) {
                self.profile.validations.push(v.clone());
            }
        }
        let measured_on = p.measured_on.iter().map(|(k, v)| (k.clone(), v.clone()));
        self.profile.measured_on.extend(measured_on);
    }
}

/// What `p` says of the kernels of layers that keep a state by `rule`; `None`: nothing.
fn of_rule(p: &Profile, rule: Rule) -> Option<Profile> {
    let prefix = format!("{}_", rule.surfaces());
    let mut p = p.clone();
    p.surfaces.retain(|name, _| name.starts_with(&prefix));
    let named = format!(" {prefix}");
    p.validations.retain(|v| v.set.contains(&named));
    (!p.surfaces.is_empty()).then_some(p)
}

/// Most validations that a description names.
const NAMED_VALIDATIONS: usize = 4;

/// What `p` is, and how far predictions with it were from what was measured, on rows that were not fitted.
pub fn describe(p: &Profile) -> String {
    let errors: Vec<String> = p
        .validations
        .iter()
        .take(NAMED_VALIDATIONS)
        .map(|v| format!("{} {} {:.1} % (n {})", v.set, v.metric, v.median_ape, v.n))
        .collect();
    let more = match p.validations.len().saturating_sub(NAMED_VALIDATIONS) {
        0 => String::new(),
        n => format!(" and {n} more"),
    };
    if errors.is_empty() {
        return p.description.clone();
    }
    format!(
        "{}; median error where nothing was fitted: {}{more}",
        p.description,
        errors.join(", ")
    )
}

/// An embedded profile, unpacked when it is first asked for.
struct Shipped {
    packed: &'static Packed,
    unpacked: OnceLock<Profile>,
}

impl Shipped {
    fn all(files: &[&str]) -> Vec<Shipped> {
        let shipped = |file: &&str| Shipped {
            packed: packed::find(file),
            unpacked: OnceLock::new(),
        };
        files.iter().map(shipped).collect()
    }

    fn profile(&self) -> &Profile {
        self.unpacked.get_or_init(|| self.packed.read())
    }
}

fn shipped() -> &'static [Shipped] {
    static ALL: OnceLock<Vec<Shipped>> = OnceLock::new();
    ALL.get_or_init(|| Shipped::all(&FILES))
}

fn shipped_states() -> &'static [Shipped] {
    static ALL: OnceLock<Vec<Shipped>> = OnceLock::new();
    ALL.get_or_init(|| Shipped::all(&STATE_FILES))
}

/// The built-in profiles.
pub fn builtin() -> impl Iterator<Item = &'static Profile> {
    shipped().iter().map(Shipped::profile)
}

/// Those of layers that keep a state ([`Resolved::with_states`]).
pub fn states() -> impl Iterator<Item = &'static Profile> {
    shipped_states().iter().map(Shipped::profile)
}

/// Names of the built-in profiles.
pub fn names() -> impl Iterator<Item = &'static str> {
    shipped().iter().map(|s| s.packed.name)
}

/// Finds the profiles for `accelerator` (catalog name) under `engine`; `relative` is an accelerator with the same chip.
///
/// # Errors
/// An unknown name, or a file that cannot be read or parsed, or whose parameters leave their physical bounds.
pub fn resolve(
    accelerator: &str,
    relative: Option<&str>,
    engine: EngineKind,
    choice: &Choice,
) -> Result<Resolved, Error> {
    let mut resolved = Resolved {
        profile: Profile {
            accelerator: accelerator.to_owned(),
            ..Profile::default()
        },
        used: Vec::new(),
    };
    if *choice == Choice::Analytic {
        return Ok(resolved);
    }
    let all = shipped();
    let applies = |s: &Shipped| s.packed.applies(accelerator, engine);
    if let Some(relative) = relative {
        let carried = |s: &&Shipped| s.packed.applies(relative, engine) && !applies(s);
        let own = all.iter().any(|s| s.packed.has_surfaces && applies(s));
        for s in all.iter().filter(carried) {
            // Own surfaces lie over the formulas as they were fitted; another's have nothing to add then.
            if !own || !s.packed.has_surfaces {
                resolved.carry_over(s.profile(), relative, own);
            }
        }
    }
    for s in all.iter().filter(|s| applies(s)) {
        resolved.lay_over(s.profile());
    }
    if let Choice::Own(profile) = choice {
        // What the built-in profiles were validated with is no longer what runs.
        resolved.profile.validations.clear();
        resolved.lay_over(profile);
    }
    if let Choice::Named(name) = choice {
        if let Some(s) = all.iter().find(|s| s.packed.name == name) {
            resolved.lay_over(s.profile());
        } else {
            return Err(Error::Unknown {
                kind: "profile",
                name: name.clone(),
                nearest: nearest(name, names()),
            });
        }
    }
    Ok(resolved)
}

/// Reads a profile file and checks that every parameter is finite and within its bounds.
///
/// # Errors
/// The file cannot be read, is not a profile, or holds a value outside its physical bounds.
pub fn load(files: &dyn Files, path: &Path) -> Result<Profile, Error> {
    let text = files::read_text(files, path, MAX_FILE_BYTES).map_err(|e| Error::Io {
        path: path.to_owned(),
        message: e.to_string(),
    })?;
    let bad = |message: String| Error::File {
        file: path.display().to_string(),
        message,
    };
    let profile: Profile = toml::from_str(&text).map_err(|e| bad(e.to_string()))?;
    check(&profile).map_err(bad)?;
    Ok(profile)
}

/// Checks that every parameter is finite and within its physical bounds.
fn check(profile: &Profile) -> Result<(), String> {
    for (name, surface) in &profile.surfaces {
        (surface.grid()).map_err(|e| format!("surfaces.\"{name}\": {e}"))?;
    }
    for (name, shapes) in &profile.shapes {
        (shapes.curves()).map_err(|e| format!("shapes.\"{name}\": {e}"))?;
    }
    for (name, p) in &profile.params {
        if !(p.value.is_finite() && p.min <= p.value && p.value <= p.max) {
            return Err(format!(
                "params.\"{name}\": value {} must lie within its physical bounds [{}, {}]",
                plain(p.value),
                p.min,
                p.max
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_embedded_profile_parses_and_stays_within_physics() {
        for p in builtin().chain(states()) {
            check(p).unwrap_or_else(|e| panic!("{}: {e}", p.name));
            assert!(!p.provenance.command.is_empty(), "{}: no command", p.name);
        }
    }

    #[test]
    fn analytic_means_no_profile_at_all() {
        let r = resolve(
            "H100-SXM5-80GB",
            None,
            EngineKind::VllmV1,
            &Choice::Analytic,
        )
        .expect("always possible");
        assert!(r.used.is_empty() && r.profile.params.is_empty() && !r.trusted());
    }

    #[test]
    fn the_same_chip_lends_its_kernels_but_not_its_trust() {
        let of = |name, relative| {
            resolve(name, relative, EngineKind::Static, &Choice::Auto).expect("built-in profiles")
        };
        let key = "gemm.bf16.bandwidth_efficiency";
        let h100 = of("H100-SXM5-80GB", None);
        let h200 = of("H200-SXM5-141GB", Some("H100-SXM5-80GB"));
        assert!(h100.trusted() && !h200.trusted());
        let (own, lent) = (&h100.profile.params[key], &h200.profile.params[key]);
        assert_eq!(own.value, lent.value);
        assert_eq!(
            (own.evidence, lent.evidence),
            (Evidence::Fitted, Evidence::Extrapolated)
        );
        assert!(h200.used[0].description.contains("the same chip"));
        assert!(of("H200-SXM5-141GB", None).used.is_empty());
    }

    #[test]
    fn kernels_of_layers_with_a_state_hold_for_models_that_have_such_layers() {
        let of = |chip: &str, engine, rule| {
            let relative = (chip == "H100-PCIe-80GB").then_some("H100-SXM5-80GB");
            let plain = resolve(chip, relative, engine, &Choice::Auto).unwrap();
            let before = plain.used.len();
            let with = plain.with_states(rule, relative, engine);
            (with.used.len() - before, with.profile)
        };
        let h100 = "H100-SXM5-80GB";
        let (used, p) = of(h100, EngineKind::VllmV1, Rule::Kda);
        assert_eq!(used, 1);
        assert_eq!(p.surfaces["kda_decode"].kernels_of, None);
        assert!(!p.surfaces.contains_key("convolution_decode"));
        // vLLM's kernels stand for TensorRT-LLM's.
        let (_, p) = of(h100, EngineKind::TrtLlm, Rule::Kda);
        let lender = p.surfaces["kda_decode"].kernels_of.as_deref();
        assert_eq!(lender, Some("vllm_v1"));
        // vLLM's of the gated delta rule are among its other kernels.
        let (used, p) = of(h100, EngineKind::VllmV1, Rule::GatedDelta);
        assert_eq!(used, 0);
        assert!(p.surfaces.contains_key("linear_decode"));
        assert_eq!(of(h100, EngineKind::Sglang, Rule::GatedDelta).0, 1);
        // The same chip lends them; another has none, and neither has an analytic run.
        assert_eq!(of("H100-PCIe-80GB", EngineKind::VllmV1, Rule::Mamba2).0, 1);
        assert_eq!(of("L4-24GB", EngineKind::VllmV1, Rule::Mamba2).0, 0);
        let none = resolve(h100, None, EngineKind::VllmV1, &Choice::Analytic).unwrap();
        let none = none.with_states(Rule::Kda, None, EngineKind::VllmV1);
        assert!(none.used.is_empty());
    }

    #[test]
    fn validations_on_serving_runs_are_those_of_the_engine_and_the_accelerator() {
        let of = |chip: &str, engine| {
            let r = resolve(chip, None, engine, &Choice::Auto).expect("built-in profiles");
            let sets: Vec<String> = r
                .profile
                .runs_on(engine, chip)
                .map(|v| format!("{} {}", v.set, v.metric))
                .collect();
            sets
        };
        let vllm = of("H100-SXM5-80GB", EngineKind::VllmV1);
        assert!(vllm.contains(&"qwen3_32b tpot_ms".to_string()), "{vllm:?}");
        assert!(vllm.iter().all(|s| !s.contains("kernel")), "{vllm:?}");
        // Both the profile of the chip and that of the engine hold these; they count once.
        let tgi = of("A10G-24GB", EngineKind::Tgi);
        assert_eq!(tgi.len(), 3, "{tgi:?}");
        assert!(of("A10G-24GB", EngineKind::VllmV1).is_empty());
        assert!(of("L4-24GB", EngineKind::VllmV1).is_empty());
    }

    #[test]
    fn a_value_beyond_its_bounds_is_refused() {
        let mut p = Profile::default();
        p.params.insert(
            "gemm.bf16.compute_efficiency".into(),
            crate::profile::Param {
                value: 4.4,
                std_error: None,
                min: 0.1,
                max: 1.0,
                unit: "ratio".into(),
                evidence: crate::Evidence::Fitted,
            },
        );
        assert!(check(&p).is_err_and(|e| e.contains("physical bounds")));
    }
}
