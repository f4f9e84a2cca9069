//! The registry of topics.
