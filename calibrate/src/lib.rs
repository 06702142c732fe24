//! From measured runs to profiles.

pub mod fit;
