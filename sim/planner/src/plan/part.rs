//! A part of a plan, for many machines: each shard searches every n-th candidate, and the parts together give the answer.
//!
//! Under `exhaustive` the merged answer is the whole plan's, byte for byte. A race among fewer candidates sets aside less, so that the winner of all
//! is settled in its own part; the merged ranking may list more deployments than that of one race.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::options::Options;
use super::question::Question;
use super::report::{Rejection, SearchCounts};
use super::search::{Found, Settled};
use crate::Error;
use crate::conditions::Standing;
use crate::interval::Range;
use crate::sweep::Shard;

/// What one shard found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Part {
    /// Fingerprint of the question.
    pub question: String,
    /// The shard: index from 1, and how many there are.
    pub shard: (u64, u64),
    /// Whether every candidate was settled.
    pub exhaustive: bool,
    /// Draws that the answer is to make.
    pub draws: u64,
    /// Candidates that hold.
    pub settled: Vec<Row>,
    /// What was set aside, by reason.
    pub rejected: Vec<Rejection>,
    /// How many were where.
    pub counts: SearchCounts,
}

/// A candidate that was settled.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    /// Its place in the space.
    pub candidate: usize,
    /// Smallest number of units that holds.
    pub units: u32,
    values_ms: Vec<Option<Exact>>,
    margin_ratio: Exact,
    lost: u64,
    growing: bool,
    holds: bool,
    intervals_ms: Vec<Option<(Exact, Option<Exact>)>>,
    sure: bool,
    requests: u64,
}

/// A number that a reader gets back to the last bit: as text, since readers of JSON numbers may round.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Exact(f64);

impl Serialize for Exact {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Exact {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Exact, D::Error> {
        let text = String::deserialize(d)?;
        text.parse()
            .map(Exact)
            .map_err(|_| serde::de::Error::custom(format!("`{text}` is no number")))
    }
}

impl Row {
    fn of(candidate: usize, s: &Settled) -> Row {
        let Standing {
            values_ms,
            margin_ratio,
            lost,
            growing,
            holds,
            intervals_ms,
            sure,
            requests,
        } = s.standing.clone();
        let interval = |r: Range| (Exact(r.low), r.high.map(Exact));
        Row {
            candidate,
            units: s.units,
            values_ms: values_ms.into_iter().map(|v| v.map(Exact)).collect(),
            margin_ratio: Exact(margin_ratio),
            lost,
            growing,
            holds,
            intervals_ms: intervals_ms.into_iter().map(|r| r.map(interval)).collect(),
            sure,
            requests,
        }
    }

    /// How it stands.
    pub fn standing(&self) -> Standing {
        Standing {
            values_ms: self.values_ms.iter().map(|v| v.map(|v| v.0)).collect(),
            margin_ratio: self.margin_ratio.0,
            lost: self.lost,
            growing: self.growing,
            holds: self.holds,
            intervals_ms: (self.intervals_ms.iter())
                .map(|r| {
                    r.map(|(low, high)| Range {
                        low: low.0,
                        high: high.map(|h| h.0),
                    })
                })
                .collect(),
            sure: self.sure,
            requests: self.requests,
        }
    }
}

impl Part {
    /// What `found` holds of `shard`; `index` gives a started candidate's place in the space.
    pub(super) fn of(
        question: &Question,
        shard: Shard,
        options: Options,
        found: &Found,
        rejected: Vec<Rejection>,
        index: impl Fn(usize) -> usize,
    ) -> Part {
        let rows = |all: &[Settled]| all.iter().map(|s| Row::of(index(s.at), s)).collect();
        Part {
            question: question.fingerprint(),
            shard: (shard.index, shard.count),
            exhaustive: options.exhaustive,
            draws: options.draws,
            settled: rows(&found.settled),
            rejected,
            counts: found.counts,
        }
    }

    /// Name of its file.
    pub fn file(shard: Shard) -> String {
        format!("plan-{}-of-{}.json", shard.index, shard.count)
    }
}

/// Checks that `parts` are all those of `question`, each once.
///
/// # Errors
/// Parts of another question, parts that differ in their options, missing ones.
pub(super) fn check(question: &Question, parts: &[Part]) -> Result<(), Error> {
    let own = question.fingerprint();
    let Some(first) = parts.first() else {
        return Err(Error::input(
            "there is no part of a plan (plan-1-of-8.json, ...): make them with servetwin plan FILE --shard I/N --out DIR",
        ));
    };
    let count = first.shard.1;
    let mut seen: BTreeMap<u64, &Part> = BTreeMap::new();
    for part in parts {
        let (index, of) = part.shard;
        let name = format!("part {index} of {of}");
        if part.question != own {
            return Err(Error::input(format!(
                "{name} belongs to another question: the question, its load, its options or servetwin changed"
            )));
        }
        let same = (part.exhaustive, part.draws, of) == (first.exhaustive, first.draws, count);
        if !same {
            return Err(Error::input(format!(
                "{name} was made with other options (--exhaustive, --draws, number of shards) than part {} of {count}",
                first.shard.0
            )));
        }
        if let Some(other) = seen.insert(index, part)
            && other != part
        {
            return Err(Error::input(format!(
                "{name} is there twice, with different results"
            )));
        }
    }
    let missing: Vec<String> = (1..=count)
        .filter(|i| !seen.contains_key(i))
        .map(|i| i.to_string())
        .collect();
    if !missing.is_empty() {
        return Err(Error::input(format!(
            "{} of {count} parts are missing: {}; make them with --shard I/{count}",
            missing.len(),
            missing.join(", ")
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back_to_the_last_bit() {
        for x in [
            0.1 + 0.2,
            1.0 / 3.0,
            5e-324,
            1.797e308,
            -2.5,
            f64::NEG_INFINITY,
        ] {
            let text = serde_json::to_string(&Exact(x)).unwrap();
            let back: Exact = serde_json::from_str(&text).unwrap();
            assert_eq!(back.0.to_bits(), x.to_bits(), "{text}");
        }
        assert!(serde_json::from_str::<Exact>("\"x\"").is_err());
    }
}
