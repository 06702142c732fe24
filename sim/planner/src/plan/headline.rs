//! The answer in three lines: what to deploy and whether it holds, what breaks it, and how far to trust that.

use sim::report::text::wrapped;

use super::render::dollars;
use super::report::{Choice, Detail, PlanReport, Sturdier, short_name};

/// Room below which a deployment holds barely: it breaks at so little more than the load [ratio].
const BARELY: f64 = 1.1;

impl PlanReport {
    /// The three lines of an answer `w`.
    pub(super) fn three_lines(&self, out: &mut String, w: &Choice, d: &Detail) -> std::fmt::Result {
        let verdict = match (w.measured, d.headroom) {
            (false, _) => "HOLDS by a model that was never checked there",
            (true, Some(room)) if room < BARELY => "HOLDS, barely",
            (true, _) => "HOLDS",
        };
        let what = format!("{}  {}  {verdict}", deployment(w), price(w));
        let trust = self.trust.clone().unwrap_or_else(|| {
            format!(
                "NONE: no run of this engine on {} with such a model was ever compared with a prediction; --measured-only leaves such out",
                short_name(&w.accelerator)
            )
        });
        let breaks = breaks(d, self.sturdier.as_ref());
        if w.measured {
            wrapped(out, "", &what)?;
            wrapped(out, "", &breaks)?;
            wrapped(out, "", &format!("trust: {trust}"))
        } else {
            // What nobody checked is said before what follows from it.
            wrapped(out, "", &format!("trust: {trust}"))?;
            wrapped(out, "", &what)?;
            wrapped(out, "", &breaks)
        }
    }
}

/// `16 x H100 (2 x p5.48xlarge of AWS us-east-1, 4 x TP 4)`.
pub(super) fn deployment(c: &Choice) -> String {
    let rented: Vec<&str> = (c.provider.iter().chain(&c.region))
        .map(String::as_str)
        .collect();
    let of = match rented.is_empty() {
        true => String::new(),
        false => format!(" of {}", rented.join(" ")),
    };
    let replicas = match &c.apart {
        None => format!("{} x {}", c.replicas, c.layout),
        Some(a) => format!(
            "{} x {} prefill, {} x {} decode",
            a.prefill_replicas, a.prefill_layout, a.decode_replicas, a.decode_layout
        ),
    };
    let chips = format!("{} x {}", c.devices, short_name(&c.accelerator));
    match c.by_accelerator {
        true => format!("{chips} (rented one by one, {replicas})"),
        false => format!("{chips} ({} x {}{of}, {replicas})", c.instances, c.instance),
    }
}

/// `80 358 USD/month`.
fn price(c: &Choice) -> String {
    match c.usd_per_month {
        Some(usd) => format!("{} USD/month", dollars(usd)),
        None => "no price known".to_owned(),
    }
}

/// What the winner does not survive, and what does.
fn breaks(d: &Detail, sturdier: Option<&Sturdier>) -> String {
    let mut at = Vec::new();
    match d.headroom {
        Some(room) if room < 1.005 => at.push("at any more traffic".to_owned()),
        Some(room) => at.push(format!("at +{:.0} % traffic", 100.0 * (room - 1.0))),
        None => {}
    }
    match &d.one_lost {
        None => at.push("when its only replica fails".to_owned()),
        Some(s) if !s.holds => at.push("when 1 replica fails".to_owned()),
        Some(_) => {}
    }
    let breaks = match at.is_empty() {
        true => "holds at 8 times the traffic and with 1 replica lost".to_owned(),
        false => format!("breaks {}", at.join(", or ")),
    };
    let Some(s) = sturdier else {
        return breaks;
    };
    let survives = format!(
        "survives +{:.0} % traffic with {} lost",
        100.0 * s.growth_ratio,
        s.lost
    );
    match &s.choice {
        _ if s.is_winner => format!("{breaks}; {survives}"),
        Some(c) => format!("{breaks}; {} ({}) {survives}", deployment(c), price(c)),
        None => format!("{breaks}; none of the deployments looked at {survives}"),
    }
}
