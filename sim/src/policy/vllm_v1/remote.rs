//! Where KV is that another replica makes (serving-policies 6.2).

/// Where the KV of a request is that another replica makes (6.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Remote {
    /// It is made here.
    #[default]
    No,
    /// There: no blocks are set aside for it yet. The tokens that it covers.
    Wanted(u32),
    /// On its way into blocks that are set aside, from there or from the host's memory.
    Coming(u32),
    /// Here, and the request has not run since.
    Here(u32),
}
