//! Energy of the winner, and what a power cap costs: analytic, from the accelerators' thermal design power.
//!
//! No accelerator draws more than its thermal design power (TDP) for long, so its figures are bounds: power at most, tokens per joule at least. Hosts, switches
//! and cooling are not in them. Under a cap the clock falls until the power fits: dynamic power grows with clock times voltage squared, and voltage about
//! with the clock, so the clock is the cube root of the cap. Arithmetic takes as much longer; reading memory, communication and the host do not.

use sim::report::diagnosis::BoundBy;

use super::question::Question;
use super::ready::Ready;
use super::report::{Energy, PowerCap};
use super::search::Settled;
use crate::Error;
use crate::conditions::Standing;
use crate::fleet::Extent;

/// Thermal design power by accelerator, of the vendors' datasheets.
const POWER: &str = include_str!("../../data/accelerator_power.csv");
/// Caps that are looked at, as shares of the TDP.
const CAPS: [f64; 3] = [0.8, 0.6, 0.4];
/// Requests of each run.
const REQUESTS: usize = 2_000;

/// Thermal design power of an accelerator of the catalog [W]; none where the table has none.
pub fn tdp_w(accelerator: &str) -> Option<f64> {
    let mut rows = POWER.lines().skip(1).filter_map(|l| l.split_once(','));
    rows.find(|(name, _)| *name == accelerator)?
        .1
        .trim()
        .parse()
        .ok()
}

/// The winner's energy; none where its accelerator's power is not known.
///
/// # Errors
/// The simulator's own.
pub fn energy(
    question: &Question,
    ready: &Ready,
    winner: &Settled,
    time: &BoundBy,
    output_tokens_per_s: f64,
) -> Result<Option<Energy>, Error> {
    let c = &ready.candidate;
    let catalog = &question.catalog;
    let Ok(chip) = catalog.accelerator(&c.accelerator) else {
        return Ok(None);
    };
    let Some(tdp_w) = tdp_w(&chip.name) else {
        return Ok(None);
    };
    let devices = c.accelerators(winner.units);
    let watts = f64::from(devices) * tdp_w;
    let busy = time.weights + time.kv + time.compute + time.communication + time.host + time.bubble;
    let arithmetic = if busy > 0.0 { time.compute / busy } else { 0.0 };
    let mut caps = Vec::new();
    for cap in CAPS {
        let slowdown = 1.0 + arithmetic * (cap.cbrt().recip() - 1.0);
        // Steps that are all s times as long serve the load as one that comes s times as fast, in s times the time.
        let load = || question.requests.slowed(REQUESTS, slowdown);
        let what = question.redundancy;
        let standing = ready.losing(question, winner.units, what, load, Extent::default())?;
        caps.push(PowerCap {
            cap_ratio: cap,
            watts_most: cap * watts,
            slowdown_ratio: slowdown,
            standing: slowed(&standing, question, slowdown),
        });
    }
    Ok(Some(Energy {
        accelerator: chip.name.clone(),
        devices,
        tdp_w,
        watts_most: watts,
        output_tokens_per_joule_least: output_tokens_per_s / watts,
        caps,
    }))
}

/// `standing` with every latency `factor` times as long.
fn slowed(standing: &Standing, question: &Question, factor: f64) -> Standing {
    let values_ms: Vec<Option<f64>> = (standing.values_ms.iter())
        .map(|v| v.map(|v| v * factor))
        .collect();
    let margins = question.conditions.iter().zip(&values_ms);
    let margin_ratio = margins
        .filter_map(|(c, v)| v.map(|v| c.margin(v)))
        .fold(1.0, f64::min);
    Standing {
        holds: margin_ratio > 0.0 && standing.lost == 0 && !standing.growing,
        values_ms,
        margin_ratio,
        ..standing.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn power_is_of_accelerators_of_the_catalog() {
        let catalog = hwmodels::catalog::Catalog::builtin();
        for line in POWER.lines().skip(1) {
            let (name, watts) = line.split_once(',').unwrap();
            assert!(catalog.accelerator(name).is_ok(), "{name}");
            assert!(
                (50.0..2000.0).contains(&watts.parse::<f64>().unwrap()),
                "{line}"
            );
        }
        assert_eq!(tdp_w("H100-SXM5-80GB"), Some(700.0));
        assert_eq!(tdp_w("Inferentia2"), None);
    }
}
