//! Why a record file cannot be read or written.

/// Why a record file cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The system said no.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// The bytes are no zip archive, or one that was cut off.
    #[error(
        "this is no record file, or it was cut off ({0}); `servetwin run FILE --record OUT.servetwin` writes one"
    )]
    NotARecord(String),
    /// A newer program wrote it.
    #[error(
        "this record has format {found}, written by servetwin {version}; this program reads up to format {known}: use a newer servetwin"
    )]
    Newer {
        /// Format of the file.
        found: u32,
        /// What this program reads.
        known: u32,
        /// Who wrote it.
        version: String,
    },
    /// A part is missing.
    #[error("the record has no `{0}`: it is damaged; make it again")]
    Missing(String),
    /// A part does not hold what it should.
    #[error("the record is damaged: {place}: {why}; make it again")]
    Damaged {
        /// The part, by its name in the archive, with the row where there is one.
        place: String,
        /// What is wrong with it.
        why: String,
    },
    /// More than the reader takes in.
    #[error("the record holds {found} {what}; at most {most} are read: record a shorter run")]
    TooLarge {
        /// What there is too much of.
        what: &'static str,
        /// How much there is.
        found: u64,
        /// How much there may be.
        most: u64,
    },
}

impl StoreError {
    pub(crate) fn damaged(place: impl Into<String>, why: impl Into<String>) -> StoreError {
        StoreError::Damaged {
            place: place.into(),
            why: why.into(),
        }
    }
}
