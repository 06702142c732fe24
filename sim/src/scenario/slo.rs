//! Latency targets of a scenario: limits that nearly all requests keep (`[slo]`), or a list of objectives (`slo = ["ttft.p95 < 1 s"]`).

use std::fmt;

use hwmodels::units::Secs;
use schemars::JsonSchema;
use serde::de::{self, Deserializer, MapAccess, SeqAccess, Visitor, value::MapAccessDeserializer};
use serde::{Deserialize, Serialize};

use super::file::SloFile;
use crate::kernel::time::SimDuration;
use crate::metrics::objective::{REQUIRED, limits_of};
use crate::metrics::{Metric, Objective, Slo};

/// Most objectives of a scenario.
const MOST_OBJECTIVES: usize = 100;

/// The key `slo` as written.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum SloKeys {
    /// Objectives such as "ttft.p95 < 1 s"; each must be met.
    List(Vec<String>),
    /// One objective.
    One(String),
    /// Limits.
    Limits(SloFile),
}

impl<'de> Deserialize<'de> for SloKeys {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct KeysVisitor;
        impl<'de> Visitor<'de> for KeysVisitor {
            type Value = SloKeys;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("objectives such as [\"ttft.p95 < 1 s\"], or a table such as { ttft = \"500 ms\" }")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<SloKeys, E> {
                Ok(SloKeys::One(text.to_owned()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<SloKeys, A::Error> {
                let mut all = Vec::new();
                while let Some(text) = seq.next_element()? {
                    all.push(text);
                }
                Ok(SloKeys::List(all))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<SloKeys, A::Error> {
                SloFile::deserialize(MapAccessDeserializer::new(map)).map(SloKeys::Limits)
            }
        }
        d.deserialize_any(KeysVisitor)
    }
}

impl SloKeys {
    /// The targets, or the key at fault and why.
    ///
    /// # Errors
    /// A text that is no objective, limits that are none, `itl` beside `tpot`.
    pub fn resolve(&self) -> Result<SloChoice, (&'static str, String)> {
        let texts = match self {
            SloKeys::Limits(limits) => return of_limits(limits),
            SloKeys::One(text) => std::slice::from_ref(text),
            SloKeys::List(all) => all,
        };
        if texts.len() > MOST_OBJECTIVES {
            let n = texts.len();
            return Err((
                "slo",
                format!("must be at most {MOST_OBJECTIVES} objectives, got {n}"),
            ));
        }
        let read = texts.iter().map(|t| Objective::parse(t));
        let objectives = read.collect::<Result<_, _>>();
        Ok(SloChoice::of(
            objectives.map_err(|e| ("slo", e.to_string()))?,
        ))
    }
}

fn of_limits(limits: &SloFile) -> Result<SloChoice, (&'static str, String)> {
    if limits.itl.is_some() && limits.tpot.is_some() {
        let why = "is a request's mean gap between tokens, which is tpot; give one of them";
        return Err(("slo.itl", why.to_owned()));
    }
    Ok(SloChoice {
        ttft: limits.ttft,
        tpot: limits.itl.or(limits.tpot),
        e2e: limits.e2e,
        objectives: Vec::new(),
    })
}

/// Latency targets: limits that 99 % of the requests are to keep, or a list of objectives.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SloChoice {
    /// Time to first token of a request that counts as good.
    pub ttft: Option<Secs>,
    /// The same of its time per output token after the first, which is its mean gap between tokens.
    pub tpot: Option<Secs>,
    /// The same from its arrival to its last token.
    pub e2e: Option<Secs>,
    /// The objectives, where the scenario lists them; the limits then follow from them ([`limits_of`]).
    pub objectives: Vec<Objective>,
}

impl SloChoice {
    /// A list of objectives.
    pub fn of(objectives: Vec<Objective>) -> SloChoice {
        let limits = limits_of(&objectives);
        let secs = |t: Option<SimDuration>| t.and_then(|t| Secs::new(t.as_secs()).ok());
        SloChoice {
            ttft: secs(limits.ttft),
            tpot: secs(limits.tpot),
            e2e: secs(limits.e2e),
            objectives,
        }
    }

    /// What a good request keeps.
    pub fn limits(&self) -> Slo {
        let nanos = |t: Option<Secs>| t.map(|t| SimDuration::from_secs(t.secs()));
        Slo {
            ttft: nanos(self.ttft),
            tpot: nanos(self.tpot),
            e2e: nanos(self.e2e),
        }
    }

    /// The objectives, or the limits as objectives on the 99th percentiles.
    pub fn as_objectives(&self) -> Vec<Objective> {
        if !self.objectives.is_empty() {
            return self.objectives.clone();
        }
        let limits = [
            (Metric::Ttft, self.ttft),
            (Metric::Tpot, self.tpot),
            (Metric::E2e, self.e2e),
        ];
        let given = limits.into_iter().filter_map(|(m, l)| Some((m, l?)));
        given
            .map(|(metric, limit)| Objective::of_limit(metric, limit.secs() * 1e3))
            .collect()
    }

    /// Share of the requests that are to be good [ratio]: 0.99 of limits; of objectives the lowest percentile.
    pub fn required(&self) -> f64 {
        let quantiles = self.objectives.iter().filter_map(|o| o.limit.quantile);
        quantiles.fold(REQUIRED, f64::min)
    }
}

impl From<&SloChoice> for SloKeys {
    fn from(choice: &SloChoice) -> SloKeys {
        if choice.objectives.is_empty() {
            return SloKeys::Limits(SloFile {
                ttft: choice.ttft,
                itl: None,
                tpot: choice.tpot,
                e2e: choice.e2e,
            });
        }
        SloKeys::List(choice.objectives.iter().map(|o| o.text.clone()).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::RunReport;
    use crate::scenario::Scenario;

    const LOAD: &str = "[step]\nbase = \"10 ms\"\n[engine]\nkind = \"vllm_v1\"\nkv_blocks = 2000\n[[workload]]\narrival = { kind = \"poisson\", rate = 20 }\n\
        prompt = 100\noutput = 20\n[run]\nrequests = 200\n";

    fn scenario(slo: &str) -> Scenario {
        Scenario::parse(&format!("{slo}\n{LOAD}"), "s.toml", &[]).unwrap()
    }

    #[test]
    fn a_list_of_objectives_is_kept_shown_and_judged() {
        let s = scenario("slo = [\"ttft.p95 < 1 s\", \"tpot.p95 < 1 ms\"]");
        assert_eq!(
            (s.slo.ttft, s.slo.tpot),
            (Secs::new(1.0).ok(), Secs::new(0.001).ok())
        );
        assert_eq!(s.slo.required(), 0.95);
        let shown = s.show();
        assert!(
            shown.contains("slo = [\"ttft.p95 < 1 s\", \"tpot.p95 < 1 ms\"]\n"),
            "{shown}"
        );
        assert_eq!(Scenario::parse(&shown, "s.toml", &[]).unwrap(), s);
        let report = RunReport::new(&s.run(&Default::default()).unwrap(), 0.0);
        let met: Vec<bool> = report.slo.objectives.iter().map(|o| o.met).collect();
        assert_eq!((met, report.slo.holds), (vec![true, false], Some(false)));
        assert!(report.slo.smallest_margin().unwrap() < -8.0);
        let text = crate::report::text::render(&report, Default::default());
        assert!(text.contains("MISSED: TTFT p95 "), "{text}");
        // Overridden, and as one text.
        let one = ["slo=\"ttft.p95 < 1 s\"".to_owned()];
        let one = Scenario::parse(&shown, "s.toml", &one).unwrap();
        let report = RunReport::new(&one.run(&Default::default()).unwrap(), 0.0);
        assert_eq!(
            (report.slo.objectives.len(), report.slo.holds),
            (1, Some(true))
        );
    }

    #[test]
    fn the_table_of_limits_means_what_it_meant() {
        let table = "slo = { ttft = \"1 s\", itl = \"50 ms\" }";
        let s = scenario(table);
        assert_eq!(
            (s.slo.tpot, s.slo.required()),
            (Secs::new(0.05).ok(), REQUIRED)
        );
        let texts: Vec<String> = s.slo.as_objectives().into_iter().map(|o| o.text).collect();
        assert_eq!(texts, ["ttft.p99 <= 1000 ms", "tpot.p99 <= 50 ms"]);
        assert!(
            s.show()
                .contains("[slo]\ntpot = \"50 ms\"\nttft = \"1 s\"\n"),
            "{}",
            s.show()
        );
        let report = RunReport::new(&s.run(&Default::default()).unwrap(), 0.0);
        assert_eq!(
            (report.slo.met_ratio, report.slo.holds),
            (Some(1.0), Some(true))
        );
        assert!(report.slo.objectives.is_empty() && report.slo.margins.len() == 2);
    }

    #[test]
    fn wrong_objectives_are_refused_at_their_key() {
        for (slo, why) in [
            (
                "slo = [\"ttft < 1 s\"]",
                "s.toml:1: slo: SLO 'ttft < 1 s': `ttft` needs a statistic",
            ),
            ("slo = [\"ttft.p95 > 1 s\"]", "the comparisons are < and <="),
            ("slo = 3", "objectives such as"),
            ("slo = { ttft = 500 }", "write \"500 ms\" instead of 500"),
            ("slo = { itl = \"0 s\" }", "slo.itl: must be above zero"),
            ("slo = { ttfft = \"1 s\" }", "did you mean `ttft`"),
        ] {
            let e = Scenario::parse(&format!("{slo}\n{LOAD}"), "s.toml", &[]);
            let e = e.unwrap_err().to_string();
            assert!(e.contains(why), "{slo}: {e}");
        }
    }
}
