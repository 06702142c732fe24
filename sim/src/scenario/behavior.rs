//! `spec.behavior` of an HPA and the flags of its controller, which more than one autoscaler takes.

use super::hpa_file::{
    BehaviorFile, HpaFlagsFile, PolicyTypeFile, ScalingPolicyFile, ScalingRulesFile,
    SelectPolicyFile,
};
use super::numbers::told;
use crate::control::hpa::spec::{Behavior, ScalingPolicy, ScalingRules, SelectPolicy, Settings};
use crate::kernel::time::SimDuration;

/// Fills in the defaults of kube-controller-manager.
pub(super) fn fill_flags(flags: &mut HpaFlagsFile) {
    let s = Settings::default();
    flags.sync_period.get_or_insert(told(s.sync_period));
    flags.tolerance.get_or_insert(s.tolerance);
    flags
        .downscale_stabilization
        .get_or_insert(told(s.downscale_stabilization));
}

/// `spec.behavior`, with Kubernetes' defaults where a manifest leaves something out.
pub(super) fn behavior(file: &BehaviorFile) -> Behavior {
    let of = |own: &Option<ScalingRulesFile>, default: ScalingRules| match own {
        Some(own) => rules(own, default),
        None => default,
    };
    Behavior {
        scale_up: of(&file.scale_up, ScalingRules::scale_up()),
        scale_down: of(&file.scale_down, ScalingRules::scale_down()),
    }
}

fn rules(file: &ScalingRulesFile, default: ScalingRules) -> ScalingRules {
    let policy = |p: &ScalingPolicyFile| match p.kind {
        PolicyTypeFile::Pods => ScalingPolicy::pods(p.value, p.period_seconds),
        PolicyTypeFile::Percent => ScalingPolicy::percent(p.value, p.period_seconds),
    };
    let window = (file.stabilization_window_seconds).map(|s| SimDuration::from_secs(f64::from(s)));
    ScalingRules {
        stabilization_window: window.or(default.stabilization_window),
        select_policy: match file.select_policy {
            Some(SelectPolicyFile::Max) => SelectPolicy::Max,
            Some(SelectPolicyFile::Min) => SelectPolicy::Min,
            Some(SelectPolicyFile::Disabled) => SelectPolicy::Disabled,
            None => default.select_policy,
        },
        policies: match &file.policies {
            Some(policies) => policies.iter().map(policy).collect(),
            None => default.policies,
        },
        tolerance: file.tolerance.or(default.tolerance),
    }
}
