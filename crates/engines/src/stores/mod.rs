//! Parts of the stores beside the log that several engines share: their settings, the formats of their values, and the result of a write
//! for each key. This module imports no engine.

pub(crate) mod inbox_fold;
pub(crate) mod progress_row;
pub(crate) mod publish_answer;
mod settings;

pub use settings::{ReceiptSettings, TimerSettings};
