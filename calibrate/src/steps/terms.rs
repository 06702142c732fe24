//! A batch as columns of a linear model, and the equations that its measured times give.

use hwmodels::BatchStats;
use hwmodels::fitted::Coefficients as StepCoefficients;

use super::log::Step;

/// The columns: the parameter that each coefficient is.
pub const COLUMNS: [&str; 9] = [
    "step.fixed_s",
    "step.seq_s",
    "step.chunk_s",
    "step.token_s",
    "step.elementwise_s",
    "step.sampled_s",
    "step.context_s",
    "step.pair_s",
    "step.mixed_s",
];

/// Index of each column in [`COLUMNS`].
pub mod column {
    #![allow(missing_docs)]
    pub const FIXED: usize = 0;
    pub const SEQ: usize = 1;
    pub const CHUNK: usize = 2;
    pub const PRODUCT: usize = 3;
    pub const ELEMENTWISE: usize = 4;
    pub const SAMPLED: usize = 5;
    pub const CONTEXT: usize = 6;
    pub const PAIR: usize = 7;
    pub const MIXED: usize = 8;
}

/// Columns of what is the host's, beside the forward pass.
pub const HOST_COLUMNS: [usize; 4] = [FIXED, SEQ, CHUNK, MIXED];

use column::{CHUNK, CONTEXT, ELEMENTWISE, FIXED, MIXED, PAIR, PRODUCT, SAMPLED, SEQ};

/// The shape of the matrix products' time over tokens: `norm_p(crossover, tokens in whole tiles)`, in units of a token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shape {
    /// Tokens at which arithmetic takes as long as reading the weights; 0: arithmetic alone [tokens].
    pub crossover: f64,
    /// Exponent of the norm [ratio].
    pub sharpness: f64,
    /// Rows of a tile [tokens].
    pub tile: f64,
}

impl Shape {
    /// Time of the products over `tokens` in units of a token's arithmetic.
    pub fn of(&self, tokens: f64) -> f64 {
        let unit = StepCoefficients {
            weights: self.crossover,
            token: 1.0,
            sharpness: self.sharpness,
            tile: self.tile,
            ..StepCoefficients::default()
        };
        unit.linear(tokens).iter().sum()
    }
}

/// The columns of a step over `b`.
pub fn row(b: &BatchStats, shape: &Shape) -> [f64; COLUMNS.len()] {
    let tokens = f64::from(b.tokens());
    let mut x = [0.0; COLUMNS.len()];
    x[FIXED] = 1.0;
    x[SEQ] = f64::from(b.decode_seqs + b.prefill_seqs);
    x[CHUNK] = f64::from(b.prefill_seqs);
    x[PRODUCT] = shape.of(tokens);
    x[ELEMENTWISE] = tokens;
    x[SAMPLED] = f64::from(b.sampled_seqs);
    x[CONTEXT] = b.decode_ctx_sum as f64;
    x[PAIR] = b.prefill_pairs as f64;
    x[MIXED] = f64::from(u8::from(b.prefill_tokens > 0 && b.decode_tokens > 0));
    x
}

/// A measured time of a step, and the columns that can cause it.
#[derive(Clone, Copy, Debug)]
pub struct Equation {
    /// What is measured, for reports.
    pub name: &'static str,
    /// Columns that may have a coefficient.
    pub columns: &'static [usize],
    /// The time [s]; none where the step does not say.
    pub value: fn(&Step) -> Option<f64>,
}

/// The whole step: all that a log without parts gives.
pub const TOTAL: [Equation; 1] = [Equation {
    name: "step",
    columns: &[
        FIXED,
        SEQ,
        CHUNK,
        PRODUCT,
        ELEMENTWISE,
        SAMPLED,
        CONTEXT,
        PAIR,
        MIXED,
    ],
    value: |s| Some(s.seconds),
}];

/// The parts of a step, of logs that have them. Collectives and sends are not among them: they belong to the layout.
pub const PARTS: [Equation; 6] = [
    Equation {
        name: "matrix products",
        // Without tokens there is nothing to multiply: a fixed part of it is the reading of weights.
        columns: &[PRODUCT],
        value: |s| s.parts.map(|p| p.linear),
    },
    Equation {
        name: "LM head",
        columns: &[SAMPLED],
        value: |s| s.parts.and_then(|p| p.lm_head),
    },
    ATTENTION,
    ELEMENT_WISE,
    SAMPLING,
    HOST,
];

/// As [`PARTS`], of logs that do not tell the LM head from the other products.
pub const PARTS_WITHOUT_HEAD: [Equation; 5] = [
    Equation {
        name: "matrix products",
        columns: &[PRODUCT, SAMPLED],
        value: |s| s.parts.map(|p| p.linear + p.lm_head.unwrap_or(0.0)),
    },
    ATTENTION,
    ELEMENT_WISE,
    SAMPLING,
    HOST,
];

const ATTENTION: Equation = Equation {
    name: "attention",
    // A prompt costs by its queries (KV written, heads gathered) and by its pairs; its chunk as such is one sequence.
    columns: &[FIXED, SEQ, ELEMENTWISE, CONTEXT, PAIR],
    value: |s| s.parts.map(|p| p.attention),
};

const ELEMENT_WISE: Equation = Equation {
    name: "element-wise",
    columns: &[FIXED, ELEMENTWISE],
    value: |s| s.parts.map(|p| p.elementwise),
};

const SAMPLING: Equation = Equation {
    name: "sampling",
    columns: &[FIXED, SEQ],
    value: |s| s.parts.map(|p| p.sample),
};

const HOST: Equation = Equation {
    name: "host",
    columns: &[FIXED, SEQ, CHUNK, ELEMENTWISE, MIXED],
    value: |s| s.parts.map(|p| host(s.seconds, &p)),
};

/// What no part names [s].
fn host(seconds: f64, p: &super::log::Parts) -> f64 {
    let products = p.linear + p.lm_head.unwrap_or(0.0);
    (seconds - products - p.attention - p.elementwise - p.communication - p.sample).max(0.0)
}
