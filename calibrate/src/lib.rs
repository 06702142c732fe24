//! From measured runs to profiles.
