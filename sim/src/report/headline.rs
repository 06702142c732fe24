//! The first screen of a run's report, for whoever decides: does the objective hold, how near is the knee, what limits
//! the run, how sure is that, and what must be known besides.

use crate::record::MeasuredError;
use crate::report::diagnosis::Regime;
use crate::report::doubt;
use crate::report::figures::{against_limit, field, figure, secs};
use crate::report::outcomes;
use crate::report::slo::{REQUIRED, SloReport};
use crate::report::summary::RunReport;

/// Writes the first screen.
///
/// # Errors
/// None: writing to a `String` cannot fail.
pub(crate) fn write(out: &mut String, r: &RunReport) -> std::fmt::Result {
    field(out, "SLO", &slo(r))?;
    field(out, "knee", &knee(r))?;
    if r.diagnosis.regime != Regime::Unknown {
        field(out, "limited by", &r.diagnosis.limit)?;
    }
    field(out, "how sure", &how_sure(r))?;
    let ranges = doubt::in_words(r);
    if !ranges.is_empty() {
        field(out, "90 % range", &ranges)?;
    }
    for warning in &r.warnings {
        field(out, "warning", warning)?;
    }
    Ok(())
}

/// The sentence above everything else, where no request finished.
pub(crate) fn alarm(r: &RunReport) -> String {
    outcomes::nothing_finished(r).map_or(String::new(), |text| format!("{text}.\n\n"))
}

/// Whether the objective holds, and by how much.
fn slo(r: &RunReport) -> String {
    let s = &r.slo;
    if !s.is_given() {
        return "None given: write e.g. slo = [\"ttft.p99 < 1 s\"] to learn whether it holds."
            .into();
    }
    if !s.objectives.is_empty() {
        return objectives(r);
    }
    let limits = limits(s);
    let Some(met) = s.met_ratio else {
        return format!("{limits}: not known, since no request was measured.");
    };
    let word = if s.holds == Some(true) {
        "Holds"
    } else {
        "MISSED"
    };
    let lost = r.requests.lost();
    let counting = if lost > 0 {
        format!(" ({lost} that were rejected, timed out or failed count as missed)")
    } else {
        String::new()
    };
    let mut text = format!(
        "{word}: {} of requests met {limits}{counting}; at least {} must.",
        percent(met),
        percent(REQUIRED)
    );
    for margin in &s.margins {
        let label = margin.metric.to_uppercase();
        text += &format!(
            " {label} p99 {}.",
            against_limit(margin.p99_ms, margin.limit_ms)
        );
    }
    text
}

/// Whether the listed objectives hold, and by how much each.
fn objectives(r: &RunReport) -> String {
    let s = &r.slo;
    let word = match s.holds {
        Some(true) => "Holds",
        Some(false) => "MISSED",
        None => "Not known, since no request ended",
    };
    let lost = r.requests.lost();
    let each: Vec<String> = s
        .objectives
        .iter()
        .map(|o| match o.value_ms {
            Some(v) => format!("{} {}", o.label, against_limit(v, o.limit_ms)),
            None if lost > 0 => format!(
                "{} never answered, limit {}",
                o.label,
                secs(o.limit_ms / 1e3)
            ),
            None => format!("{} not measured, limit {}", o.label, secs(o.limit_ms / 1e3)),
        })
        .collect();
    let mut text = format!("{word}: {}.", each.join("; "));
    if lost > 0 {
        text +=
            &format!(" {lost} that were rejected, timed out or failed count as never answered.");
    }
    let limits = limits(s);
    if let Some(met) = s.met_ratio {
        text += &format!(" {} of requests met {limits}.", percent(met));
    }
    text
}

/// The limits in words: `TTFT <= 1 s and TPOT <= 60 ms`.
pub(crate) fn limits(s: &SloReport) -> String {
    [("TTFT", s.ttft_ms), ("TPOT", s.tpot_ms), ("E2E", s.e2e_ms)]
        .into_iter()
        .filter_map(|(name, limit)| limit.map(|l| format!("{name} <= {}", secs(l / 1e3))))
        .collect::<Vec<_>>()
        .join(" and ")
}

/// A share with as many decimals as it takes not to be shown as the share required, or as all.
fn percent(share: f64) -> String {
    (0..=6)
        .map(|decimals| format!("{:.decimals$}", 100.0 * share))
        .find(|text| {
            let shown = text.parse().unwrap_or(f64::NAN) / 100.0;
            let exact = share == REQUIRED || share == 1.0 || share == 0.0;
            exact || (text.contains('.') && ![REQUIRED, 1.0, 0.0].contains(&shown))
        })
        .map_or_else(
            || format!("{} %", 100.0 * share),
            |text| format!("{text} %"),
        )
}

/// Which side of the knee, and how much room there is.
fn knee(r: &RunReport) -> String {
    let mut text = r.diagnosis.knee.clone();
    if let Some(fits) = r.diagnosis.kv_fits_requests {
        text += &format!(
            " KV holds about {fits:.0} such requests per replica; {} ran at once on average (at the peak {:.0} % of its blocks \
             were taken).",
            figure(r.replicas.mean_running),
            100.0 * r.kv.peak_ratio
        );
    }
    text
}

/// How far such predictions were from measurements.
fn how_sure(r: &RunReport) -> String {
    if r.accuracy.is_empty() {
        let why = if r.profiles.is_empty() {
            "step times come from no profile"
        } else {
            "no runs of this engine on this accelerator, of such a model and as the scenario sets them, were held against a measurement"
        };
        return format!("Not known: {why}.");
    }
    let errors: Vec<String> = r.accuracy.iter().map(in_words).collect();
    let mut text = format!(
        "Median error on measured runs of this engine and accelerator that nothing was fitted on: {}.",
        errors.join(", ")
    );
    if !r.accuracy.iter().any(|a| a.metric.contains("ttft")) {
        text += " TTFT was held against none.";
    }
    text + " Another model or load may be further off."
}

/// The median error on a measured set: `TTFT 9.6 % (90 runs of qwen3_32b, of users in a loop)`.
pub fn in_words(a: &MeasuredError) -> String {
    let what = if a.metric.contains("step") {
        "step"
    } else {
        "run"
    };
    let plural = if a.n == 1 { "" } else { "s" };
    let load = match a.load.as_deref() {
        Some("open") => ", at times of their own",
        Some("closed") => ", of users in a loop",
        Some("saturated") => ", all at once",
        _ => "",
    };
    format!(
        "{} {:.1} % ({} {what}{plural} of {}{load})",
        metric_in_words(&a.metric),
        // Half a tenth counts up, whatever its last bit.
        (1000.0 * a.median_error_ratio).round() / 10.0,
        a.n,
        a.set
    )
}

/// A measured set's name of a metric, as this report calls it.
fn metric_in_words(metric: &str) -> &str {
    match metric {
        "ttft_ms" => "TTFT",
        "ttft_mean_ms" => "TTFT mean",
        "ttft_p50_ms" | "ttft p50" => "TTFT p50",
        "ttft_p99_ms" => "TTFT p99",
        "tpot_ms" => "TPOT",
        "tpot_mean_ms" => "TPOT mean",
        "itl_ms" => "ITL",
        "itl_mean_ms" => "ITL mean",
        "e2e_ms" => "E2E",
        "e2e_mean_ms" | "e2e mean" => "E2E mean",
        "e2e p99" => "E2E p99",
        "latency_ms_per_token" => "normalised latency",
        "throughput_tok_s" | "output_tok_s" | "output throughput" => "output tokens/s",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::slo::{Margin, ObjectiveReport};

    fn with_slo(met: f64) -> RunReport {
        let mut r = RunReport::empty();
        r.slo.ttft_ms = Some(200.00000000000003);
        r.slo.met_ratio = Some(met);
        r.slo.holds = Some(met >= REQUIRED);
        r.slo.margins = vec![Margin {
            metric: "ttft".into(),
            limit_ms: 200.0,
            p99_ms: 81.23,
            margin_ratio: 0.593_85,
        }];
        r
    }

    #[test]
    fn the_objective_comes_with_its_verdict_and_margin() {
        assert_eq!(
            slo(&with_slo(0.996)),
            "Holds: 99.6 % of requests met TTFT <= 200 ms; at least 99 % must. TTFT p99 81.23 ms, limit 200 ms (59 % below)."
        );
        let mut missed = with_slo(0.25);
        missed.requests.rejected = 750;
        let text = slo(&missed);
        assert!(text.starts_with("MISSED: 25.0 %"), "{text}");
        assert!(text.contains("750 that were rejected"), "{text}");
        assert!(slo(&RunReport::empty()).starts_with("None given"));
    }

    #[test]
    fn listed_objectives_are_told_one_by_one() {
        let mut r = RunReport::empty();
        let found = |label: &str, limit_ms, value_ms: Option<f64>| ObjectiveReport {
            objective: String::new(),
            label: label.into(),
            limit_ms,
            value_ms,
            margin_ratio: None,
            met: false,
        };
        r.slo.objectives = vec![
            found("TTFT p95", 1e3, Some(589_810.0)),
            found("TPOT p95", 50.0, None),
        ];
        r.slo.holds = Some(false);
        r.requests.rejected = 3;
        assert_eq!(
            slo(&r),
            "MISSED: TTFT p95 589.81 s, limit 1 s (590x); TPOT p95 never answered, limit 50 ms. 3 that were rejected, timed out or failed count as never \
             answered."
        );
    }

    #[test]
    fn no_share_is_rounded_to_the_one_required() {
        assert_eq!(percent(0.9899), "98.99 %");
        assert_eq!(percent(0.989_999), "98.9999 %");
        assert_eq!(percent(REQUIRED), "99 %");
        assert_eq!(percent(0.999_96), "99.996 %");
        assert_eq!(percent(1.0), "100 %");
    }

    #[test]
    fn how_sure_names_metric_error_and_runs() {
        let mut r = RunReport::empty();
        assert!(how_sure(&r).contains("no profile"));
        r.accuracy = vec![MeasuredError {
            set: "qwen3_32b".into(),
            metric: "tpot_ms".into(),
            n: 75,
            median_error_ratio: 0.028,
            load: None,
        }];
        let text = how_sure(&r);
        assert!(
            text.contains(": TPOT 2.8 % (75 runs of qwen3_32b)."),
            "{text}"
        );
        assert!(text.contains("TTFT was held against none"), "{text}");
        r.accuracy[0].load = Some("saturated".into());
        let text = how_sure(&r);
        assert!(
            text.contains("(75 runs of qwen3_32b, all at once)"),
            "{text}"
        );
    }
}
