//! How a question is to be answered.

/// How to answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Simulate every candidate under the whole load.
    pub exhaustive: bool,
    /// Draws of the profiles' parameters; 0: the doubt is not looked at. From the lowest to the highest of 19 is an interval of 90 %: one more draw
    /// is as likely to come to lie at any of 20 places among them.
    pub draws: u64,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            exhaustive: false,
            draws: 19,
        }
    }
}
