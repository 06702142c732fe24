//! One rank's share of a decoder layer, and how it is cut out of the model's tensors.

use std::ops::Range;
use std::path::PathBuf;

use kernels::linear::Linear;

use super::ModelError;
use super::config::Config;
use super::weights::TensorSource;
use kernels::dtype::{self, Values, WeightDtype};

/// Weights of a layer, or of one tensor-parallel rank's share: whole heads, and a part of the feed-forward's inner width.
pub struct Layer {
    pub input_norm: Vec<f32>,
    /// Queries, keys, values: one matrix, in this order.
    pub qkv: Linear,
    /// Norms of each query and key head.
    pub qk_norms: Option<(Vec<f32>, Vec<f32>)>,
    pub attention_out: Linear,
    pub feed_norm: Vec<f32>,
    /// Gate, then up.
    pub gate_up: Linear,
    pub down: Linear,
    pub window: Option<usize>,
}

/// The part of `0..total` that falls to a rank: equal up to one.
pub fn share(total: usize, rank: usize, ranks: usize) -> Range<usize> {
    total * rank / ranks..total * (rank + 1) / ranks
}

/// Takes parts of tensors in one format.
pub struct Loader<'a> {
    pub source: &'a dyn TensorSource,
    pub dtype: WeightDtype,
}

impl Loader<'_> {
    fn wrong(name: &str, message: String) -> ModelError {
        ModelError::Weights {
            path: PathBuf::from(name),
            message,
        }
    }

    /// A vector in singles.
    pub fn vector(&self, name: &str, len: usize) -> Result<Vec<f32>, ModelError> {
        let stored = self.source.tensor(name)?;
        if stored.shape != [len] {
            let message = format!("shape {:?}, but config.json makes it [{len}]", stored.shape);
            return Err(Self::wrong(name, message));
        }
        Ok(dtype::to_f32(stored.dtype, &stored.bytes))
    }

    /// Appends a part of a matrix, row by row.
    fn matrix(
        &self,
        name: &str,
        shape: [usize; 2],
        rows: Range<usize>,
        cols: Range<usize>,
        out: &mut Values,
    ) -> Result<(), ModelError> {
        let stored = self.source.tensor(name)?;
        if stored.shape != shape {
            let message = format!(
                "shape {:?}, but config.json makes it {shape:?}",
                stored.shape
            );
            return Err(Self::wrong(name, message));
        }
        let size = stored.dtype.bytes();
        let row = shape[1] * size;
        if cols.len() == shape[1] {
            let bytes = &stored.bytes[rows.start * row..rows.end * row];
            dtype::append(out, stored.dtype, bytes);
        } else {
            for r in rows {
                let bytes = &stored.bytes[r * row + cols.start * size..r * row + cols.end * size];
                dtype::append(out, stored.dtype, bytes);
            }
        }
        Ok(())
    }

    /// Rows of a whole matrix, as they are.
    pub fn rows(
        &self,
        name: &str,
        shape: [usize; 2],
        rows: Range<usize>,
    ) -> Result<Values, ModelError> {
        let mut values = dtype::empty(self.dtype, rows.len() * shape[1]);
        self.matrix(name, shape, rows, 0..shape[1], &mut values)?;
        Ok(values)
    }

    /// Some rows of several matrices of the same width, one below the other, with their biases.
    fn stacked(
        &self,
        prefix: &str,
        parts: &[(&str, usize, Range<usize>)],
        cols: usize,
        bias: bool,
    ) -> Result<Linear, ModelError> {
        let rows: usize = parts.iter().map(|(_, _, r)| r.len()).sum();
        let mut values = dtype::empty(self.dtype, rows * cols);
        let mut biases = Vec::new();
        for (name, total, part) in parts {
            let weight = format!("{prefix}.{name}.weight");
            self.matrix(&weight, [*total, cols], part.clone(), 0..cols, &mut values)?;
            if bias {
                let whole = self.vector(&format!("{prefix}.{name}.bias"), *total)?;
                biases.extend_from_slice(&whole[part.clone()]);
            }
        }
        Ok(Linear::new(rows, cols, &values, bias.then_some(biases)))
    }

    /// Some columns of a matrix. Its bias is added once: on rank 0.
    fn columns(
        &self,
        prefix: &str,
        shape: [usize; 2],
        cols: Range<usize>,
        bias: bool,
    ) -> Result<Linear, ModelError> {
        let mut values = dtype::empty(self.dtype, shape[0] * cols.len());
        let name = format!("{prefix}.weight");
        self.matrix(&name, shape, 0..shape[0], cols.clone(), &mut values)?;
        let bias = bias
            .then(|| self.vector(&format!("{prefix}.bias"), shape[0]))
            .transpose()?;
        Ok(Linear::new(shape[0], cols.len(), &values, bias))
    }

    /// A rank's share of layer `index`. `ranks` divides the KV heads.
    pub fn layer(
        &self,
        c: &Config,
        index: usize,
        rank: usize,
        ranks: usize,
    ) -> Result<Layer, ModelError> {
        let prefix = format!("model.layers.{index}");
        let name = |part: &str| format!("{prefix}.{part}");
        let (h, d, i) = (c.hidden, c.head_dim, c.intermediate);
        let (q, kv) = (c.heads * d, c.kv_heads * d);
        let (q_share, kv_share) = (share(q, rank, ranks), share(kv, rank, ranks));
        let inner = share(i, rank, ranks);
        let first = rank == 0;
        let qk_norms = if c.qk_norm {
            let norm = |which| self.vector(&name(which), d);
            Some((
                norm("self_attn.q_norm.weight")?,
                norm("self_attn.k_norm.weight")?,
            ))
        } else {
            None
        };
        Ok(Layer {
            input_norm: self.vector(&name("input_layernorm.weight"), h)?,
            qkv: self.stacked(
                &name("self_attn"),
                &[
                    ("q_proj", q, q_share.clone()),
                    ("k_proj", kv, kv_share.clone()),
                    ("v_proj", kv, kv_share),
                ],
                h,
                c.qkv_bias,
            )?,
            qk_norms,
            attention_out: self.columns(
                &name("self_attn.o_proj"),
                [h, q],
                q_share,
                c.o_bias && first,
            )?,
            feed_norm: self.vector(&name("post_attention_layernorm.weight"), h)?,
            gate_up: self.stacked(
                &name("mlp"),
                &[
                    ("gate_proj", i, inner.clone()),
                    ("up_proj", i, inner.clone()),
                ],
                h,
                c.mlp_bias,
            )?,
            down: self.columns(&name("mlp.down_proj"), [h, i], inner, c.mlp_bias && first)?,
            window: c.windows[index],
        })
    }
}
