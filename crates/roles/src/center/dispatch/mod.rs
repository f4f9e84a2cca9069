//! Dispatch: every subscription gets every message of its topics, in order, at its own pace.
//!
//! [`window`], [`line`], [`ladder`], [`breaker`], [`pace`], [`throttle`], [`filter`], [`judge`] and [`letters`] decide, and are pure.

pub mod breaker;
mod figures;
pub mod filter;
pub mod judge;
pub mod ladder;
pub mod letters;
pub mod line;
pub mod pace;
pub mod saved;
pub mod settings;
pub mod throttle;
pub mod window;

pub use figures::NAMES as METRIC_NAMES;
pub use settings::DispatchSettings;
