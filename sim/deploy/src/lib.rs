//! x
pub mod place;
pub mod text;
