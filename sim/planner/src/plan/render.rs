//! The answer as advice: the first screen is the recommendation, its price, its margins and its evidence.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use sim::record::MeasuredError;
use sim::report::text::{against_limit, field, figure, secs};

use super::headline;
use super::report::{
    Aside, Autoscaled, Choice, Detail, Doubt, Energy, PlanReport, Rejection, Split,
};
use crate::conditions::{Condition, Standing};

/// Examples of each kind of reason.
const EXAMPLES: usize = 2;

impl PlanReport {
    /// The text on the terminal; lines end in `\n`.
    pub fn render(&self) -> String {
        let mut out = String::new();
        // Writing to a String cannot fail.
        let _ = self.write(&mut out);
        out
    }

    fn write(&self, out: &mut String) -> std::fmt::Result {
        match (&self.winner, &self.detail) {
            (Some(w), Some(d)) => {
                self.three_lines(out, w, d)?;
                writeln!(out, "\n{}\n", self.name)?;
                self.advice(out, w, d)?;
            }
            _ => {
                writeln!(out, "{}\n", self.name)?;
                self.nothing(out)?;
            }
        }
        self.ranking(out)?;
        self.scatter(out)?;
        if let (Some(d), Some(w)) = (&self.detail, &self.winner) {
            more(out, w, d, &self.slo)?;
        }
        if let Some(d) = &self.doubt {
            doubts(out, d)?;
        }
        if let Some(s) = &self.split {
            two_pools(out, s, &self.slo)?;
        }
        if let Some(a) = &self.autoscaled {
            scaled(out, a, &self.slo)?;
        }
        reasons(out, &self.rejected)?;
        let s = &self.search;
        let how = if s.exhaustive {
            "every candidate under the whole load"
        } else {
            "bounds, then a race"
        };
        writeln!(
            out,
            "\nsearch ({how}): {} combinations, {} start; {} set aside by bounds, {} scouted, {} settled under the whole load; {} runs of {} requests in all",
            s.combinations,
            s.candidates,
            s.by_bounds,
            s.scouted,
            s.settled,
            s.simulations,
            s.requests
        )
    }

    /// The first screen.
    fn advice(&self, out: &mut String, w: &Choice, d: &Detail) -> std::fmt::Result {
        field(out, "deploy", &deployment(w))?;
        field(out, "price", &self.price(w))?;
        if let (Some(ratio), Some(next)) = (self.next_price_ratio, self.cheapest_alternative()) {
            let text = format!(
                "{} times the price: {}.",
                figure(ratio),
                headline::deployment(next)
            );
            field(out, "second best", &text)?;
        }
        let rate = self.requests_per_s.map_or(String::new(), |r| {
            format!(" (mean {} req/s, {} requests)", figure(r), self.requests)
        });
        field(out, "load", &format!("{}{rate}", self.load))?;
        let spare = w.replicas - w.replicas_needed;
        let with = if spare > 0 {
            format!(" with {spare} of {} replicas lost", w.replicas)
        } else {
            String::new()
        };
        field(
            out,
            "SLO",
            &format!("Holds{with}: {}.", against(&w.standing, &self.slo)),
        )?;
        let ranges = ranges(&self.slo, &d.range_90_ms);
        if !ranges.is_empty() {
            field(out, "90 % range", &ranges)?;
        }
        let room = match d.headroom {
            Some(x) if x <= 1.0 => "None: the SLO is at its limit under this load.".to_owned(),
            Some(x) => format!("The SLO holds up to {} times the load.", figure(x)),
            None => "The SLO holds at 8 times the load too.".to_owned(),
        };
        field(out, "room", &format!("{room} {}", d.knee))?;
        field(out, "bound by", &format!("{}. {}", d.bound, d.limit))?;
        field(out, "how sure", &self.how_sure(d))?;
        for note in &self.notes {
            field(out, "note", note)?;
        }
        Ok(())
    }

    fn price(&self, w: &Choice) -> String {
        let mut text = match (w.usd_per_hour, w.usd_per_month) {
            (Some(hour), Some(month)) => format!(
                "{} USD a month (730 h at {} USD/h)",
                dollars(month),
                figure(hour)
            ),
            _ => format!("{} x {}, whose price nobody says", w.devices, w.accelerator),
        };
        if let Some(per_million) = w.usd_per_million_output_tokens {
            text += &format!(
                ", {} USD per million output tokens of this load",
                figure(per_million)
            );
        }
        if let Some(budget) = self.budget_usd_per_hour {
            text += &format!("; the budget is {} USD/h", figure(budget));
        }
        text + "."
    }

    fn how_sure(&self, d: &Detail) -> String {
        let mut text = evidence(&d.accuracy, &d.profiles);
        if let Some(doubt) = &self.doubt {
            text += &format!(
                " Of {} draws of the parameters that the profiles know within a standard error it held in {:.0} %, and was the cheapest that holds in {:.0} %; errors of \
                 the model itself come on top{}.",
                doubt.draws,
                100.0 * doubt.holds_ratio,
                100.0 * doubt.cheapest_ratio,
                if d.accuracy.is_empty() {
                    ", and here nobody has measured them"
                } else {
                    ""
                }
            );
        }
        text
    }

    /// The cheapest deployment beside the winner.
    fn cheapest_alternative(&self) -> Option<&Choice> {
        let priced = self
            .alternatives
            .iter()
            .filter_map(|c| Some((c.usd_per_hour?, c)));
        priced.min_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, c)| c)
    }

    fn nothing(&self, out: &mut String) -> std::fmt::Result {
        field(
            out,
            "deploy",
            "NOTHING: no candidate meets the objectives under this load.",
        )?;
        field(out, "load", &self.load)?;
        field(out, "SLO", &self.slo.join(" and "))?;
        for note in &self.notes {
            field(out, "note", note)?;
        }
        Ok(())
    }

    /// The ranking; what is on the Pareto front is marked.
    fn ranking(&self, out: &mut String) -> std::fmt::Result {
        let choices: Vec<&Choice> = self.choices().collect();
        if choices.is_empty() {
            return Ok(());
        }
        write!(
            out,
            "\n    {:>9} {:>11} {:>5} {:>5}",
            "USD/h", "USD/month", "inst.", "repl."
        )?;
        for c in &self.slo {
            let label = c.split(['<', '>', '=']).next().unwrap_or(c).trim();
            write!(out, " {:>11}", label)?;
        }
        writeln!(out, " {:>8}  deployment", "margin")?;
        for (i, c) in choices.iter().enumerate() {
            let front = if self.pareto.contains(&(i as u64)) {
                '*'
            } else {
                ' '
            };
            write!(
                out,
                "  {front} {:>9} {:>11} {:>5} {:>5}",
                c.usd_per_hour.map_or("-".into(), figure),
                c.usd_per_month.map_or("-".into(), dollars),
                c.instances,
                c.replicas
            )?;
            for v in &c.standing.values_ms {
                write!(out, " {:>11}", v.map_or("-".into(), figure))?;
            }
            let short = if c.whole_load {
                ""
            } else {
                " (by a stretch of the load)"
            };
            writeln!(
                out,
                " {:>6.0} %  {}{short}",
                100.0 * c.standing.margin_ratio,
                c.label
            )?;
        }
        writeln!(
            out,
            "  latencies in ms with what may be lost lost; * no other row is both cheaper and faster in every objective"
        )
    }
}

/// `2 x p5.48xlarge, 8 replicas of TP 2, max_num_seqs 128`.
fn deployment(w: &Choice) -> String {
    let settings: Vec<String> = w.settings.iter().map(|(k, v)| format!("{k} {v}")).collect();
    let settings = if settings.is_empty() {
        String::new()
    } else {
        format!("; {}", settings.join(", "))
    };
    if let Some(a) = &w.apart {
        return format!(
            "{} x {}, prefill and decode apart: {} of {} prefill, {} of {} decode, KV over {} GB/s of a replica{settings}.",
            w.instances,
            w.instance,
            a.prefill_replicas,
            a.prefill_layout,
            a.decode_replicas,
            a.decode_layout,
            figure(a.link_bytes_per_s / 1e9)
        );
    }
    let s = if w.replicas == 1 { "" } else { "s" };
    format!(
        "{} x {}: {} replica{s} of {}{settings}.",
        w.instances, w.instance, w.replicas, w.layout
    )
}

/// The values against the objectives: `TTFT p99 312 ms, limit 500 ms (38 % below)`.
fn against(s: &Standing, slo: &[String]) -> String {
    let each: Vec<String> = slo
        .iter()
        .zip(&s.values_ms)
        .map(|(text, v)| match (Condition::parse(text), v) {
            (Ok(c), Some(v)) => format!("{} {}", c.label(), against_limit(*v, c.limit.limit_ms)),
            (_, Some(v)) => format!("{text} (it is {} ms)", figure(*v)),
            (_, None) => format!("{text} (not measured)"),
        })
        .collect();
    let mut text = each.join("; ");
    if s.lost > 0 {
        text += &format!("; {} requests lost", s.lost);
    }
    if s.growing {
        text += "; the queue grows";
    }
    text
}

/// The ranges of the objectives' values; empty without any.
fn ranges(slo: &[String], all: &[Option<(f64, f64)>]) -> String {
    let each: Vec<String> = (slo.iter().zip(all))
        .filter_map(|(text, range)| {
            let (low, high) = (*range)?;
            let label = Condition::parse(text).ok()?.label();
            Some(format!(
                "{label} {} to {}",
                secs(low / 1e3),
                secs(high / 1e3)
            ))
        })
        .collect();
    match each.is_empty() {
        true => String::new(),
        false => format!(
            "{} in 9 of 10 such deployments, all replicas there",
            each.join("; ")
        ),
    }
}

/// How far such predictions were from measurements.
fn evidence(accuracy: &[MeasuredError], profiles: &[String]) -> String {
    if profiles.is_empty() {
        return "No profile was fitted for this engine and accelerator: step times are analytic, and nothing says how far they are off.".into();
    }
    if accuracy.is_empty() {
        return "Nothing: no run of this engine on this accelerator with such a model was ever compared with a prediction.".into();
    }
    let each: Vec<String> = (accuracy.iter())
        .map(sim::report::headline::in_words)
        .collect();
    format!(
        "Median errors on measured runs of this engine and accelerator that nothing was fitted on: {}.",
        each.join(", ")
    )
}

fn more(out: &mut String, w: &Choice, d: &Detail, slo: &[String]) -> std::fmt::Result {
    writeln!(out, "\nthe first row in detail")?;
    field(out, "all there", &against(&d.standing, slo))?;
    let holds = |s: &Standing| if s.holds { "holds" } else { "MISSES the SLO" };
    field(
        out,
        "at twice",
        &format!("{}: {}", holds(&d.at_twice), against(&d.at_twice, slo)),
    )?;
    match &d.one_lost {
        Some(s) => field(
            out,
            "one lost",
            &format!("{}: {}", holds(s), against(s, slo)),
        )?,
        None => field(out, "one lost", "it has one replica: nothing is served")?,
    }
    let b = &d.bound_by;
    let share = |x: f64| format!("{:.0} %", 100.0 * x);
    field(
        out,
        "time",
        &format!(
            "weights {}, KV {}, compute {}, communication {}, host {}, bubbles {}, idle {}; KV at most {} full",
            share(b.weights),
            share(b.kv),
            share(b.compute),
            share(b.communication),
            share(b.host),
            share(b.bubble),
            share(b.idle),
            share(d.kv_peak_ratio)
        ),
    )?;
    field(
        out,
        "makes",
        &format!(
            "{} output tokens/s; its step model and memory allow at most {} req/s",
            figure(d.output_tokens_per_s),
            figure(w.bound_requests_per_s)
        ),
    )?;
    if let Some(e) = &d.energy {
        powers(out, e)?;
    }
    let decided: Vec<String> = d.decided.iter().map(|(k, v)| format!("{k} {v}")).collect();
    field(out, "starts with", &decided.join(", "))
}

fn powers(out: &mut String, e: &Energy) -> std::fmt::Result {
    let text = format!(
        "at most {} W ({} x {} at their TDP of {} W), so at least {} output tokens per joule (analytic; accelerators alone)",
        figure(e.watts_most),
        e.devices,
        e.accelerator,
        figure(e.tdp_w),
        figure(e.output_tokens_per_joule_least)
    );
    field(out, "energy", &text)?;
    let caps: Vec<String> = (e.caps.iter())
        .map(|c| {
            format!(
                "at {:.0} % of TDP steps take {:.0} % longer, the SLO {} (margin {:.0} %)",
                100.0 * c.cap_ratio,
                100.0 * (c.slowdown_ratio - 1.0),
                if c.standing.holds {
                    "holds"
                } else {
                    "is MISSED"
                },
                100.0 * c.standing.margin_ratio
            )
        })
        .collect();
    field(out, "power cap", &format!("{} (analytic)", caps.join("; ")))
}

fn two_pools(out: &mut String, s: &Split, slo: &[String]) -> std::fmt::Result {
    writeln!(out, "\ntwo pools by prompt length")?;
    let more = match s.more_usd_per_hour {
        m if m < 0.0 => format!("{} USD/h less than the first row", figure(-m)),
        m => format!("{} USD/h more than the first row", figure(m)),
    };
    let text = format!(
        "prompts of at most {} tokens ({:.0} % of the requests) and longer ones: {} USD/h, {more}",
        s.boundary_tokens,
        100.0 * s.short_ratio,
        figure(s.usd_per_hour)
    );
    field(out, "split", &text)?;
    for (name, p) in [("short", &s.short), ("long", &s.long)] {
        let text = format!(
            "{} instances, {} replicas, {} USD/h: {}; {}",
            p.instances,
            p.replicas,
            figure(p.usd_per_hour),
            p.label,
            against(&p.standing, slo)
        );
        field(out, name, &text)?;
    }
    Ok(())
}

fn scaled(out: &mut String, a: &Autoscaled, slo: &[String]) -> std::fmt::Result {
    writeln!(
        out,
        "\nautoscaled: {} to {} replicas by {}, over {} h",
        a.min_replicas,
        a.max_replicas,
        a.metric,
        figure(a.hours)
    )?;
    for (i, t) in a.trials.iter().enumerate() {
        let mark = if a.chosen == Some(i as u64) { "* " } else { "" };
        let holds = if t.standing.holds {
            "holds"
        } else {
            "MISSES the SLO"
        };
        let text = format!(
            "{mark}{} USD in place of {}, {} replicas on average, {} changes; {holds}: {}",
            figure(t.usd),
            figure(t.fixed_usd),
            figure(t.mean_ready),
            t.changes,
            against(&t.standing, slo)
        );
        field(out, &format!("at {}", t.target_running), &text)?;
    }
    if a.chosen.is_none() {
        writeln!(out, "  none of them holds for less than the fixed fleet")?;
    }
    Ok(())
}

fn doubts(out: &mut String, d: &Doubt) -> std::fmt::Result {
    writeln!(
        out,
        "\nhow sure, apart from errors of the model itself ({} draws of {} requests)",
        d.draws, d.requests
    )?;
    if let Some((low, high)) = d.usd_per_hour {
        field(
            out,
            "price",
            &format!(
                "the cheapest that holds costs {} to {} USD/h in {:.0} % of such draws",
                figure(low),
                figure(high),
                100.0 * d.coverage_ratio
            ),
        )?;
    }
    let values: Vec<String> = d
        .values_ms
        .iter()
        .map(|v| {
            v.map_or("-".into(), |(low, high)| {
                format!("{} to {} ms", figure(low), figure(high))
            })
        })
        .collect();
    field(
        out,
        "SLO",
        &format!(
            "values of the first row in {:.0} % of such draws: {}",
            100.0 * d.coverage_ratio,
            values.join(", ")
        ),
    )?;
    for f in &d.finalists {
        field(
            out,
            "cheapest",
            &format!(
                "in {:.0} %: {} ({} USD/h)",
                100.0 * f.cheapest_ratio,
                f.label,
                f.usd_per_hour.map_or("-".into(), figure)
            ),
        )?;
    }
    for s in &d.sensitive {
        let flips = if s.flips {
            "FLIPS: it would miss the SLO"
        } else {
            "does not flip it"
        };
        field(
            out,
            "measure",
            &format!(
                "{}: one standard error moves the margin between {:.0} and {:.0} %, which {flips}; narrowed by {}",
                s.parameter,
                100.0 * s.margin_ratio.0.min(s.margin_ratio.1),
                100.0 * s.margin_ratio.0.max(s.margin_ratio.1),
                s.measure
            ),
        )?;
    }
    for note in &d.notes {
        field(out, "note", note)?;
    }
    Ok(())
}

/// What was set aside, by kind of reason, each with what most candidates of it have in common.
fn reasons(out: &mut String, rejected: &[Rejection]) -> std::fmt::Result {
    if rejected.is_empty() {
        return Ok(());
    }
    writeln!(out, "\nset aside")?;
    let mut kinds: BTreeMap<Aside, Vec<&Rejection>> = BTreeMap::new();
    for r in rejected {
        kinds.entry(r.kind).or_default().push(r);
    }
    for (kind, mut all) in kinds {
        let total: u64 = all.iter().map(|r| r.candidates).sum();
        writeln!(out, "  {total:>7} {}", kind.heading())?;
        all.sort_by(|a, b| b.candidates.cmp(&a.candidates).then(a.what.cmp(&b.what)));
        for r in all.iter().take(EXAMPLES) {
            writeln!(out, "          e.g. {}", r.in_words())?;
        }
    }
    if rejected.len() > EXAMPLES {
        writeln!(out, "          all reasons: --json")?;
    }
    Ok(())
}

/// Whole dollars with a space between thousands.
pub(super) fn dollars(usd: f64) -> String {
    let digits = format!("{usd:.0}");
    let mut out = String::new();
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(' ');
        }
        out.push(c);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dollars_are_grouped() {
        assert_eq!(dollars(999.6), "1 000");
        assert_eq!(dollars(1_234_567.0), "1 234 567");
        assert_eq!(dollars(12.0), "12");
    }
}
