//! A record as bytes for another part of the same program, such as a page and its worker: its tables as they lie in memory, without
//! compressing or checksums. A file is [`fn@crate::write`]'s.

use serde::{Deserialize, Serialize};
use sim::report::RunReport;

use crate::cursor::{cut, damaged, words};
use crate::packed::{Packable, Packed};
use crate::{Bin, Cluster, Info, Rates, Record, StepLevel, StoreError};

/// All but the tables.
#[derive(Serialize)]
struct Head<'a> {
    info: &'a Info,
    report: &'a RunReport,
    cluster: &'a Option<Cluster>,
}

#[derive(Deserialize)]
struct OwnHead {
    info: Info,
    report: RunReport,
    cluster: Option<Cluster>,
}

impl Packable for Bin {
    type Numbers = [u64; 5];

    fn numbers(&self) -> [u64; 5] {
        [
            self.sent,
            self.finished,
            self.lost,
            self.prompt_tokens,
            self.output_tokens,
        ]
    }

    fn of(numbers: &[u64; 5]) -> Bin {
        let [sent, finished, lost, prompt_tokens, output_tokens] = *numbers;
        Bin {
            sent,
            finished,
            lost,
            prompt_tokens,
            output_tokens,
        }
    }
}

/// `record` as bytes that [`from_bytes`] of the same program reads.
///
/// # Errors
/// The report has a number that JSON does not have.
pub fn to_bytes(record: &Record) -> Result<Vec<u8>, StoreError> {
    let head = Head {
        info: &record.info,
        report: &record.report,
        cluster: &record.cluster,
    };
    let head = serde_json::to_vec(&head).map_err(std::io::Error::from)?;
    let mut out = (head.len() as u64).to_le_bytes().to_vec();
    out.extend(head);
    record.requests.put(&mut out);
    record.transfers.put(&mut out);
    let bins: Packed<Bin> = record.rates.bins.iter().copied().collect();
    bins.put(&mut out);
    for level in &record.steps {
        level.table().put(&mut out);
    }
    Ok(out)
}

/// The record that [`to_bytes`] made `bytes` of.
///
/// # Errors
/// The bytes are not all there, or are of something else.
pub fn from_bytes(bytes: &[u8]) -> Result<Record, StoreError> {
    let mut rest = bytes;
    let head = words::<1>(&mut rest)?;
    let head = cut(&mut rest, head[0])?;
    let OwnHead {
        info,
        report,
        cluster,
    } = serde_json::from_slice(head).map_err(|e| damaged(e.to_string()))?;
    let requests = Packed::taken(&mut rest)?;
    let transfers = Packed::taken(&mut rest)?;
    let bins: Packed<Bin> = Packed::taken(&mut rest)?;
    let replicas = info.replicas.len();
    let level = |_: &u64| Ok(StepLevel::new(Packed::taken(&mut rest)?, replicas));
    let steps = info
        .step_rows
        .iter()
        .map(level)
        .collect::<Result<_, StoreError>>()?;
    if !rest.is_empty() {
        return Err(damaged("it is longer than it says"));
    }
    Ok(Record {
        report,
        requests,
        steps,
        transfers,
        rates: Rates {
            width: info.bin_width.max(1),
            bins: bins.iter().collect(),
        },
        cluster,
        info,
    })
}
