//! Step logs and the facts beside them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use hwmodels::{BatchStats, EngineKind};

/// Seconds that a log's parts of a step are given in, in the order of [`Parts`].
const PART_COLUMNS: [&str; 6] = [
    "linear_s",
    "lm_head_s",
    "attention_s",
    "elementwise_s",
    "communication_s",
    "sample_s",
];

/// Where a step's time went, as far as the log says [s]. What no field names is the host's.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Parts {
    /// Matrix products; where the log does not tell the LM head apart, with it.
    pub linear: f64,
    /// The LM head's product: from hidden states to logits, for sampled rows alone. None where the log has no `lm_head_s`.
    pub lm_head: Option<f64>,
    /// Attention and writes into the KV cache.
    pub attention: f64,
    /// Norms, rotary embedding, activations, look-ups.
    pub elementwise: f64,
    /// Collectives and sends, waiting included.
    pub communication: f64,
    /// Choosing tokens.
    pub sample: f64,
}

/// One step of a log.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// Replica.
    pub replica: u32,
    /// Its start, from the log's beginning [s].
    pub start: f64,
    /// Its duration [s].
    pub seconds: f64,
    /// What of that the engine slept, since its steps have a least time [s].
    pub paced: f64,
    /// What it held.
    pub stats: BatchStats,
    /// Where its time went, where the log says.
    pub parts: Option<Parts>,
    /// From its end to the start of the replica's next step, where requests of it went on into that [s].
    pub gap: Option<f64>,
    /// Whether another step of the replica was under way when it started (pipeline stages).
    pub overlaps: bool,
}

impl Step {
    /// The step without what it slept: what its batch explains.
    pub fn computed(self) -> Step {
        Step {
            seconds: self.seconds - self.paced,
            paced: 0.0,
            ..self
        }
    }
}

/// A step log.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Log {
    /// File name, for messages.
    pub name: String,
    /// Steps in the order of their starts.
    pub steps: Vec<Step>,
    /// What stands beside the log.
    pub facts: Facts,
}

/// What is known of the engine that wrote a log: from `LOG.engine.toml`, where there is one.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Facts {
    /// The model.
    pub model: Option<String>,
    /// Layers of the model.
    pub layers: Option<u32>,
    /// Its hidden size.
    pub hidden: Option<u32>,
    /// The engine.
    pub engine: Option<EngineKind>,
    /// Tensor-parallel ranks.
    pub tp: Option<u32>,
    /// Pipeline stages.
    pub pp: Option<u32>,
    /// Replicas on the machine.
    pub replicas: Option<u32>,
    /// Threads of a rank.
    pub threads: Option<u32>,
    /// Cores of the machine.
    pub cores: Option<u32>,
    /// Least time of a step [s]; 0: none.
    pub min_step_s: Option<f64>,
    /// Limits of the engine, by their names in profiles (`limits.*`).
    pub limits: BTreeMap<String, f64>,
}

impl Facts {
    /// `(tp, pp)`.
    pub fn layout(&self) -> (u32, u32) {
        (self.tp.unwrap_or(1), self.pp.unwrap_or(1))
    }

    /// These facts where `self` has none.
    pub fn or(mut self, o: &Facts) -> Facts {
        self.model = self.model.or_else(|| o.model.clone());
        self.layers = self.layers.or(o.layers);
        self.hidden = self.hidden.or(o.hidden);
        self.engine = self.engine.or(o.engine);
        self.tp = self.tp.or(o.tp);
        self.pp = self.pp.or(o.pp);
        self.replicas = self.replicas.or(o.replicas);
        self.threads = self.threads.or(o.threads);
        self.cores = self.cores.or(o.cores);
        self.min_step_s = self.min_step_s.or(o.min_step_s);
        for (k, v) in &o.limits {
            self.limits.entry(k.clone()).or_insert(*v);
        }
        self
    }
}

/// Why a log cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The file cannot be opened.
    #[error("cannot read {}: {message}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        message: String,
    },
    /// The text is not a table.
    #[error("{file}: {message}")]
    Table {
        /// The file.
        file: String,
        /// What is wrong.
        message: String,
    },
    /// A column is missing.
    #[error(
        "{file}: no column `{column}`; a step log has start_s, end_s, decode_seqs, decode_tokens, decode_ctx_sum, \
         prefill_seqs, prefill_tokens, prefill_pairs and sampled_seqs"
    )]
    NoColumn {
        /// The file.
        file: String,
        /// The column.
        column: &'static str,
    },
    /// A field does not hold what its column says.
    #[error("{file}: line {line}: {column}: `{value}` is not {wanted}")]
    Field {
        /// The file.
        file: String,
        /// Line, from 1.
        line: u64,
        /// Column.
        column: &'static str,
        /// What stands there.
        value: String,
        /// What should.
        wanted: &'static str,
    },
}

/// Longest pause between two steps that still counts as the host's work [s].
const LONGEST_GAP: f64 = 0.1;

/// Reads a step log and, where there is one, the `.engine.toml` beside it.
///
/// # Errors
/// Files that cannot be read, missing columns and malformed fields, with line and column.
pub fn read(path: &Path) -> Result<Log, LogError> {
    let io = |path: &Path| {
        let path = path.to_owned();
        move |e: std::io::Error| LogError::Io {
            path,
            message: e.to_string(),
        }
    };
    let file = std::fs::File::open(path).map_err(io(path))?;
    let name = path.display().to_string();
    let steps = parse(std::io::BufReader::new(file), &name)?;
    let beside = path.with_extension("engine.toml");
    let facts = if beside.exists() {
        let text = std::fs::read_to_string(&beside).map_err(io(&beside))?;
        facts(&text, &beside.display().to_string())?
    } else {
        Facts::default()
    };
    Ok(Log { name, steps, facts })
}

/// Reads the rows of a step log.
///
/// # Errors
/// As [`read`].
pub fn parse(input: impl std::io::Read, file: &str) -> Result<Vec<Step>, LogError> {
    let table = |e: csv::Error| LogError::Table {
        file: file.to_owned(),
        message: e.to_string(),
    };
    let mut reader = csv::ReaderBuilder::new().flexible(false).from_reader(input);
    let headers = reader.headers().map_err(table)?.clone();
    let find = |name: &str| headers.iter().position(|h| h.trim() == name);
    let need = |column: &'static str| {
        find(column).map(|i| (i, column)).ok_or(LogError::NoColumn {
            file: file.to_owned(),
            column,
        })
    };
    let (start, end) = (need("start_s")?, need("end_s")?);
    let counts = [
        need("decode_seqs")?,
        need("decode_tokens")?,
        need("prefill_seqs")?,
        need("prefill_tokens")?,
        need("sampled_seqs")?,
    ];
    let sums = [need("decode_ctx_sum")?, need("prefill_pairs")?];
    let replica = find("replica").map(|i| (i, "replica"));
    let paced = find("paced_s").map(|i| (i, "paced_s"));
    let parts: Vec<(usize, &'static str)> = PART_COLUMNS
        .iter()
        .filter_map(|c| find(c).map(|i| (i, *c)))
        .collect();
    let mut steps = Vec::new();
    for record in reader.records() {
        let record = record.map_err(table)?;
        let line = record.position().map_or(0, csv::Position::line);
        let row = Row {
            record: &record,
            line,
            file,
        };
        let wrong = |at: Column, wanted: &'static str| row.wrong(at, wanted);
        let seconds = |at: Column| row.seconds(at);
        let count = |at: Column| row.count(at);
        let sum = |at: Column| row.sum(at);
        let (from, to) = (seconds(start)?, seconds(end)?);
        if to < from {
            return Err(wrong(end, "at or after the step's start"));
        }
        let paced = match paced {
            Some(at) => {
                let of = seconds(at)?;
                // Rows are rounded to the nanosecond.
                if of > to - from + 1e-6 {
                    return Err(wrong(at, "at most the step's duration"));
                }
                of.min(to - from)
            }
            None => 0.0,
        };
        let mut part = Parts::default();
        for &(i, column) in &parts {
            let slot = match column {
                "linear_s" => &mut part.linear,
                "lm_head_s" => part.lm_head.insert(0.0),
                "attention_s" => &mut part.attention,
                "elementwise_s" => &mut part.elementwise,
                "communication_s" => &mut part.communication,
                _ => &mut part.sample,
            };
            *slot = seconds((i, column))?;
        }
        let stats = BatchStats {
            decode_seqs: count(counts[0])?,
            decode_tokens: count(counts[1])?,
            decode_ctx_sum: sum(sums[0])?,
            prefill_seqs: count(counts[2])?,
            prefill_tokens: count(counts[3])?,
            prefill_pairs: sum(sums[1])?,
            sampled_seqs: count(counts[4])?,
            ..BatchStats::default()
        };
        steps.push(Step {
            replica: replica.map_or(Ok(0), count)?,
            start: from,
            seconds: to - from,
            paced,
            stats,
            parts: (part.linear > 0.0).then_some(part),
            gap: None,
            overlaps: false,
        });
    }
    link(&mut steps);
    Ok(steps)
}

/// Place and name of a column.
type Column = (usize, &'static str);

/// A row of the table, and where it stands.
struct Row<'a> {
    record: &'a csv::StringRecord,
    line: u64,
    file: &'a str,
}

impl Row<'_> {
    fn wrong(&self, (i, column): Column, wanted: &'static str) -> LogError {
        LogError::Field {
            file: self.file.to_owned(),
            line: self.line,
            column,
            value: self.text((i, column)).chars().take(60).collect(),
            wanted,
        }
    }

    fn text(&self, at: Column) -> &str {
        self.record.get(at.0).unwrap_or("")
    }

    fn seconds(&self, at: Column) -> Result<f64, LogError> {
        let found = self.text(at).trim().parse::<f64>().ok();
        found
            .filter(|v| v.is_finite() && *v >= 0.0)
            .ok_or_else(|| self.wrong(at, "a time in seconds"))
    }

    fn count(&self, at: Column) -> Result<u32, LogError> {
        let found = self.text(at).trim().parse::<u32>();
        found.map_err(|_| self.wrong(at, "a whole number from 0 to 4294967295"))
    }

    fn sum(&self, at: Column) -> Result<u64, LogError> {
        let found = self.text(at).trim().parse::<u64>();
        found.map_err(|_| self.wrong(at, "a whole number"))
    }
}

/// Finds each step's successor on its replica: the gap between them, and whether they overlap.
pub fn link(steps: &mut [Step]) {
    steps.sort_by(|a, b| a.start.total_cmp(&b.start));
    let mut last: BTreeMap<u32, usize> = BTreeMap::new();
    for i in 0..steps.len() {
        let s = steps[i];
        if let Some(before) = last.insert(s.replica, i) {
            let end = steps[before].start + steps[before].seconds;
            let gap = s.start - end;
            steps[i].overlaps = gap < -1e-9;
            // Decodes of this step were running before it, so that nobody waited for a request to come.
            if (-1e-9..LONGEST_GAP).contains(&gap) && s.stats.decode_seqs > 0 {
                steps[before].gap = Some(gap.max(0.0));
            }
        }
    }
}

/// Reads the facts beside a log.
///
/// # Errors
/// Text that is not TOML.
pub fn facts(text: &str, file: &str) -> Result<Facts, LogError> {
    let root: toml::Table = toml::from_str(text).map_err(|e| LogError::Table {
        file: file.to_owned(),
        message: e.to_string(),
    })?;
    let empty = toml::Table::new();
    let table = |key: &str| root.get(key).and_then(|v| v.as_table()).unwrap_or(&empty);
    let number = |v: Option<&toml::Value>| -> Option<f64> {
        match v? {
            toml::Value::Integer(i) => Some(*i as f64),
            toml::Value::Float(f) => Some(*f),
            toml::Value::Boolean(b) => Some(f64::from(u8::from(*b))),
            _ => None,
        }
    };
    let (engine, layout) = (table("engine"), table("layout"));
    let count = |t: &toml::Table, key: &str| {
        number(t.get(key))
            .filter(|v| (0.0..=f64::from(u32::MAX)).contains(v))
            .map(|v| v as u32)
    };
    let kind = engine.get("kind").and_then(|v| v.as_str());
    let mut facts = Facts {
        model: root
            .get("model")
            .and_then(|v| v.as_str())
            .map(str::to_owned),
        layers: count(&root, "layers"),
        hidden: count(&root, "hidden"),
        engine: EngineKind::ALL.into_iter().find(|k| Some(k.name()) == kind),
        tp: count(layout, "tp"),
        pp: count(layout, "pp"),
        replicas: count(layout, "replicas"),
        threads: count(layout, "threads"),
        cores: count(layout, "cores"),
        min_step_s: number(root.get("min_step_s")).filter(|s| (0.0..=60.0).contains(s)),
        limits: BTreeMap::new(),
    };
    for (key, limit) in [
        ("kv_blocks", "limits.kv_blocks"),
        ("block_size", "limits.block_size"),
        ("max_num_seqs", "limits.max_num_seqs"),
        ("max_num_batched_tokens", "limits.max_num_batched_tokens"),
        ("max_model_len", "limits.max_model_len"),
        ("async_scheduling", "limits.async_scheduling"),
        ("enable_prefix_caching", "limits.prefix_caching"),
        ("enable_chunked_prefill", "limits.chunked_prefill"),
        ("max_num_queued_reqs", "limits.max_num_queued_reqs"),
    ] {
        if let Some(v) = number(engine.get(key)) {
            facts.limits.insert(limit.to_owned(), v);
        }
    }
    Ok(facts)
}
