//! What one forward pass holds, reduced to what its time depends on.

/// Sufficient statistics of one step's batch on one replica.
///
/// Everything is kept incrementally by the schedulers, so predicting a step is
/// O(1) in the batch size. Sums of squares carry how uneven the batch is:
/// attention over unequal contexts is not attention over their mean.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BatchStats {
    /// Sequences that decode one token (or verify a few) in this step.
    pub decode_seqs: u32,
    /// New tokens of those sequences [tokens]; equals `decode_seqs` without speculation.
    pub decode_tokens: u32,
    /// Sum over decodes of the context read, the new token included [tokens].
    pub decode_ctx_sum: u64,
    /// Sum over decodes of the squared context [tokens^2].
    pub decode_ctx_sq_sum: u64,
    /// Sequences with a prefill chunk in this step.
    pub prefill_seqs: u32,
    /// New tokens of those chunks [tokens].
    pub prefill_tokens: u32,
    /// Sum over chunks of the KV length after the chunk, cached or computed earlier included [tokens].
    pub prefill_ctx_sum: u64,
    /// Query-key pairs of the chunks under the causal mask: sum of n*c + n(n+1)/2
    /// for n new tokens on top of c earlier ones [pairs].
    pub prefill_pairs: u64,
    /// Sequences whose next token is sampled in this step (rows of the LM head); where drafts are verified, each of them is a row.
    pub sampled_seqs: u32,
}

impl BatchStats {
    /// Adds one decoding sequence whose KV length, the new token included, is `context` tokens.
    #[inline]
    pub fn add_decode(&mut self, context: u32) {
        let c = u64::from(context);
        self.decode_seqs += 1;
        self.decode_tokens += 1;
        self.decode_ctx_sum += c;
        self.decode_ctx_sq_sum += c * c;
        self.sampled_seqs += 1;
    }

    /// Adds a sequence that has KV for `before` tokens and computes `new` ones, of which all but the first are drafts to be verified: each may yield
    /// a token.
    #[inline]
    pub fn add_verification(&mut self, new: u32, before: u32) {
        let c = u64::from(before) + u64::from(new);
        self.decode_seqs += 1;
        self.decode_tokens += new;
        self.decode_ctx_sum += c;
        self.decode_ctx_sq_sum += c * c;
        self.sampled_seqs += new;
    }

    /// Adds a prefill chunk of `new` tokens on top of `before` tokens whose KV exists;
    /// `samples` says whether it completes the prompt and so yields a token.
    #[inline]
    pub fn add_prefill(&mut self, new: u32, before: u32, samples: bool) {
        let (n, c) = (u64::from(new), u64::from(before));
        self.prefill_seqs += 1;
        self.prefill_tokens += new;
        self.prefill_ctx_sum += c + n;
        self.prefill_pairs += n * c + n * (n + 1) / 2;
        self.sampled_seqs += u32::from(samples);
    }

    /// Adds what `other` holds, as if both were one batch.
    pub fn merge(&mut self, other: &BatchStats) {
        self.decode_seqs = self.decode_seqs.saturating_add(other.decode_seqs);
        self.decode_tokens = self.decode_tokens.saturating_add(other.decode_tokens);
        self.decode_ctx_sum += other.decode_ctx_sum;
        self.decode_ctx_sq_sum += other.decode_ctx_sq_sum;
        self.prefill_seqs = self.prefill_seqs.saturating_add(other.prefill_seqs);
        self.prefill_tokens = self.prefill_tokens.saturating_add(other.prefill_tokens);
        self.prefill_ctx_sum += other.prefill_ctx_sum;
        self.prefill_pairs += other.prefill_pairs;
        self.sampled_seqs = self.sampled_seqs.saturating_add(other.sampled_seqs);
    }

    /// Advances every decoding sequence by one token: the next step of an unchanged decode batch.
    #[inline]
    pub fn advance_decodes(&mut self) {
        let b = u64::from(self.decode_seqs);
        self.decode_ctx_sq_sum += 2 * self.decode_ctx_sum + b;
        self.decode_ctx_sum += b;
    }

    /// New tokens through the linear layers [tokens].
    #[inline]
    pub fn tokens(&self) -> u32 {
        self.decode_tokens + self.prefill_tokens
    }

    /// True when nothing runs.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.tokens() == 0
    }
}
