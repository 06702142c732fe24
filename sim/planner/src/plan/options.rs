//! How a question is to be answered.

/// How to answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Simulate every candidate under the whole load.
    pub exhaustive: bool,
    /// Draws of the profiles' parameters; 0: the doubt is not looked at.
    pub draws: u64,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            exhaustive: false,
            draws: 16,
        }
    }
}
