//! Latency and efficiency of one algorithm on one link, alone and in the groups that a library chooses from.

/// Latency and efficiency of one algorithm on one link.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Line {
    /// Fixed latency [s].
    pub(super) base: f64,
    /// Latency per sequential hop, or per peer for the engines' kernels [s].
    pub(super) hop: f64,
    /// Relative growth of the latency from tiny messages to those that fill all warps and
    /// channels, half of it at the protocol's `SPREAD` size.
    pub(super) spread: f64,
    /// Time added per doubling of the message beyond [`RAMP_BYTES`] [s]: more channels come into
    /// use and each takes its own start.
    pub(super) ramp: f64,
    /// Achieved fraction of the link peak, in (0, 1].
    pub(super) efficiency: f64,
}

pub(super) const KIB: f64 = 1024.0;
pub(super) const MIB: f64 = 1024.0 * KIB;
/// Where a message starts to be large enough for the ramp [bytes].
pub(super) const RAMP_BYTES: f64 = 4.0 * MIB;
/// Where half of the spread has come, for rings [bytes].
pub(super) const RING_SPREAD_BYTES: f64 = 16.0 * KIB;
/// The same for sends and all-to-all, which start more channels later [bytes].
pub(super) const P2P_SPREAD_BYTES: f64 = 64.0 * KIB;
/// How sharply latency gives way to transfer where a protocol overlaps them: 1 adds them, 2 is the
/// root of the sum of squares. Between the two fits LL best on H100 and A100.
pub(super) const OVERLAP: f64 = 1.5;

impl Line {
    /// Time before the wire [s].
    pub(super) fn latency(&self, hops: f64, bytes: f64, spread_bytes: f64) -> f64 {
        (self.base + self.hop * hops) * (1.0 + self.spread * bytes / (bytes + spread_bytes))
            + self.ramp * (1.0 + bytes / RAMP_BYTES).log2()
    }
}

/// Latency and transfer partly hidden under each other [s].
pub(super) fn overlapped(latency: f64, wire: f64) -> f64 {
    (latency.powf(OVERLAP) + wire.powf(OVERLAP)).powf(1.0 / OVERLAP)
}

/// NCCL's protocols on one kind of link.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Protocols {
    pub(super) ll: Line,
    pub(super) ll128: Option<Line>,
    pub(super) simple: Line,
}

/// An engine's own all-reduce kernels.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Kernels {
    pub(super) one_shot: Line,
    pub(super) two_shot: Line,
    /// Host time of one call outside a graph [s].
    pub(super) host: f64,
}
