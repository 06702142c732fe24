//! Choosing the next token from the logits: what requests ask for, whose kernels do it, and how long they take.
//!
//! Greedy requests take the largest logit: one pass. Others divide by the temperature, take a softmax and draw; top-k and top-p cut the
//! distribution first, which is where engines differ: PyTorch sorts the whole vocabulary, Triton and FlashInfer search for the threshold.
//! The figures come from the benchmarks of vLLM's pull requests 33538 and 40376 (64 to 512 rows of 131 072 logits on a Hopper device; sources
//! 7.9): a fixed time, and bytes for each logit at the rate of element-wise kernels. They are analytic: nothing here is fitted on a serving run.

/// How the requests of a load have their tokens chosen. A batch is sampled by all means that any of its requests asks for, as engines do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sampling {
    /// Tokens are drawn (a temperature above 0); otherwise the most likely is taken.
    pub random: bool,
    /// Only the k most likely tokens count.
    pub top_k: bool,
    /// Only the most likely tokens that together have probability p count.
    pub top_p: bool,
    /// Tokens that occurred before are made less likely (repetition, presence or frequency penalty).
    pub penalties: bool,
    /// Log-probabilities are returned.
    pub logprobs: bool,
}

impl Sampling {
    /// What a batch of requests of both kinds needs.
    pub fn and(self, other: Sampling) -> Sampling {
        Sampling {
            random: self.random || other.random,
            top_k: self.top_k || other.top_k,
            top_p: self.top_p || other.top_p,
            penalties: self.penalties || other.penalties,
            logprobs: self.logprobs || other.logprobs,
        }
    }

    /// Whether the distribution is cut before a token is drawn.
    pub fn filters(self) -> bool {
        self.random && (self.top_k || self.top_p)
    }
}

/// Whose kernels cut the distribution.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sampler {
    /// PyTorch: sorts every row (vLLM before 0.16, TGI, Hugging Face).
    #[default]
    Sort,
    /// vLLM's Triton kernels for eight rows and more (0.16 to 0.19); fewer are sorted.
    Triton,
    /// FlashInfer's rejection sampling (vLLM from 0.20 on; TensorRT-LLM's own kernels work alike).
    FlashInfer,
    /// A part of the compiled graph of the model (optimum-neuron's plug-in for vLLM).
    Compiled,
}

/// Rows below which vLLM sorts in place of its Triton kernels.
const TRITON_ROWS: u32 = 8;

/// Extra work over greedy choice.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Extra {
    /// Time that does not depend on the batch [s].
    pub fixed: f64,
    /// Bytes moved for each logit.
    pub bytes: f64,
    /// Element-wise kernels.
    pub kernels: f64,
}

impl Extra {
    fn plus(&mut self, fixed: f64, bytes: f64, kernels: f64) {
        self.fixed += fixed;
        self.bytes += bytes;
        self.kernels += kernels;
    }
}

/// What `sampling` costs over greedy choice for `rows` rows.
pub fn extra(sampling: Sampling, sampler: Sampler, rows: u32) -> Extra {
    let mut e = Extra::default();
    if sampling.random {
        // Temperature in place (8 bytes), softmax (8), exponential noise (4), division (12).
        e.plus(0.0, 32.0, 4.0);
    }
    if sampling.filters() {
        match sampler {
            Sampler::Triton if rows >= TRITON_ROWS => e.plus(220e-6, 30.0, 0.0),
            // 1.07 ms for 64 rows, 6.15 ms for 512.
            Sampler::Sort | Sampler::Triton => e.plus(60e-6, 200.0, 0.0),
            // 0.20 ms for 64 rows, 0.27 for 128, 0.49 for 512.
            Sampler::FlashInfer | Sampler::Compiled => e.plus(120e-6, 9.0, 0.0),
        }
    }
    if sampling.penalties {
        // Counts of prompt and output tokens (two rows of 64-bit integers written and read), masks, the logits changed in place.
        e.plus(0.0, 48.0, 6.0);
    }
    if sampling.logprobs {
        // Logarithm of the softmax, then the largest few of each row.
        e.plus(0.0, 20.0, 3.0);
    }
    e
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOP_P: Sampling = Sampling {
        random: true,
        top_k: false,
        top_p: true,
        penalties: false,
        logprobs: false,
    };

    #[test]
    fn greedy_requests_add_nothing_and_filters_need_a_temperature() {
        assert_eq!(
            extra(Sampling::default(), Sampler::Sort, 64),
            Extra::default()
        );
        let cold = Sampling {
            random: false,
            ..TOP_P
        };
        assert_eq!(extra(cold, Sampler::Sort, 64), Extra::default());
    }

    /// Hopper at half of 3.35 TB/s, against the published times; the softmax and the draw are not in those.
    #[test]
    fn filters_take_what_the_published_benchmarks_say() {
        let time = |sampler, rows: u32| {
            let random = Sampling {
                top_p: false,
                ..TOP_P
            };
            let (all, plain) = (extra(TOP_P, sampler, rows), extra(random, sampler, rows));
            let logits = f64::from(rows) * 131_072.0;
            1e3 * (all.fixed - plain.fixed + logits * (all.bytes - plain.bytes) / (0.5 * 3.35e12))
        };
        for (sampler, rows, published) in [
            (Sampler::Sort, 64, 1.074),
            (Sampler::Sort, 128, 2.399),
            (Sampler::Triton, 64, 0.311),
            (Sampler::Triton, 128, 0.528),
            (Sampler::Triton, 512, 1.124),
            (Sampler::FlashInfer, 64, 0.199),
            (Sampler::FlashInfer, 128, 0.267),
            (Sampler::FlashInfer, 512, 0.488),
        ] {
            let ratio = time(sampler, rows) / published;
            assert!((0.7..1.3).contains(&ratio), "{sampler:?} {rows}: {ratio}");
        }
    }
}
