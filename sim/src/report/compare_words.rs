//! What a comparison comes to, in a sentence for each scenario beside the first, and what keeps two loads from being compared.

use crate::metrics::interval::Interval;
use crate::report::expect::Numbers;
use crate::report::figures::figure;
use crate::report::keys::KeyDifference;
use crate::report::replications::CONFIDENCE;
use crate::report::summary::RunReport;

/// What "fast" means: the first of these that every run has.
const FAST: [(&str, &str); 3] = [
    ("ttft_ms.p99", "TTFT p99"),
    ("ttft_ms.mean", "mean TTFT"),
    ("e2e_ms.mean", "mean E2E latency"),
];

/// Scenario A or another, with its runs in the order of the seeds.
pub(super) struct Runs<'a> {
    pub(super) letter: char,
    pub(super) runs: &'a [RunReport],
}

/// `A is 1.32 +- 0.05 times as fast in TTFT p99 as B and costs 0.5 times as much.`; `comparable` is false where the latencies are of different shares of the
/// requests, `seeds_vary` where the pairs are more than one pair.
pub(super) fn sentence(a: &Runs<'_>, b: &Runs<'_>, comparable: bool, seeds_vary: bool) -> String {
    let counted = if seeds_vary { a.runs.len() } else { 1 };
    let numbers = |runs: &[RunReport]| -> Vec<Numbers> {
        runs.iter().take(counted).map(Numbers::of).collect()
    };
    let (of_a, of_b) = (numbers(a.runs), numbers(b.runs));
    let speed = FAST.iter().find_map(|(path, name)| {
        let pairs = of_a.iter().zip(&of_b);
        let ratios: Option<Vec<f64>> = pairs
            .map(|(a, b)| {
                let (a, b) = (a.at(path)?, b.at(path)?);
                (a > 0.0 && b > 0.0).then(|| (b / a).ln())
            })
            .collect();
        Some((*name, Interval::of(&ratios?, CONFIDENCE)?))
    });
    let (x, y) = (a.letter, b.letter);
    let Some((name, speed)) = speed.filter(|_| comparable) else {
        return match price(a, b) {
            Some(price) => format!("{x} {price} as {y}; which of them is faster cannot be said."),
            None => format!("Which of {x} and {y} is faster cannot be said."),
        };
    };
    // The faster one is the subject: its ratio is above 1.
    let (faster, slower, log) = match speed.mean < 0.0 {
        false => (a, b, speed.mean),
        true => (b, a, -speed.mean),
    };
    let ratio = log.exp();
    // Half the width of the interval on the ratio itself.
    let around = speed.half_width.map_or(String::new(), |h| {
        format!(" +- {}", figure(ratio * h.sinh()))
    });
    let (x, y) = (faster.letter, slower.letter);
    let costs = price(faster, slower).map_or(String::new(), |p| format!(" and {p}"));
    let told = speed.half_width.is_none_or(|_| speed.excludes_zero());
    if told {
        format!(
            "{x} is {}{around} times as fast in {name} as {y}{costs}.",
            figure(ratio)
        )
    } else {
        format!(
            "{x} and {y} are equally fast in {name} as far as these runs tell ({}{around}); {x}{}.",
            figure(ratio),
            costs
                .strip_prefix(" and")
                .unwrap_or(" and the other have no prices to compare")
        )
    }
}

/// What `a` costs beside `b`; none where a price is not known.
fn price(a: &Runs<'_>, b: &Runs<'_>) -> Option<String> {
    let usd = |of: &Runs<'_>| of.runs.first()?.cost.usd_per_hour.filter(|p| *p > 0.0);
    let ratio = usd(a)? / usd(b)?;
    Some(match (ratio - 1.0).abs() < 1e-9 {
        true => "costs as much".to_owned(),
        false => format!("costs {} times as much", figure(ratio)),
    })
}

/// The note where the loads of `a` and `b` differ; `keys` are those in which the scenarios do.
pub(super) fn loads_differ(a: &Runs<'_>, b: &Runs<'_>, keys: &[KeyDifference]) -> Option<String> {
    let load = |of: &Runs<'_>| of.runs.first().map(|r| r.load.clone());
    let (of_a, of_b) = (load(a)?, load(b)?);
    let key = keys.iter().find(|k| k.key.starts_with("workload"));
    if of_a == of_b && key.is_none() {
        return None;
    }
    let what = if of_a == of_b {
        key.map_or(String::new(), |k| format!(": {} is not the same", k.key))
    } else {
        format!(": {} has {of_a}, {} has {of_b}", a.letter, b.letter)
    };
    Some(format!(
        "The loads differ{what}. Figures of different loads say little of the deployments; give both the same, e.g. --set 'workload[0].arrival={{ kind = \"poisson\", \
         rate = \"1 req/s\" }}'."
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(ttft: &[f64], usd: Option<f64>) -> Vec<RunReport> {
        let one = |v: &f64| {
            let mut r = RunReport::empty();
            r.ttft_ms.p99 = Some(*v);
            r.cost.usd_per_hour = usd;
            r.load = "Poisson 1 req/s".into();
            r
        };
        ttft.iter().map(one).collect()
    }

    fn side(letter: char, runs: &[RunReport]) -> Runs<'_> {
        Runs { letter, runs }
    }

    #[test]
    fn the_faster_one_is_the_subject_with_its_price() {
        let (a, b) = (
            runs(&[200.0, 210.0], Some(2.0)),
            runs(&[100.0, 104.0], Some(4.0)),
        );
        let text = |comparable| sentence(&side('A', &a), &side('B', &b), comparable, true);
        assert!(
            text(true).starts_with("B is 2.010 +- ")
                && text(true)
                    .ends_with(" times as fast in TTFT p99 as A and costs 2.000 times as much."),
            "{}",
            text(true)
        );
        assert_eq!(
            text(false),
            "A costs 0.500 times as much as B; which of them is faster cannot be said."
        );
    }

    #[test]
    fn noise_is_called_equal_and_one_pair_claims_no_interval() {
        let (a, b) = (runs(&[100.0, 110.0], None), runs(&[110.0, 100.0], None));
        let text = sentence(&side('A', &a), &side('B', &b), true, true);
        assert!(text.contains("equally fast in TTFT p99"), "{text}");
        let text = sentence(&side('A', &a[..1]), &side('B', &b[..1]), true, true);
        assert_eq!(text, "A is 1.100 times as fast in TTFT p99 as B.");
    }

    #[test]
    fn other_loads_are_told() {
        let (a, mut b) = (runs(&[1.0], None), runs(&[1.0], None));
        assert_eq!(loads_differ(&side('A', &a), &side('B', &b), &[]), None);
        b[0].load = "32 users".into();
        let note = loads_differ(&side('A', &a), &side('B', &b), &[]).unwrap();
        assert!(
            note.starts_with("The loads differ: A has Poisson 1 req/s, B has 32 users."),
            "{note}"
        );
    }
}
